"""Figures of whole runs, before and after training, drawn from the run's folder alone and written to files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save
from support import tiny_folder as tiny
from support.runtimes import CPU
from support.sample_run import sample_run

from sortal.errors import InputError
from sortal.images.decoding import decode
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import extract
from sortal.research import figures
from sortal.research.figures import FIGURES, FiguresResult, LeftOutError, attention, draw, samples, scatter, style, tsne
from sortal.reviews.loading import load_run
from sortal.runs.facts import ImageSource
from sortal.runs.run import INITIAL, Run
from sortal.system.progress import Runtime

EACH, LABELLED = 8, 4  # images of a class
VIT: dict[str, Any] = {"backbone": "test_vit", "weights": "random"}
HEADS = 2  # attention heads of that network

pytestmark = pytest.mark.usefixtures("quickly")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, quickly: None) -> Path:
    """Write images and a run that trained a tiny transformer on them."""
    folder = tmp_path_factory.mktemp("made")
    truth = tiny.write(folder / "images", tiny.planted(EACH, LABELLED))
    labels = [tiny.label_of(file) for file in truth]
    table = tiny.write_table(folder / "labels.csv", [*truth], labels, [*truth.values()])
    tiny.sort(folder / "images", folder / "run", labels=table, views=2, k="auto", held_out=0.0, **VIT)
    return folder


@pytest.fixture
def trained(made: Path, tmp_path: Path) -> Run:
    """Copy the run and its images."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    found = load_run(tmp_path / "run")
    sources = tuple(replace(source, folder=str(tmp_path / "images")) for source in found.facts.images)
    return replace(found, facts=replace(found.facts, images=sources))


def maps_of(drawn: Figure) -> list[NDArray[np.float64]]:
    return [np.asarray(a.images[1].get_array()) for a in drawn.axes if str(a.get_label()).startswith("head")]


def panels_of(drawn: Figure) -> dict[str, NDArray[np.float64]]:
    """Return the positions of all points in each panel."""
    return {
        str(axes.get_label()): np.concatenate([np.asarray(each.get_offsets()) for each in axes.collections])
        for axes in drawn.axes
    }


@pytest.mark.thorough
def test_attention_is_that_of_the_network_before_and_after_training(trained: Run) -> None:
    """Computed from the initial weights of the run, and from its cached pixels or, without these, unchanged files."""
    images, file = Path(str(trained.facts.images[0].folder)), trained.assignments.files[7]
    pixels = decode((images / file).read_bytes(), shorter_side=256).rgb[None, 16:240, 16:240]
    networks = load_backbone("test_vit", weights="random", seed=0), load_backbone(str(trained.folder / "model.json"))
    before, after = (net.attention(net.normalise(torch.from_numpy(pixels.copy())))[0].numpy() for net in networks)
    assert not np.allclose(before, after, rtol=1e-5, atol=0)

    def found() -> NDArray[np.float64]:
        return np.array(maps_of(attention(trained, images=[file], runtime=CPU)))

    images.rename(images.with_name("away"))
    in_run = found()
    assert_allclose(in_run, np.concatenate([before, after]), rtol=1e-5)
    images.with_name("away").rename(images)
    shutil.rmtree(trained.cache / "pixels")
    assert np.array_equal(found(), in_run)
    shutil.rmtree(trained.cache / "pixels")
    tiny.save(images / file, tiny.noise(0))
    with pytest.raises(LeftOutError, match=f"The pixels of 1 image are neither .* nor in an unchanged file: '{file}'"):
        found()


