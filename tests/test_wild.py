"""The benchmark of collections as they come: what each condition does to a small folder, and its tables."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_folder as tiny

from sortal import read_images
from sortal.research.benchmark.outcomes import read_outcomes

PATH = Path(__file__).parents[1] / "benchmarks/wild.py"
EACH = 24  # images of each of six classes
NETWORK = ("--backbone=convnet", "--weights=random", "--epochs=0", "--device=cpu")


@pytest.fixture(scope="module")
def wild() -> Any:
    if not PATH.exists():
        pytest.skip("the benchmarks are not here")
    spec = importlib.util.spec_from_file_location("benchmarks_wild", PATH)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A set of six classes, and another of two, for junk."""
    root = tmp_path_factory.mktemp("sets")
    for name in tiny.CLASSES:
        for number in range(EACH):
            tiny.save(root / "trees" / name / f"{number}.png", tiny.picture(name, number))
    for name in "xy":
        for number in range(9):
            tiny.save(root / "others" / name / f"{number}.png", tiny.noise(number))
    return [root / "trees", root / "others"]


def collected(wild: Any, sets: list[Path], condition: str, place: Path, split: str = "first", **subset: Any) -> Any:
    return wild.collection(sets[0], sets[1:], condition=condition, split=split, seed=0, place=place, **subset)


def labels_of(what: Any) -> dict[str, int]:
    images = what.images
    return {name: int((images.labels == at).sum()) for at, name in enumerate(images.classes)}


@pytest.mark.parametrize(
    ("split", "share", "old"),
    [
        ("first", 0.5, "abc"),
        ("first", 0.25, "ab"),
        ("first", 0.75, "abcde"),
        ("second", 0.5, "aceg"),
        ("second", 0.75, "acegb"),
    ],
)
def test_splits_say_which_classes_are_old(wild: Any, split: str, share: float, old: str) -> None:
    assert wild.old_classes(list("abcdefg"), split, share) == list(old)


def test_random_splits_differ_from_each_other_and_stay_the_same(wild: Any) -> None:
    names = [str(number) for number in range(20)]
    first, second = (wild.old_classes(names, split, 0.5) for split in ("random1", "random2"))
    assert len(set(first)) == len(set(second)) == 10
    assert set(first) != set(second)
    assert wild.old_classes(names, "random1", 0.5) == first
    assert set(wild.old_classes(names, "random1", 0.25)) < set(first)


def test_a_tail_falls_to_a_tenth(wild: Any) -> None:
    kept = wild.tail(np.repeat(np.arange(5), 100), 5)
    sizes = kept.reshape(5, 100).sum(1)
    assert sorted(sizes.tolist(), reverse=True) == [100, 57, 32, 18, 10]  # 100 · 10 to the −i/4, rounded up


def test_some_images_are_about_equally_many_of_each_class(wild: Any) -> None:
    labels = np.repeat([0, 1, 2], [50, 4, 20])
    kept = wild.some(labels, 20, np.random.default_rng(0))
    assert np.bincount(labels[kept]).tolist() == [8, 4, 8]
    assert wild.some(labels, 999, np.random.default_rng(0)).all()


def test_groups_merge_classes(wild: Any, sets: list[Path]) -> None:
    images = read_images(sets[0])
    found = wild.grouped(images, {"hard": ("beech", "elm"), "soft": ("cedar", "fir")})
    assert found.classes == ("ash", "hard", "soft", "holly")
    assert np.bincount(found.labels).tolist() == [EACH, 2 * EACH, 2 * EACH, EACH]
    np.testing.assert_array_equal(found.labels, found.truth)
    for file, label in zip(images.files, found.labels, strict=True):
        name = file.partition("/")[0]
        assert found.classes[label] == {"beech": "hard", "elm": "hard", "cedar": "soft", "fir": "soft"}.get(name, name)


