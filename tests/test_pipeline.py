"""From a folder to sorted categories, whole: what is found, what is kept, and what is refused."""

from __future__ import annotations

import json
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_folder as tiny
from numpy.typing import NDArray
from tiny_folder import EACH, LABELLED, NEW, OLD, SETTINGS, sort

from sortal import cli, metrics, outcome, run, sorting, whole
from sortal.backbone import load_backbone
from sortal.errors import InputError
from sortal.estimate import estimate_k
from sortal.features import extract
from sortal.images import ImageSet, image_set
from sortal.kmeans import SemiSupervisedKMeans
from sortal.pipeline import discover
from sortal.run import Run
from sortal.segments import write_atomically
from sortal.step import Step
from sortal.train import train
from sortal.trunk import Frozen
from sortal.workers import Job

N = 6 * EACH
HELD = 3 * (LABELLED // 2)


@dataclass(frozen=True)
class Sorted:
    """Images, and the run that sorted them."""

    images: Path
    truth: dict[str, str]
    run: Run

    @property
    def out(self) -> Path:
        return self.run.folder


@pytest.fixture(scope="module", autouse=True)
def _quickly() -> Iterator[None]:
    with tiny.quickly():
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, _quickly: None) -> Sorted:
    """Sorted once; nothing may be changed here."""
    folder = tmp_path_factory.mktemp("base")
    truth = tiny.write(folder / "images")
    return Sorted(folder / "images", truth, sort(folder / "images", folder / "run"))


@pytest.fixture
def copied(base: Sorted, tmp_path: Path) -> Sorted:
    """The same images, and a copy of the run with all that it kept."""
    shutil.copytree(base.out, tmp_path / "run")
    return replace(base, run=run.load(tmp_path / "run"))


def categories_of(found: Run) -> dict[str, str]:
    """The name of each file's category."""
    a = found.assignments
    return {file: found.names[j] for file, j in zip(a.files, a.category.tolist(), strict=True)}


def same_groups(found: Run, truth: dict[str, str]) -> bool:
    """Whether categories are classes, whatever they are called."""
    pairs = {(name, truth[file]) for file, name in categories_of(found).items()}
    return len(pairs) == len({name for name, _ in pairs}) == len({name for _, name in pairs})


def tables(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "assignments.csv").read_bytes(), (folder / "categories.csv").read_bytes()


# What is found


def test_planted_classes_are_found(base: Sorted) -> None:
    assert same_groups(base.run, base.truth)
    for file, name in categories_of(base.run).items():
        if base.truth[file] in OLD:
            assert name == base.truth[file]
    assert base.run.names == (*OLD, "new 1", "new 2", "new 3")


def test_every_image_is_in_one_category_and_sizes_sum_up(base: Sorted) -> None:
    rows = tiny.rows_of(base.out / "assignments.csv")
    sizes = Counter(row["category"] for row in rows)
    categories = tiny.rows_of(base.out / "categories.csv")
    assert sorted(row["file_name"] for row in rows) == sorted(base.truth)
    assert {row["id"]: int(row["size"]) for row in categories} == sizes
    assert [category.size for category in base.run.categories] == [sizes[str(j)] for j in range(6)]
    assert sum(sizes.values()) == N
    assert {(row["category"], row["category_name"]) for row in rows} == {(r["id"], r["name"]) for r in categories}
    for column, status in (("labelled", "labelled"), ("unsure", "unsure")):
        counted = Counter(row["category"] for row in rows if row["status"] == status)
        assert {row["id"]: int(row[column]) for row in categories} == {str(j): counted[str(j)] for j in range(6)}


def test_what_is_loaded_is_what_was_found(base: Sorted) -> None:
    again = run.load(base.out)
    assert again.categories == base.run.categories
    assert again.assignments.files == base.run.assignments.files
    np.testing.assert_array_equal(again.assignments.category, base.run.assignments.category)
    np.testing.assert_array_equal(again.assignments.status, base.run.assignments.status)
    np.testing.assert_array_equal(again.features, base.run.features)
    np.testing.assert_array_equal(again.centres, base.run.centres)
    assert (again.k, again.confidence, again.metrics) == (base.run.k, base.run.confidence, None)
    assert again.about == json.loads(json.dumps(base.run.about))