@pytest.mark.thorough
def test_raw_and_fine_tuned_features_are_placed_side_by_side(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(scatter, "place", lambda x, seed, device: np.stack([np.arange(len(x))] * 2, axis=1))
    calls = tiny.spy(monkeypatch, scatter, "place")
    runtime = replace(CPU, progress=lambda what, done, total: steps.append(what))
    options: Any = {"points": 20, "seed": 3, "runtime": runtime}
    drawn = tsne(trained, **options)
    panels = panels_of(drawn)
    assert [*panels] == ["Raw features", "Fine-tuned features"]
    assert np.array_equal(panels["Raw features"], panels["Fine-tuned features"])  # the same images in the same order
    colours = [[np.asarray(c.get_facecolor()).tolist() for c in axes.collections] for axes in drawn.axes]
    assert colours[0] == colours[1]
    order, placed = samples.sampling_order(trained, 3)[:20], [x for x, *_ in calls]
    assert_allclose(placed[1], trained.features[order])
    backbone = load_backbone("test_vit", weights="random", seed=0)
    raw = extract(backbone, trained.images(), normalise=True, runtime=CPU)
    assert_allclose(placed[0], raw[order], atol=1e-5)
    assert not np.allclose(placed[0], placed[1], atol=1e-3)
    assert drawn.get_supxlabel().startswith("20 of 48 images, the same in both panels, by true class")
    assert "Computing features" not in steps, "training began with the raw features, which are cached"


@pytest.mark.thorough
def test_without_images_the_figures_that_need_them_are_left_out(trained: Run, tmp_path: Path) -> None:
    shutil.rmtree(trained.cache / "pixels")
    shutil.rmtree(Path(str(trained.facts.images[0].folder)))
    notes: list[str] = []
    drawn = draw(trained, tmp_path / "out", runtime=replace(CPU, note=notes.append), formats=["png"])
    assert [*drawn.left_out] == ["attention"]
    assert drawn.left_out["attention"].startswith("The pixels of 6 images are neither in")
    assert [path.stem for path in drawn.files] == ["tsne", "k-curve", "risk-coverage", "legacy"]
    (note,) = notes
    assert note.startswith("t-SNE shows one set of features. The pixels of 48 images are neither")
    caption = tsne(trained, runtime=CPU).get_supxlabel().replace("\n", " ")
    assert caption.endswith("Raw features are no longer available.")


@pytest.mark.thorough
def test_images_given_as_an_array_are_drawn_from_the_cache(tmp_path: Path) -> None:
    """A run without training is shown once."""
    array, notes = tiny.as_array(), list[str]()
    found = tiny.sort(array.select(np.arange(len(array)) % 4 == 0), tmp_path / "run", method="kmeans", **VIT)
    page, places = (figure(found, runtime=replace(CPU, note=notes.append)) for figure in (attention, tsne))
    assert len(maps_of(page)) == 6 * HEADS
    assert [*panels_of(places)] == ["Features"]
    texts = [*notes, *(drawn.get_supxlabel().replace("\n", " ") for drawn in (page, places))]
    assert ["This run did not train its backbone." in each for each in texts] == [True] * 4
    shutil.rmtree(found.cache / "pixels")
    with pytest.raises(LeftOutError, match="were given as an array, so they have no files"):
        attention(found, runtime=CPU)


@pytest.mark.thorough
def test_damaged_or_missing_initial_weights_are_reported(trained: Run) -> None:
    path, notes = trained.folder / INITIAL, list[str]()
    initial, whole = load_file(path), path.read_bytes()
    name = next(iter(initial))
    for damaged in (whole[:-10], save({"x": initial[name]}), save({**initial, name: initial[name][:-1].clone()})):
        path.unlink()  # it may be linked to the file of other tests
        path.write_bytes(damaged)
        with pytest.raises(LeftOutError, match=r"initial\.safetensors' is damaged: .*overwriting it"):
            attention(trained, runtime=CPU)
    path.unlink()  # as in older runs
    page, places = (figure(trained, runtime=replace(CPU, note=notes.append)) for figure in (attention, tsne))
    assert len(maps_of(page)) == 6 * HEADS
    assert [*panels_of(places)] == ["Fine-tuned features"]
    assert all("does not have the weights from before training (initial.safetensors)" in note for note in notes)


def test_figures_that_a_run_does_not_support_are_left_out_with_a_reason(tmp_path: Path) -> None:
    """The network has no class token, k was given, and there is no truth."""
    tiny.write(tmp_path / "images", tiny.planted(4, 2))
    found = tiny.sort(tmp_path / "images", tmp_path / "run")
    drawn = draw(found, runtime=CPU)
    assert [*drawn.left_out] == ["attention", "k-curve", "risk-coverage", "legacy"]
    assert drawn.left_out["attention"] == "convnet has no class token, so it has no attention to show."
    assert [path.name for path in drawn.files] == ["tsne.png", "tsne.svg"]
    assert [*panels_of(tsne(found, runtime=CPU))] == ["Raw features", "Fine-tuned features"]
    nothing = draw(found, tmp_path / "nothing", which=["attention"], runtime=CPU)
    assert (nothing.files, nothing.out.exists()) == ((), False)


@pytest.fixture(scope="module")
def first(made: Path, tmp_path_factory: pytest.TempPathFactory) -> FiguresResult:
    """Draw all figures of a copy of the trained run into its folder, without pyplot."""
    folder = shutil.copytree(made / "run", tmp_path_factory.mktemp("first") / "run")
    with patch.dict(sys.modules, {"matplotlib.pyplot": None}):
        return draw(load_run(folder), runtime=CPU)


@pytest.mark.thorough
def test_all_figures_are_drawn_into_the_run(first: FiguresResult) -> None:
    assert (first.left_out, first.out.parts[-2:]) == ({}, ("run", "figures"))
    assert [path.name for path in first.files] == [f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")]
    assert set(first.out.iterdir()) == {*first.files}
    for path in first.files:
        check(path)


def check(path: Path) -> None:
    """Check that a file has the format of its name, is complete, has a white background and no external links."""
    if path.suffix == ".png":
        with Image.open(path) as image:
            image.load()
            assert min(image.size) > 800
            assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
            assert image.info["Software"] == "sortal figures"
        return
    root = ElementTree.fromstring(path.read_bytes())
    assert root.tag.endswith("svg")
    links = [value for each in root.iter() for name, value in each.attrib.items() if name.endswith("href")]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert not [word for word in (b"dc:date", b"font-family") if word in path.read_bytes()], "text is drawn as shapes"


@pytest.mark.thorough
def test_the_same_run_gives_the_same_bytes_under_any_matplotlib_settings(trained: Run, first: FiguresResult) -> None:
    steps: list[str] = []
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "none", "text.usetex": True}):
        again = draw(trained, runtime=replace(CPU, progress=lambda what, done, total: steps.append(what)))
        assert matplotlib.rcParams["font.size"] == 30
    assert [path.read_bytes() for path in again.files] == [path.read_bytes() for path in first.files]
    assert [what for what in steps if what.startswith("Drawing ")] == [f"Drawing {name}" for name in FIGURES]
    other = draw(trained, seed=1, which=["attention", "tsne"], formats=["svg"], runtime=CPU)
    assert [path.name for path in other.files] == ["tsne.svg", "attention.svg"]
    assert all(path.read_bytes() != (first.out / path.name).read_bytes() for path in other.files)