@pytest.mark.parametrize(
    ("condition", "labels", "images"),
    [
        ("F", {"ash": 10, "beech": 10, "cedar": 10}, 6 * EACH),
        ("V", {"ash": 5, "beech": 5, "cedar": 5}, 6 * EACH),
        ("U1", {"ash": 12}, 6 * EACH),
        ("U", {"ash": 0}, 6 * EACH),
    ],
)
def test_conditions_of_few_labels(
    wild: Any, sets: list[Path], tmp_path: Path, condition: str, labels: dict[str, int], images: int
) -> None:
    what = collected(wild, sets, condition, tmp_path)
    assert labels_of(what) == labels
    assert len(what.images) == images
    assert np.bincount(what.images.truth).tolist() == [EACH] * 6, "the truth of all is known"
    assert not what.junk.any()
    assert not what.wrong.any()


@pytest.mark.parametrize(
    ("condition", "split", "old"),
    [
        ("H", "first", tiny.OLD),
        ("H", "second", ("ash", "cedar", "fir")),
        ("O1", "first", ("ash", "beech")),
        ("O3", "second", ("ash", "cedar", "fir", "beech")),
    ],
)
def test_half_of_the_images_of_old_classes_are_labelled(
    wild: Any, sets: list[Path], tmp_path: Path, condition: str, split: str, old: tuple[str, ...]
) -> None:
    what = collected(wild, sets, condition, tmp_path, split)
    found = labels_of(what)
    assert set(found) == set(old)
    assert sum(found.values()) == len(old) * EACH / 2
    labelled = what.images.labels >= 0
    np.testing.assert_array_equal(what.images.labels[labelled], what.images.truth[labelled])