@pytest.mark.parametrize("unsure_below", [0.0, 0.999, 1.0])
def test_statuses_say_what_confidence_and_kind_do(copied: Sorted, unsure_below: float) -> None:
    found = sort(copied.images, copied.out, method="kmeans", held_out=0, unsure_below=unsure_below)
    rows = tiny.rows_of(copied.out / "assignments.csv")
    kinds = {row["id"]: row["kind"] for row in tiny.rows_of(copied.out / "categories.csv")}
    statuses = Counter(row["status"] for row in rows)
    assert statuses == Counter(found.counts())
    assert statuses["labelled"] == 3 * LABELLED
    assert (statuses["unsure"] > 0) == (unsure_below > 0)
    assert (statuses["known"] > 0) == (statuses["new"] > 0) == (unsure_below < 1)
    for row in rows:
        confidence = float(row["confidence"])
        assert 0 <= confidence <= 1
        if row["status"] == "labelled":
            assert (confidence, row["category_name"]) == (1, row["label"])
        elif row["status"] == "unsure":
            assert confidence <= unsure_below
        else:
            assert row["status"] == kinds[row["category"]]
            assert confidence >= unsure_below
        assert row["category"] != row["next_category"]


class Calls:
    """What stages were given."""

    labels: dict[str, NDArray[np.int64]]
    held: NDArray[np.bool_]
    clusters: NDArray[np.int64]
    found: Run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    calls.labels = {}
    fit, gather = SemiSupervisedKMeans.fit, outcome.gather

    def trained(method: Any, images: ImageSet, *values: Any, **named: Any) -> Any:
        calls.labels["train"] = images.labels
        assert not images.validation.any()
        return train(method, images, *values, **named)

    def estimated(x: Any, labels: Any, **named: Any) -> Any:
        calls.labels["k"] = labels
        return estimate_k(x, labels, **named)

    def fitted(self: SemiSupervisedKMeans, x: Any, labels: Any) -> Any:
        calls.labels["clusters"] = labels
        return fit(self, x, labels)

    def gathered(job: Any, images: ImageSet, held: Any, x: Any, clusters: Any, *values: Any) -> Run:
        calls.held, calls.clusters = held, clusters
        calls.found = gather(job, images, held, x, clusters, *values)
        return calls.found

    monkeypatch.setattr(sorting, "train", trained)
    monkeypatch.setattr(sorting, "estimate_k", estimated)
    monkeypatch.setattr(SemiSupervisedKMeans, "fit", fitted)
    monkeypatch.setattr(outcome, "gather", gathered)
    return calls