def small(folder: Path, images: Path = Path("/pictures")) -> Run:
    """Make a run that is quick to draw."""
    found = sample_run()
    source = ImageSource(folder=str(images), images=len(found.assignments), paths={})
    return replace(found, folder=folder, facts=replace(found.facts, images=(source,)))


def quick(found: Run, out: Path | None = None, **changes: Any) -> FiguresResult:
    return draw(found, out, **{"which": ["k-curve"], "formats": ["svg"], "runtime": CPU, **changes})


def test_only_earlier_figures_are_replaced(tmp_path: Path) -> None:
    out, found = tmp_path / "out", small(tmp_path)
    (first,) = quick(found, out).files
    (out / "k-curve.png").write_bytes(b"somebody's own")
    before = first.read_bytes()
    quick(replace(found, k=replace(found.k, k=7)), out)
    assert first.read_bytes() != before
    assert (out / "k-curve.png").read_bytes() == b"somebody's own"
    with pytest.raises(InputError, match=r"k-curve.png' is not a figure of Sortal, so it is not replaced.*force=True"):
        quick(found, out, formats=["png", "svg"])
    assert first.read_bytes() != before  # nothing was written
    quick(found, out, formats=["png", "svg"], force=True)
    assert first.read_bytes() == before
    check(out / "k-curve.png")
    quick(found, out, formats=["png"])  # now it is a figure of Sortal
    assert sorted(path.name for path in out.iterdir()) == ["k-curve.png", "k-curve.svg"]


