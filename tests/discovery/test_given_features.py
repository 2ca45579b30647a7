"""Feature vectors from a file or an array to a run, and on: prediction, updates, a review, exports."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image
from support.runtimes import CPU

from sortal.discovery.pipeline import discover
from sortal.discovery.prediction import predict, redraw
from sortal.discovery.reviewing.open import open_session
from sortal.errors import InputError
from sortal.exchange.export import export
from sortal.exchange.format import How
from sortal.images.feature_files import read_feature_file
from sortal.learning.backbones.registry import load_backbone
from sortal.reviews.loading import load_run
from sortal.runs.run import MODEL, Run

N, MORE, WIDTH = 48, 12, 8
GENERATOR = np.random.default_rng(0)
CENTRES = 4 * np.eye(WIDTH)[:4] + 10  # of four classes, far from 0 together
TRUTH = np.arange(N + MORE) % 4
X = (CENTRES[TRUTH] + 0.1 * GENERATOR.standard_normal((N + MORE, WIDTH))).astype(np.float32)
FILES = [f"tile {row}.png" for row in range(N + MORE)]
LABELS = [f"class {each}" if each < 2 and row % 3 == 0 else "" for row, each in enumerate(TRUTH)]
FEW: dict[str, Any] = {"k": 4, "n_init": 2, "runtime": CPU, "progress": False}
pytestmark = pytest.mark.usefixtures("quickly")


def save(path: Path, rows: slice, **more: Any) -> Path:
    np.savez(path, features=X[rows], file_name=np.array(FILES[rows]), label=np.array(LABELS[rows]), **more)
    return path


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.chdir(tmp_path)
    site = np.array([f"site {row % 2}" for row in range(N)])
    return save(tmp_path / "a.npz", slice(N), site=site), save(tmp_path / "b.npz", slice(N, None))


def assert_sorted(run: Run, rows: int) -> None:
    """Check that categories are the planted classes."""
    a = run.assignments
    pairs = {*zip(a.category_id.tolist(), TRUTH[[FILES.index(file) for file in a.files]].tolist(), strict=True)}
    assert len(a) == rows
    assert len(pairs) == len({category for category, _ in pairs}) == 4


def test_a_file_of_features_goes_the_way_of_images(files: tuple[Path, Path]) -> None:
    first, second = files
    run = discover(features=first, epochs=2, **FEW)
    assert run.folder == Path("a-run")
    assert run.facts.features == str(first.absolute())
    assert run.facts.backbone.name == "vectors"
    assert_sorted(run, N)
    site = run.assignments.columns.get("site")
    assert site is not None
    assert site.cells == tuple(f"site {row % 2}" for row in range(N))
    found = predict("a-run", features=second, runtime=CPU, progress=False)
    by_name = dict(zip(run.assignments.files, run.assignments.category_id.tolist(), strict=True))
    expected = [by_name[FILES[int(each)]] for each in TRUTH[N:]]  # the first four files are one of each class
    assert found.assignments.category_id.tolist() == expected
    assert predict("a-run", features=second, update=True, runtime=CPU, progress=False).added == MORE
    assert predict("a-run", features=second, update=True, runtime=CPU, progress=False).added == 0
    again = discover("a-run", **FEW)  # with what was added, from both files
    assert_sorted(again, N + MORE)
    session = open_session(load_run("a-run", raw=True), runtime=CPU)
    category = again.categories[-1]
    session.decide(0, {"do": "accept category", "category": category.id})
    assert load_run("a-run").assignments.seen.sum() == category.size == (N + MORE) // 4
    assert redraw(Path("a-run"), runtime=CPU).exists()


def test_an_array_of_features_is_sorted_by_the_features_as_they_are(files: tuple[Path, Path], tmp_path: Path) -> None:
    given: dict[str, Any] = {"files": FILES[:N], "labels": [each or None for each in LABELS[:N]]}
    run = discover(features=X[:N].astype(np.float64), out="run", method="kmeans", **given, **FEW)
    assert_sorted(run, N)
    unit = X[:N] / np.linalg.norm(X[:N], axis=1, keepdims=True)
    centred = unit - unit.mean(0)
    np.testing.assert_allclose(
        run.features, centred / np.linalg.norm(centred, axis=1, keepdims=True), atol=1e-5
    )  # of float32 numbers of length 1, after a subtraction that loses a digit or two
    with pytest.raises(InputError, match="were given as an array"):
        discover("run", **FEW)
    with pytest.raises(InputError, match="holds a run of other images"):
        discover(features=files[0], out="run", **FEW)


def test_learning_on_a_sample_sorts_all_rows(files: tuple[Path, Path]) -> None:
    assert_sorted(discover(features=files[0], method="kmeans", learn_on=24, **FEW), N)


def test_embeddings_are_exported_and_can_be_sorted_again(files: tuple[Path, Path]) -> None:
    pytest.importorskip("pyarrow")
    run = discover(features=files[0], method="kmeans", **FEW)
    out = export(run, "embeddings", runtime=CPU).out
    assert out == Path("a-run-embeddings.parquet")
    found = read_feature_file(out)
    assert np.array_equal(found.features, run.features)
    assert [*(found.file_name or ())] == FILES[:N]
    assert [each or "" for each in found.label or ()] == LABELS[:N]
    assert found.columns.names == ("site",)  # category, status and confidence are no columns of the user's


def test_what_does_not_go_together_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = files
    networks: dict[str, Any] = {"backbone": "convnet", "trained": 2, "weights": "file", "image_size": 56}
    for name, value in networks.items():
        with pytest.raises(InputError, match=f"{name} cannot be combined with features"):
            discover(features=first, **{**FEW, name: value})
    with pytest.raises(InputError, match="views must be 'auto' or 'live' for features"):
        discover(features=first, views=4, **FEW)
    with pytest.raises(InputError, match="images or features are required"):
        discover(**FEW)
    with pytest.raises(InputError, match="files and lists of labels go with an array"):
        discover(features=first, labels=["oak"], **FEW)
    with pytest.raises(InputError, match="not with a table or a folder"):
        discover(tmp_path, features=X, out="run", **FEW)
    discover(features=first, method="kmeans", **FEW)
    with pytest.raises(InputError, match="made of feature vectors, so features must be given"):
        predict("a-run", tmp_path, runtime=CPU, progress=False)
    with pytest.raises(InputError, match="must have 8 dimensions, as those of the run have, got 3"):
        predict("a-run", features=np.eye(3), runtime=CPU, progress=False)
    with pytest.raises(InputError, match="must be the one folder of their pictures"):
        predict("a-run", "missing", features=first, runtime=CPU, progress=False)


def test_a_model_of_features_is_loaded_with_its_mean(files: tuple[Path, Path]) -> None:
    run = discover(features=files[0], method="kmeans", **FEW)
    backbone = load_backbone(str(run.folder / f"{MODEL}.json"))
    assert backbone.spec == run.facts.backbone
    assert float(backbone.get_buffer("net.0.mean").norm()) > 0.9  # of directions that are mostly the same


def test_pictures_in_the_folder_are_exported_and_no_other_files(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "secret.png"
    inside.mkdir()
    names = [*FILES[: N - 2], "../secret.png", str(outside)]
    for place in (inside / FILES[0], outside):
        Image.new("RGB", (40, 40), "green").save(place)
    np.savez(inside / "x.npz", features=X[:N], file_name=np.array(names), label=np.array(LABELS[:N]))
    run = discover(features=inside / "x.npz", out=tmp_path / "run", method="kmeans", **FEW)
    for how in get_args(How):
        made = export(run, "folders", tmp_path / how, how=how, runtime=CPU)
        assert [path.name for path in (tmp_path / how).rglob("*.png")] == [FILES[0]]
        assert len(made.missing) == N - 1
    assert load_run(run.folder).paths()[-2:] == ["", ""]
    assert "secret" not in str({*filter(None, run.facts.images[0].paths.values())})


def test_rows_of_a_second_file_with_the_names_of_the_first_take_part(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for name, rows in (("a", slice(N)), ("b", slice(N, None))):
        np.save(tmp_path / f"{name}.npy", X[rows])
    run = discover(features=tmp_path / "a.npy", out=tmp_path / "run", method="kmeans", **FEW).folder
    predict(run, features=tmp_path / "b.npy", update=True, runtime=CPU, progress=False)
    again = discover(run, **FEW)
    assert len(again.assignments) == N + MORE
    assert again.assignments.files[N] == "row 01"
    ids = read_feature_file(export(again, "embeddings", tmp_path / "x.parquet", runtime=CPU).out).file_name or ()
    assert len({*ids}) == N + MORE
    np.save(tmp_path / "b.npy", X[N:, :3])
    with pytest.raises(InputError, match="added to the run, must have 8 dimensions, as the others have, got 3"):
        discover(run, **FEW)
    (tmp_path / "b.npy").unlink()
    notes = list[str]()
    alone = discover(run, **{**FEW, "runtime": replace(CPU, note=notes.append)})
    assert len(alone.assignments) == N
    assert any("12 rows added to that run will be left out, as" in note for note in notes)