def test_held_out_labels_are_kept_from_learning_k_and_clusters(copied: Sorted, calls: Calls) -> None:
    shutil.rmtree(copied.out / "cache/clusters")
    found = sort(copied.images, copied.out, k="auto")
    labelled = np.array([label is not None for label in found.assignments.labels])
    assert calls.held.sum() == HELD == found.confidence["held_out"]
    assert (labelled | ~calls.held).all()
    assert calls.labels.keys() == {"train", "k", "clusters"}
    for labels in calls.labels.values():
        np.testing.assert_array_equal(labels >= 0, labelled & ~calls.held)
    counts = Counter(label for label, held in zip(found.assignments.labels, calls.held, strict=True) if held)
    assert counts == dict.fromkeys(OLD, LABELLED // 2)


def test_nothing_is_held_out_where_that_was_asked_for(copied: Sorted, calls: Calls) -> None:
    found = sort(copied.images, copied.out, held_out=0)
    assert not calls.held.any()
    assert (calls.labels["train"] >= 0).sum() == 3 * LABELLED
    assert not found.confidence["calibrated"]


def test_a_labelled_image_stays_in_its_class_wherever_it_would_be_put(tmp_path: Path, calls: Calls) -> None:
    """Some images of a new class are labelled as an old one: those held out are clustered with their looks."""
    files = tiny.planted()
    wrong = {f"ash/elm {number}.png": f"elm {100 + number}" for number in range(4)}
    tiny.write(tmp_path / "images", {**files, **wrong})
    found = sort(tmp_path / "images", tmp_path / "run", method="kmeans")
    a = found.assignments
    labelled = np.array([label is not None for label in a.labels])
    assert [found.names[j] for j in a.category[labelled]] == [label for label in a.labels if label is not None]
    assert set(a.status[labelled]) == {"labelled"}
    assert (a.confidence[labelled] == 1).all()
    assert (calls.clusters != a.category)[calls.held].any()
    assert (calls.clusters == a.category)[~calls.held].all()
    assert found.categories[0].size == Counter(categories_of(found).values())["ash"]


def test_an_unlabelled_image_is_in_the_nearest_category(base: Sorted) -> None:
    a = base.run.assignments
    free = a.status != "labelled"
    x, centres = np.asarray(base.run.features, dtype=np.float64), base.run.centres.astype(np.float64)
    distances = np.linalg.norm(x[:, None] - centres[None], axis=2)
    np.testing.assert_array_equal(distances.argmin(axis=1)[free], a.category[free])
    own = distances[np.arange(N), a.category]
    np.testing.assert_allclose(own, a.distance, atol=1e-6)
    distances[np.arange(N), a.category] = np.inf
    np.testing.assert_array_equal(distances.argmin(axis=1), a.next_category)
    np.testing.assert_allclose(distances.min(axis=1), a.next_distance, atol=1e-6)


@pytest.mark.parametrize("k", [6, "auto"])
def test_the_order_of_rows_is_nothing(copied: Sorted, tmp_path: Path, k: Any) -> None:
    files = [*copied.truth]
    shuffled = [files[i] for i in np.random.default_rng(0).permutation(N)]
    rows = []
    for name, order in (("one", files), ("other", shuffled)):
        table = tiny.write_table(tmp_path / f"{name}.csv", order, [tiny.label_of(file) for file in order])
        shutil.rmtree(copied.out / "cache/learn")
        found = sort(copied.images, copied.out, labels=table, k=k)
        assert found.assignments.files == tuple(order)
        assert found.k["k"] == len(found.categories)
        rows.append(sorted(tiny.rows_of(copied.out / "assignments.csv"), key=lambda row: row["file_name"]))
    assert rows[0] == rows[1]


# What is kept


def never(*_: object, **__: object) -> Any:
    raise AssertionError("this was done before")


@pytest.fixture
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """No image is read, no step is made, no feature computed."""
    for name in ("sortal.check.run", "sortal.packing.run"):
        monkeypatch.setattr(name, only(0))
    monkeypatch.setattr(Step, "__call__", never)
    monkeypatch.setattr(Frozen, "__call__", never)
    monkeypatch.setattr("sortal.features._Cache.add", never)


def only(n: int) -> Callable[..., Iterator[Any]]:
    """Let no more than some images be read."""
    from sortal.workers import run as read

    def reading(task: Any, jobs: Any, **options: Any) -> Iterator[Any]:
        wanted: list[Job] = list(jobs)
        assert len(wanted) <= n, "images were read before"
        return read(task, wanted, **options)

    return reading


@pytest.mark.usefixtures("nothing_learned")
def test_another_k_learns_and_computes_nothing(copied: Sorted) -> None:
    found = sort(copied.images, copied.out, k=8)
    assert len(found.categories) == found.k["k"] == 8
    assert sum(category.size for category in found.categories) == N
    assert len(tiny.rows_of(copied.out / "categories.csv")) == 8
    assert found.about["hashes"] == copied.run.about["hashes"]


@pytest.mark.usefixtures("nothing_learned")
def test_the_same_again_is_all_used_again(copied: Sorted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SemiSupervisedKMeans, "fit", never)
    before = tables(copied.out)
    sort(copied.images, copied.out)
    assert tables(copied.out) == before
    sort(copied.images, copied.out, unsure_below=0.99)  # which only what is said of images depends on
    assert tiny.strict_json(copied.out / "confidence.json")["unsure_below"] == 0.99


def test_an_estimate_of_k_is_kept(copied: Sorted, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sort(copied.images, copied.out, k="auto")
    assert first.k["estimated"]
    assert first.k["known"] == 3 <= first.k["interval"][0] <= first.k["k"] <= first.k["interval"][1] <= 12
    assert first.k["k"] in {at["k"] for at in first.k["curve"]}
    before = tables(copied.out)
    monkeypatch.setattr("sortal.estimate._Fold.scores", never)
    again = sort(copied.images, copied.out, k="auto")
    assert again.k == first.k
    assert tables(copied.out) == before


def count(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    calls: list[int] = []
    call = getattr(owner, name)

    def counted(*values: Any, **named: Any) -> Any:
        calls.append(1)
        return call(*values, **named)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_other_epochs_train_anew_and_the_first_ones_are_kept(copied: Sorted, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count(monkeypatch, Step, "__call__")
    before, model = tables(copied.out), (copied.out / "model.safetensors").read_bytes()
    found = sort(copied.images, copied.out, epochs=1)
    assert len(steps) == 1
    assert found.about["training"]["epochs"] == 1
    assert (copied.out / "model.safetensors").read_bytes() != model
    sort(copied.images, copied.out)
    assert len(steps) == 1
    assert tables(copied.out) == before
    assert (copied.out / "model.safetensors").read_bytes() == model


def test_another_learning_rate_is_another_training(copied: Sorted, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count(monkeypatch, Step, "__call__")
    usual = copied.run.about["recipe"]["training"]["lr"]
    found = sort(copied.images, copied.out, lr=usual / 5)
    assert len(steps) == 2
    assert found.about["recipe"]["training"]["lr"] == usual / 5
    assert found.about["hashes"]["model"] != copied.run.about["hashes"]["model"]
    assert sort(copied.images, copied.out, lr=usual).about["hashes"] == copied.run.about["hashes"]
    assert len(steps) == 2  # which is what it was before


def test_another_seed_is_another_run(copied: Sorted, monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    sort(copied.images, copied.out)
    held = calls.held
    steps = count(monkeypatch, Step, "__call__")
    found = sort(copied.images, copied.out, seed=1)
    assert len(steps) == 2
    assert (calls.held != held).any()
    assert calls.held.sum() == HELD
    assert found.about["hashes"]["model"] != copied.run.about["hashes"]["model"]
    assert found.about["hashes"]["images"] == copied.run.about["hashes"]["images"]


def test_the_same_elsewhere_is_the_same(base: Sorted, tmp_path: Path) -> None:
    found = sort(base.images, tmp_path / "other")
    assert tables(tmp_path / "other") == tables(base.out)
    assert found.about["hashes"] == base.run.about["hashes"]


def test_an_added_image_redoes_what_depends_on_it(
    tmp_path: Path, base: Sorted, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(base.images, tmp_path / "images")
    sort(tmp_path / "images", tmp_path / "run")
    tiny.save(tmp_path / "images/unlabelled/one more.png", tiny.picture("holly", 77))
    steps = count(monkeypatch, Step, "__call__")
    monkeypatch.setattr("sortal.packing.run", only(1))
    found = sort(tmp_path / "images", tmp_path / "run")
    assert len(steps) == 2
    assert len(found.assignments) == N + 1 == sum(category.size for category in found.categories)
    named = categories_of(found)
    holly = [file for file, name in base.truth.items() if name == "holly"]
    assert {named[file] for file in holly} == {named["unlabelled/one more.png"]}


def test_a_changed_label_redoes_what_depends_on_it(
    tmp_path: Path, base: Sorted, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(base.images, tmp_path / "images")
    sort(tmp_path / "images", tmp_path / "run")
    elms = [file for file, name in base.truth.items() if name == "elm"]
    for number, file in enumerate(elms[:10]):
        (tmp_path / "images/elm").mkdir(exist_ok=True)
        (tmp_path / "images" / file).rename(tmp_path / f"images/elm/{number}.png")
    steps = count(monkeypatch, Step, "__call__")
    computed = count(monkeypatch, Frozen, "__call__")
    found = sort(tmp_path / "images", tmp_path / "run")
    assert len(steps) == 2
    assert computed
    assert [(category.name, category.kind) for category in found.categories[:4]] == [
        (name, "known") for name in ("ash", "beech", "cedar", "elm")
    ]
    assert found.counts()["labelled"] == 3 * LABELLED + 10
    assert found.about["classes"] == ["ash", "beech", "cedar", "elm"]
    assert {categories_of(found)[file] for file in elms[10:]} == {"elm"}


@pytest.mark.parametrize("what", ["check", "clusters", "k"])
@pytest.mark.parametrize("how", [b"", b"{"])
def test_what_was_kept_and_is_damaged_is_made_again(copied: Sorted, what: str, how: bytes) -> None:
    before = sort(copied.images, copied.out, k="auto")
    written = tables(copied.out)
    for path in (copied.out / "cache" / what).iterdir():
        path.write_bytes(how)
    again = sort(copied.images, copied.out, k="auto")
    assert tables(copied.out) == written
    assert again.k == before.k


def test_a_run_needs_no_cache_once_it_is_there(copied: Sorted) -> None:
    shutil.rmtree(copied.out / "cache")
    before = tables(copied.out)
    sort(copied.images, copied.out)
    assert tables(copied.out) == before


# The truth


def test_metrics_are_those_of_the_truth(copied: Sorted, tmp_path: Path) -> None:
    """Of 8 categories for 6 classes, so that some images are wrong; counted again by the library's own metrics."""
    files = [*copied.truth]
    labels = [tiny.label_of(file) for file in files]
    table = tiny.write_table(tmp_path / "labels.csv", files, labels, [*copied.truth.values()])
    found = sort(copied.images, tmp_path / "run", labels=table, k=8)
    rows = [row for row in tiny.rows_of(tmp_path / "run/assignments.csv") if row["status"] != "labelled"]
    truth, category = [row["truth"] for row in rows], [row["category"] for row in rows]
    wanted = metrics.accuracy(truth, category, old=OLD)
    said = tiny.strict_json(tmp_path / "run/metrics.json")
    assert said == found.metrics
    assert said["accuracy"] == vars(wanted)
    assert wanted.all is not None
    assert wanted.all < 1
    assert said["legacy"] == vars(metrics.legacy_accuracy(truth, category, old=OLD))
    assert (said["nmi"], said["ari"]) == (metrics.nmi(truth, category), metrics.ari(truth, category))
    names = [row["category_name"] for row in rows]
    assert said["known_accuracy"] == metrics.known_accuracy(truth, names, old=OLD)
    assert (said["images"], said["k_true"]) == (N - 3 * LABELLED, 6)
    assert sum(cell[2] for cell in said["confusion"]) == 3 * (EACH - LABELLED)
    matched = metrics.match(truth, category, old=OLD)
    right = [matched.get(j) == t for j, t in zip(category, truth, strict=True)]
    assert said["risk_coverage"]["all"][-1][:2] == [1, pytest.approx(np.mean(right), abs=1e-6)]
    assert sum(part["images"] for part in said["reliability"]) == len(rows)


def test_metrics_are_there_with_the_truth_and_only_then(copied: Sorted, tmp_path: Path) -> None:
    assert copied.run.metrics is None
    assert not (copied.out / "metrics.json").exists()
    files = [*copied.truth]
    labels, table = [tiny.label_of(file) for file in files], tmp_path / "labels.csv"
    truth = [None if number % 2 else name for number, name in enumerate(copied.truth.values())]
    truth = [label or name for label, name in zip(labels, truth, strict=True)]
    tiny.write_table(table, files, labels, truth)
    found = sort(copied.images, tmp_path / "run", labels=table)
    assert found.metrics is not None
    unlabelled = [name for label, name in zip(labels, truth, strict=True) if label is None]
    assert found.metrics["images"] == sum(name is not None for name in unlabelled) < len(unlabelled)
    before = [{**row, "truth": ""} for row in tiny.rows_of(tmp_path / "run/assignments.csv")]
    tiny.write_table(table, files, labels)
    found = sort(copied.images, tmp_path / "run", labels=table)
    assert found.metrics is None
    assert not (tmp_path / "run/metrics.json").exists()
    assert [{**row, "truth": ""} for row in tiny.rows_of(tmp_path / "run/assignments.csv")] == before


def test_the_truth_changes_nothing_but_the_metrics(copied: Sorted, tmp_path: Path) -> None:
    files = [*copied.truth]
    labels = [tiny.label_of(file) for file in files]
    rows = []
    for seed in (0, 1):  # of which one is made up
        truth = np.random.default_rng(seed).permutation(np.array(files, dtype=object)).tolist()
        told = [label or f"class {name}" for label, name in zip(labels, truth, strict=True)]
        table = tiny.write_table(tmp_path / "labels.csv", files, labels, told)
        sort(copied.images, tmp_path / "run", labels=table, k="auto")
        rows.append([{**row, "truth": ""} for row in tiny.rows_of(tmp_path / "run/assignments.csv")])
    assert rows[0] == rows[1]


# Settings


def test_kmeans_takes_the_features_as_they_are(copied: Sorted, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (copied.out / "log.jsonl").exists()
    monkeypatch.setattr(sorting, "train", never)
    found = sort(copied.images, copied.out, method="kmeans")
    assert found.about["training"] is None
    assert not (copied.out / "log.jsonl").exists()  # that of the run before
    backbone = load_backbone("convnet")
    x = extract(backbone, found.images(), normalise=True, device="cpu", precision="float32")
    np.testing.assert_array_equal(found.features, x)
    saved = load_backbone(str(copied.out / "model.json"))
    assert saved.fingerprint() == backbone.fingerprint() == found.about["hashes"]["model"]
    np.testing.assert_allclose(np.linalg.norm(found.features, axis=1), 1, atol=1e-6)


def test_no_epochs_are_no_training(copied: Sorted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "train", never)
    assert sort(copied.images, copied.out, epochs=0).about["training"] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 2}, r"k must be from 3 \(the labelled classes\) to 81 .*, got 2\."),
        ({"k": 82}, r"k must be from 3 .* to 81 .*, got 82\."),
        ({"k": "auto", "k_max": 2}, r"k_max must be at least 3 \(the labelled classes\), got 2\."),
        ({"epochs": -1}, "epochs must be"),
        ({"held_out": 0.6}, "held_out must be"),
        ({"method": "k-means"}, "method must be"),
        ({"method": "uno", "epochs": 0}, "epochs must be at least 1 for uno, whose classifier must be trained, got 0"),
        ({"unsure_below": 1.1}, "unsure_below must be"),
        ({"unlabelled": "none"}, "The folder of unlabelled images, 'none', must lie in"),
    ],
)
def test_what_cannot_end_well_is_refused_before_any_work(
    base: Sorted, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        sort(base.images, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_the_most_and_the_fewest_categories(copied: Sorted) -> None:
    fewest = sort(copied.images, copied.out, k=3)
    assert fewest.names == OLD
    assert sum(category.size for category in fewest.categories) == N
    most = sort(copied.images, copied.out, k=81)
    assert len(most.categories) == 81
    assert sum(category.size for category in most.categories) == N
    assert max(category.size for category in most.categories if category.kind == "new") <= 2 * LABELLED


def test_everything_labelled_is_refused(tmp_path: Path) -> None:
    tiny.write(tmp_path / "images", {file: what for file, what in tiny.planted().items() if tiny.label_of(file)})
    with pytest.raises(InputError, match="There must be images without a label to sort, got 42 images, all labelled"):
        sort(tmp_path / "images", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_any_label_k_must_be_given(copied: Sorted, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least two classes must be labelled, got 0"):
        sort(copied.images, tmp_path / "run", folders="ignore", k="auto")
    found = sort(copied.images, tmp_path / "run", folders="ignore")
    assert found.names == tuple(f"new {number}" for number in range(1, 7))
    assert sum(category.size for category in found.categories) == N
    assert found.counts()["labelled"] == found.counts()["known"] == 0
    assert found.about["classes"] == []
    assert not found.confidence["calibrated"]
    assert any("No image is labelled" in note for note in found.about["notes"])
    assert same_groups(found, copied.truth)
    alone = sort(copied.images, tmp_path / "run", folders="ignore", k=1)
    assert set(alone.assignments.next_category) == {-1}
    assert {row["next_distance"] for row in tiny.rows_of(tmp_path / "run/assignments.csv")} == {""}


def test_classes_too_small_to_hold_out_leave_confidence_uncalibrated(tmp_path: Path) -> None:
    files = tiny.planted(labelled=1)
    tiny.write(tmp_path / "images", files)
    found = sort(tmp_path / "images", tmp_path / "run")
    assert found.confidence["calibrated"] is False
    assert found.confidence["held_out"] == 0
    said = "Confidence is not calibrated: fewer than 20 of the labelled images were to be held out"
    assert any(note.startswith(said) for note in found.about["notes"])
    assert tiny.strict_json(tmp_path / "run/run.json")["notes"] == found.about["notes"]


def test_a_class_may_be_named_as_a_new_one_would_be(tmp_path: Path) -> None:
    files = {file.replace("beech/", "new 1/"): what for file, what in tiny.planted().items()}
    tiny.write(tmp_path / "images", files)
    found = sort(tmp_path / "images", tmp_path / "run")
    assert found.names == ("ash", "cedar", "new 1", "new 2", "new 3", "new 4")
    assert [category.kind for category in found.categories] == ["known"] * 3 + ["new"] * 3


# Files that cannot be read


def test_broken_files_are_named_and_left_out(tmp_path: Path) -> None:
    """One in twenty, labelled and unlabelled ones: cut off, empty, or text."""
    truth = tiny.write(tmp_path / "images")
    broken = [*truth][::20]
    assert len(broken) == N // 20
    assert {tiny.label_of(file) is None for file in broken} == {True, False}
    tiny.break_some(tmp_path / "images", broken)
    notes: list[str] = []
    found = sort(tmp_path / "images", tmp_path / "run", on_note=notes.append)
    assert sorted(bad.file for bad in found.quarantine) == sorted(broken)
    rows = tiny.rows_of(tmp_path / "run/quarantine.csv")
    assert [row["file_name"] for row in rows] == [bad.file for bad in found.quarantine]
    assert all(row["reason"] and row["detail"] for row in rows)
    assert sorted(found.assignments.files) == sorted(set(truth) - set(broken))
    assert len(found.features) == sum(category.size for category in found.categories) == N - len(broken)
    for name in ("assignments.csv", "categories.csv"):
        for file in broken:
            assert f'"{file}"' not in (tmp_path / "run" / name).read_text()
    assert "6 files cannot be read and are left out." in notes == found.about["notes"]
    assert found.about["images"][0]["images"] == N - len(broken)
    assert run.load(tmp_path / "run").quarantine == found.quarantine
    assert same_groups(found, truth)


def test_a_class_of_which_nothing_can_be_read_is_no_class(tmp_path: Path) -> None:
    truth = tiny.write(tmp_path / "images")
    tiny.break_some(tmp_path / "images", [file for file in truth if tiny.label_of(file) == "beech"])
    found = sort(tmp_path / "images", tmp_path / "run")
    assert found.names == ("ash", "cedar", "new 1", "new 2", "new 3", "new 4")
    assert found.k["known"] == 2
    assert len(found.quarantine) == LABELLED
    assert any("No labelled image is left of the known classes" in note for note in found.about["notes"])
    assert {found.names[j] for j in found.assignments.category[found.assignments.status == "labelled"]} == {
        "ash",
        "cedar",
    }
    assert found.about["classes"] == ["ash", "cedar"]


def test_what_breaks_too_much_is_said(tmp_path: Path) -> None:
    truth = tiny.write(tmp_path / "images")
    tiny.break_some(tmp_path / "images", [file for file in truth if tiny.label_of(file) is None])
    with pytest.raises(InputError, match="There must be images without a label to sort, got 42 images"):
        sort(tmp_path / "images", tmp_path / "run")
    assert run.peek(tmp_path / "run") is None


def test_the_command_line_names_broken_files_and_exits_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = tiny.write(tmp_path / "images")
    broken = [*truth][::20]
    tiny.break_some(tmp_path / "images", broken)
    words = "--backbone convnet --epochs 1 --k 6 --n-init 1 --device cpu --workers 1"
    arguments = ["discover", str(tmp_path / "images"), "--out", str(tmp_path / "run"), *words.split()]
    assert cli.main(arguments) == 3
    out = capsys.readouterr().out
    assert "114 images: 38 labelled" in out
    for file in broken:
        assert file in out


# What is said of a run


def test_the_run_says_how_it_came_about(base: Sorted) -> None:
    said = tiny.strict_json(base.out / "run.json")
    assert said["format"] == "sortal run 1"
    wanted = {name: SETTINGS[name] for name in ("k", "backbone", "epochs", "n_init", "k_max", "held_out")}
    wanted |= {"method": "gcd", "weights": None, "lr": "auto", "views": "auto", "seed": 0, "unsure_below": 0.5}
    assert said["settings"] == wanted
    assert said["classes"] == list(OLD)
    assert said["images"] == [{"folder": str(base.images), "images": N, "paths": {}}]
    assert said["backbone"].keys() >= {"name", "image_size", "shorter_side", "width", "mean", "std"}
    assert said["training"]["epochs"] == 2
    assert set(map(type, said["training"]["losses"].values())) == {float}
    assert said["device"] == "cpu"
    assert said["versions"].keys() >= {"sortal", "python", "torch", "numpy"}
    assert said["hashes"].keys() == {"images", "features", "model"}
    assert all(int(text, 16) for text in said["hashes"].values())
    assert tuple(said["timings"]) == ("check", "pixels", "learn", "features", "k", "clusters", "report")
    assert all(seconds >= 0 for seconds in said["timings"].values())
    assert said["updates"] == []
    assert said["finished"].startswith("20")


def test_all_json_is_json_to_everybody(copied: Sorted, tmp_path: Path) -> None:
    """Also with the fewest numbers that are defined: one category, and no label."""
    assert written_json(copied.out) == {"run.json", "k.json", "confidence.json", "model.json"}
    table = tiny.write_table(tmp_path / "labels.csv", [*copied.truth], [None] * N, [*copied.truth.values()])
    found = sort(copied.images, copied.out, labels=table, k=1)
    assert found.metrics is not None
    assert found.metrics["accuracy"]["old"] is None
    assert written_json(copied.out) == {"run.json", "k.json", "confidence.json", "model.json", "metrics.json"}


def written_json(folder: Path) -> set[str]:
    """The names of JSON files, all of which are."""
    paths = [*folder.glob("*.json")]
    for path in paths:
        tiny.strict_json(path)
    assert "NaN" not in (folder / "log.jsonl").read_text()
    return {path.name for path in paths}


def test_the_command_that_is_told_gives_the_same_again(
    tmp_path: Path, copied: Sorted, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [*copied.truth]
    labels = [tiny.label_of(file) for file in files]
    table = tiny.write_table(tmp_path / "a table.csv", files[1:], labels[1:])
    odd: dict[str, Any] = {"method": "kmeans", "views": None, "seed": 3, "unsure_below": 0.25}
    found = sort(copied.images, tmp_path / "a run", labels=table, unlisted="unlabelled", **odd)
    before = tables(tmp_path / "a run")
    command = shlex.split(found.about["command"])
    assert command[0] == "sortal"
    assert cli.main([*command[1:], "--device", "cpu", "--workers", "1"]) == 0
    assert "120 images" in capsys.readouterr().out
    assert tables(tmp_path / "a run") == before
    assert run.load(tmp_path / "a run").about["settings"] == found.about["settings"]


def test_progress_tells_every_stage_in_order(base: Sorted, tmp_path: Path) -> None:
    said: list[str] = []
    sort(base.images, tmp_path / "run", k="auto", on_progress=lambda what, done, total: said.append(what))
    numbers = [what.partition("]")[0] for what in said]
    assert numbers == sorted(numbers)
    assert sorted(set(numbers)) == [f"[{number}/7" for number in range(1, 8)]


# Images that are no folder


def test_rows_of_an_array_are_sorted(tmp_path: Path) -> None:
    images = tiny.as_array()
    found = sort(images, tmp_path / "run")
    assert found.about["images"] == [{"folder": None, "images": N, "paths": {}}]
    assert found.metrics is not None
    assert found.metrics["accuracy"] == {"all": 1, "old": 1, "new": 1}
    with pytest.raises(InputError, match="were given as an array"):
        run.load(tmp_path / "run").paths()
    before = tables(tmp_path / "run")
    sort(images, tmp_path / "run")
    assert tables(tmp_path / "run") == before


def test_files_and_rows_of_an_array_of_the_same_pixels_are_sorted_alike(base: Sorted, tmp_path: Path) -> None:
    found = sort(tiny.as_array(), tmp_path / "run")
    assert same_groups(found, base.truth)
    assert found.names == base.run.names


def test_a_list_of_files_is_sorted(base: Sorted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base.images)
    files = [*base.truth]
    images = image_set(files, paths=files, labels=[tiny.label_of(file) for file in files])
    found = sort(images, tmp_path / "run")
    assert categories_of(found) == categories_of(base.run)
    monkeypatch.chdir(tmp_path)
    assert all(Path(path).is_file() for path in run.load(tmp_path / "run").paths())


# The folder of a run


def test_a_run_that_failed_at_its_beginning_can_be_repaired(base: Sorted, tmp_path: Path) -> None:
    """As where weights cannot be fetched: what was begun does not stand in the way."""
    with pytest.raises(InputError, match="nowhere"):
        sort(base.images, tmp_path / "run", weights=tmp_path / "nowhere.safetensors")
    sort(base.images, tmp_path / "run")
    assert tables(tmp_path / "run") == tables(base.out)


def test_a_folder_with_other_things_is_refused(base: Sorted, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.txt").write_text("all of it")
    with pytest.raises(InputError, match=r"must be a new or empty folder or an earlier run, .* holds 'thesis.txt'"):
        sort(base.images, tmp_path / "run")
    sort(base.images, tmp_path / "run", force=True)
    assert (tmp_path / "run/thesis.txt").read_text() == "all of it"


def test_a_run_among_its_images_is_refused(base: Sorted) -> None:
    for place in (base.images, base.images / "run"):
        with pytest.raises(InputError, match="must not lie among the images"):
            sort(base.images, place)


def test_a_run_of_other_images_is_not_written_over(copied: Sorted, tmp_path: Path) -> None:
    shutil.copytree(copied.images, tmp_path / "others")
    before = tiny.contents(copied.out)
    with pytest.raises(InputError, match="holds a run of other images"):
        sort(tmp_path / "others", copied.out)
    assert tiny.contents(copied.out) == before
    found = sort(tmp_path / "others", copied.out, force=True)
    assert found.about["images"][0]["folder"] == str(tmp_path / "others")


def test_two_runs_at_once_in_one_folder_are_refused(base: Sorted, tmp_path: Path) -> None:
    refused: list[str] = []

    def meanwhile(what: str, done: int, total: int) -> None:
        if what.startswith("[5/7]"):
            with pytest.raises(InputError, match="Another process is at work") as caught:
                sort(base.images, tmp_path / "run")
            refused.append(str(caught.value))

    sort(base.images, tmp_path / "run", on_progress=meanwhile)
    assert refused
    assert tables(tmp_path / "run") == tables(base.out)


def test_who_looks_while_a_run_is_saved_does_no_harm(copied: Sorted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether by reading the run that is there or by trying to begin another one."""
    looked: list[int] = []

    def looking(path: Path, content: bytes) -> None:
        write_atomically(path, content)
        if path.parent.name == whole.NEXT and path.name != whole.COMMIT:
            looked.append(len(run.load(copied.out).categories))
            with pytest.raises(InputError, match="Another process is at work"):
                sort(copied.images, copied.out)

    monkeypatch.setattr(whole, "write_atomically", looking)
    sort(copied.images, copied.out, k=8)
    assert set(looked) == {6}
    assert len(run.load(copied.out).categories) == 8


def test_the_folder_of_a_run_is_named_after_the_images(
    base: Sorted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = discover(base.images, **SETTINGS)
    assert found.folder.absolute() == tmp_path / "images-run"
    assert found.report.read_bytes() == tiny.PAGE


def test_new_classes_are_as_many_as_were_planted(base: Sorted) -> None:
    named = categories_of(base.run)
    for name in NEW:
        assert len({named[file] for file, true in base.truth.items() if true == name}) == 1