@pytest.mark.thorough
@pytest.mark.parametrize("force", [False, True])
def test_what_appears_while_figures_are_drawn_is_not_replaced(
    tmp_path: Path, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, found, render = tmp_path / "out", small(tmp_path), style.render

    def late(*values: Any) -> bytes:
        (out / "k-curve.svg").unlink()
        (out / "k-curve.svg").write_bytes(b"somebody's own")
        return render(*values)

    (first,) = quick(found, out).files
    monkeypatch.setattr(style, "render", late)
    with pytest.raises(InputError, match="something else has been written there meanwhile, and stays"):
        quick(found, out, force=force)
    assert first.read_bytes() == b"somebody's own"
    assert os.listdir(out) == ["k-curve.svg"]


def test_figures_do_not_leave_the_run_by_a_link(tmp_path: Path) -> None:
    found, victim = small(tmp_path), tmp_path / "victim"
    victim.mkdir()
    found.folder.mkdir(exist_ok=True)
    os.symlink(victim, found.folder / "figures")
    with pytest.raises(InputError, match="figures' is a link to"):
        quick(found)
    assert os.listdir(victim) == []


@pytest.mark.thorough
def test_the_pixels_of_a_benchmark_come_from_the_cache_that_is_named(tmp_path: Path) -> None:
    """Its images may be rows of an archive, which have no files."""
    array = tiny.as_array()
    found = tiny.sort(array.select(np.arange(len(array)) % 4 == 0), tmp_path / "run", method="kmeans", **VIT)
    shutil.move(found.cache, tmp_path / "shared")
    assert "attention" in quick(found, tmp_path / "a", which=["attention"]).left_out
    drawn = quick(found, tmp_path / "b", which=["attention"], cache=tmp_path / "shared")
    assert [path.name for path in drawn.files] == ["attention.svg"]
    with pytest.raises(InputError, match=r"The cache must be a folder, got '.*nowhere'\. Give OUT/cache/DATASET"):
        quick(found, tmp_path / "c", cache=tmp_path / "nowhere")


def test_invalid_options_are_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"which": ["k-curve", "tnse"]},
            "which must be a list of one or more of tsne, attention, k-curve, risk-coverage",
        ),
        ({"which": []}, "got an empty one"),
        ({"which": "tsne"}, "got 'tsne'"),
        ({"formats": ["pdf"]}, r"formats must be a list of one or more of png, svg, got 'pdf'"),
        ({"images": ["nobody.jpg"]}, "images must be file names of the run, .* got 'nobody.jpg'"),
        ({"runtime": Runtime(device="gpu")}, "device must be"),
    ]
    for changes, words in wrong:
        with pytest.raises(InputError, match=words):
            quick(small(tmp_path), tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_an_invalid_output_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"Figures go into a folder, got .*file', which is a file"):
        quick(small(tmp_path), tmp_path / "file")
    with pytest.raises(InputError, match=r"cannot be written: Not a directory"):
        quick(small(tmp_path), tmp_path / "file" / "below")
    assert (tmp_path / "file").read_bytes() == b"mine"
    (tmp_path / "out" / "k-curve.svg").mkdir(parents=True)
    with pytest.raises(InputError, match=r"A figure must be a file, got .*k-curve.svg', which is a folder"):
        quick(small(tmp_path), tmp_path / "out", force=True)
    assert quick(small(tmp_path), tmp_path / "out", formats=["png"]).files == (tmp_path / "out" / "k-curve.png",)

    pictures = tmp_path / "pictures"
    among = small(pictures / "run", pictures)
    for place in (pictures / "photos", pictures / "photos" / "deep"):
        with pytest.raises(InputError, match="Figures must be outside the images of the run"):
            quick(among, place)
    assert quick(among, pictures / "figures").files
    assert quick(replace(among, folder=pictures / "photos" / "run")).files  # the folder of the run is allowed


@pytest.mark.parametrize(
    "content", [pytest.param(b"font.size: 77\n\xff", marks=pytest.mark.thorough), None], ids=["damaged", "a pipe"]
)
def test_settings_in_the_current_folder_are_ignored(tmp_path: Path, content: bytes | None) -> None:
    """Those of the person are matplotlib's business; figures have a style of their own."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "matplotlibrc").write_text("font.size: 33")
    if content is not None:
        (tmp_path / "matplotlibrc").write_bytes(content)
    elif hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "matplotlibrc")
    code = "import sortal.research.figures, matplotlib; print(matplotlib.rcParams['font.size'])"
    env = {**os.environ, "MATPLOTLIBRC": str(tmp_path / "own")}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == ("33.0\n", 0), done.stderr


def test_settings_that_matplotlib_cannot_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.delitem(sys.modules, "matplotlib")
    monkeypatch.setattr(figures, "import_module", fail)
    with pytest.raises(InputError, match=r"settings .*MATPLOTLIBRC.*invalid start byte"):
        figures.import_matplotlib()