def test_tails_have_few_labels_too(wild: Any, sets: list[Path], tmp_path: Path) -> None:
    tail, few = (collected(wild, sets, condition, tmp_path) for condition in ("T", "TF"))
    sizes = np.bincount(tail.images.truth)
    assert sorted(sizes.tolist(), reverse=True) == [24, 16, 10, 7, 4, 3]  # 24 · 10 to the −i/5, rounded up
    assert sum(labels_of(tail).values()) == int(sizes[:3].sum() / 2)
    assert [*labels_of(few).values()] == [min(10, max(size // 2, 1)) for size in sizes[:3].tolist()]


def test_a_tenth_of_the_labels_is_wrong(wild: Any, sets: list[Path], tmp_path: Path) -> None:
    what = collected(wild, sets, "N", tmp_path)
    images = what.images
    assert what.wrong.sum() == 4  # of 36
    np.testing.assert_array_equal(what.wrong, (images.labels >= 0) & (images.labels != images.truth))
    assert set(images.labels[images.labels >= 0].tolist()) == {0, 1, 2}, "wrong labels are of old classes"


def test_junk_is_unlabelled_and_at_most_two_of_a_kind(wild: Any, sets: list[Path], tmp_path: Path) -> None:
    what = collected(wild, sets, "J", tmp_path)
    images = what.images
    assert len(images) == 6 * EACH + 4  # two of each of two classes; a tenth of the 108 unlabelled would be 11
    assert np.flatnonzero(what.junk).tolist() == [*range(6 * EACH, 6 * EACH + 4)]
    assert (images.labels[what.junk] == -1).all()
    assert (images.truth[what.junk] == -1).all()
    kinds = [Path(path).parent for path in np.array(images.paths)[what.junk]]
    assert sorted(kinds) == sorted(2 * [sets[1] / "x", sets[1] / "y"])
    assert len(what.wrong) == len(images)
    assert not what.wrong.any()


def test_bursts_are_copies_of_every_third_image(wild: Any, sets: list[Path], tmp_path: Path) -> None:
    images = collected(wild, sets, "B", tmp_path).images
    made = [path for path in images.paths if Path(path).parent == tmp_path]
    assert len(images) - len(made) == 6 * EACH / 3
    assert len(made) == len(list(tmp_path.iterdir())) > 0
    assert len(set(images.files)) == len(images)
    names = (*images.classes, *images.new_classes)
    for file, truth in zip(images.files, images.truth, strict=True):
        assert file.partition("/")[0] == names[truth]
    copies = np.unique([Path(path).name.partition("-")[0] for path in made], return_counts=True)[1]
    assert copies.max() <= 5


def test_small_collections_have_all_classes(wild: Any, sets: list[Path], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(wild.SMALL, "S3", 30)
    images = collected(wild, sets, "S3", tmp_path).images
    assert np.bincount(images.truth).tolist() == [5] * 6


@pytest.mark.parametrize(
    ("condition", "subset", "labels", "images"),
    [
        ("H", {"labelled": 3}, {"ash": 3, "beech": 3, "cedar": 3}, 6 * EACH),
        ("O1", {"count": 48, "labelled": 3}, {"ash": 3, "beech": 3}, 48),
        ("F", {"count": 24, "labelled": 3}, {"ash": 2, "beech": 2, "cedar": 2}, 24),  # no more than half
        ("S3", {"count": 42}, {"ash": 3, "beech": 3, "cedar": 3}, 42),
    ],
)
def test_a_subset_has_so_many_images_and_so_many_labels_a_class(
    wild: Any, sets: list[Path], tmp_path: Path, condition: str, subset: Any, labels: Any, images: int
) -> None:
    what = collected(wild, sets, condition, tmp_path, **subset)
    assert labels_of(what) == labels
    assert np.bincount(what.images.truth).tolist() == [images / 6] * 6


def test_a_subset_is_half_labelled_too(wild: Any, sets: list[Path], tmp_path: Path) -> None:
    what = collected(wild, sets, "H", tmp_path, count=60)
    assert np.bincount(what.images.truth).tolist() == [10] * 6
    assert sum(labels_of(what).values()) == 3 * 10 / 2


# Options


def test_options_become_settings_and_bounds_take_none_of_learning(wild: Any, sets: list[Path], tmp_path: Path) -> None:
    images = collected(wild, sets, "H", tmp_path).images
    words = "--views=3 --lr=0.5 --image-size=64 --epochs=7 --set training.patches=0.5 losses.hidden=512 --as-cpu"
    asked = wild.parser().parse_args(["trees", "--device=cpu", *words.split()])
    job, bound = (wild.job_of(images, asked, method, 0, tmp_path, tmp_path) for method in ("sortal", "floor"))
    training = job.recipe.training
    assert (training.views, training.lr, training.epochs, training.patches) == (3, 0.5, 7, 0.5)
    assert job.recipe.losses.hidden == 512
    assert (job.image_size, bound.image_size) == (64, 64)
    assert (bound.settings.method, bound.settings.set, bound.recipe.learns) == ("kmeans", (), False)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("auto", {"sortal": "auto", "gcd": 6, "cms": 6, "floor": 6}),
        ("true", {"sortal": 6, "gcd": 6, "cms": 6, "floor": 6}),
        ("own", {"cms": "own", "selex": "own", "floor": 6}),
        ("9", {"sortal": 9, "gcd": 9, "cms": 9, "floor": 6}),
    ],
)
def test_methods_get_the_k_that_is_asked_for(
    wild: Any, sets: list[Path], tmp_path: Path, asked: str, given: dict[str, str | int]
) -> None:
    images = collected(wild, sets, "H", tmp_path).images
    arguments = wild.parser().parse_args(["trees", "--device=cpu", f"--k={asked}"])
    jobs = {method: wild.job_of(images, arguments, method, 0, tmp_path, tmp_path) for method in given}
    assert {method: job.settings.k for method, job in jobs.items()} == given


def test_a_command_of_its_own_has_the_same_options(wild: Any) -> None:
    """Set each option to something else than its default, so that one that is not handed on is missed."""
    each = [
        *("one", "two", "--weights=w", "--backbone=b", "--k=own", "--device=cpu", "--version=v", "--out=o", "--runs=r"),
        *("--images=8", "--labels=2", "--epochs=3", "--lr=0.5", "--views=live", "--image-size=64", "--as-cpu"),
        *("--set", "training.patches=0.5", "training.windows=true", "--methods", "gcd", "uno", "--others", "x", "y"),
    ]
    asked = wild.parser().parse_args(each)
    usual = vars(wild.parser().parse_args(["other"]))
    own = ("conditions", "splits", "seeds", "jobs")  # of a command that has several
    assert {name for name, value in vars(asked).items() if value == usual[name]} == {*own}
    again = wild.parser().parse_args(["one", *wild.repeated(asked)])
    assert vars(again) == {**vars(asked), "folders": [Path("one")]}


# Records and tables


def test_a_record_tells_what_became_of_junk_and_of_real_images(wild: Any, sets: list[Path], tmp_path: Path) -> None:
    options = wild.parser().parse_args(["trees", *NETWORK])
    what = collected(wild, sets, "J", tmp_path)
    run = wild.sort(what.images, options, "kmeans", 0, tmp_path / "cache")
    found = wild.record(run, what)
    assert json.loads(json.dumps(found, allow_nan=False))["true"] == 6
    assert (found["k"], found["interval"]) == (6, None), "other methods get the true k"
    status = run.assignments.status
    assert sum(found["junk"].values()) == pytest.approx(1)
    assert found["junk"] == {each: (status[what.junk] == each).sum() / 4 for each in set(status[what.junk])}
    assert "labelled" not in found["junk"]
    assert "wrong_found" not in found
    assert found["all"] == run.metrics.accuracy.all
    assert 0 <= found["mean"] <= 1
    assert found["trained_on"] == []


def line(**changes: Any) -> str:
    usual = {"set": "trees", "condition": "H", "method": "sortal", "version": "", "all": 0.5, "old": 0.5, "new": 0.5}
    usual |= {"mean": 0.5, "k": 6, "interval": [5, 7], "ece_old": 0.1, "ece_new": None, "seconds": 4.0}
    return json.dumps({**usual, **changes})


def test_tables_have_means_over_runs(wild: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = json.dumps({"set": "trees", "condition": "H", "method": "sortal", "version": "", "error": "no"})
    lines = [
        line(condition="J", junk={"unsure": 0.25, "other": 0.5, "new": 0.25}),
        line(condition="N", wrong_found=0.8),
        line(),
        line(all=0.7, k=8, interval=[6, 9], seconds=6.0),
        failed,
        line(method="gcd", interval=None),
    ]
    (tmp_path / "results.jsonl").write_text("\n".join(lines))
    wild.table(tmp_path / "results.jsonl")
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert head.count("|") == rule.count("|")
    gcd, both, wrong, junk = ([cell.strip() for cell in row.split("|")][1:-1] for row in rows)
    assert both == [
        *("H", "trees", "sortal", "", "3", "1", "60.0 ± 10.0", "50.0 ± 0.0", "50.0 ± 0.0", "50.0 ± 0.0"),
        *("6, 8", "5–7, 6–9", "10.0 ± 0.0", "–", "5", ""),
    ]
    assert (gcd[2], gcd[11]) == ("gcd", "–")
    assert (wrong[0], wrong[-1]) == ("N", "80 % found")
    assert (junk[0], junk[-1]) == ("J", "75 % of junk unsure or other")


def test_a_run_that_fails_is_a_result(
    wild: Any, sets: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(wild, "sort", fail)
    out = tmp_path / "out.jsonl"
    words = [*NETWORK, f"--out={out}", "--methods=sortal", "--version=before", "--images=60", "--labels=4"]
    wild.run_set(wild.parser().parse_args([*map(str, sets), *words]), sets[0], "H", "first", 0)
    found, *bounds = map(json.loads, out.read_text().splitlines())
    assert (found["error"], found["version"], found["images"]) == ("ValueError: no room", "before", 60)
    assert found["settings"] == {"epochs": 0, "images": 60, "labels": 4}
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [found, *bounds]
    assert [(each["method"], each["k"], each["true"]) for each in bounds] == [("floor", 6, 6), ("ceiling", 6, 6)]
    assert all(0 < each["mean"] <= 1 for each in bounds)
    assert all(0 < each["all"] <= 1 for each in bounds), "whatever becomes of the method"
    outcomes, _ = read_outcomes([out])
    assert [(each.method, each.error is None) for each in outcomes] == [
        *(("sortal", False), ("floor", True), ("ceiling", True))
    ]
    wild.table(out)
    assert "| floor | before | 1 | 0 | " in capsys.readouterr().out


def test_calibration_is_drawn_by_condition_and_set(wild: Any, tmp_path: Path) -> None:
    results, picture = tmp_path / "results.jsonl", tmp_path / "calibration.png"
    lines = [{"condition": c, "set": s, "bins": [[0.4, 0.5, 30], [0.9, 0.8, 40]]} for c in "HF" for s in ("a", "b")]
    results.write_text("\n".join(map(json.dumps, [*lines, {"condition": "V", "set": "a", "error": "no"}])))
    wild.plot(results, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
