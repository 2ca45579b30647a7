"""ImageSet: splits compared with a slow oracle, and immutability."""

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.images.class_names import in_order
from sortal.images.columns import Columns
from sortal.images.image_set import ImageSet, image_set

Names = Sequence[str | None]


def make(labels: Names, truth: Names | None = None, validation: Sequence[int] = (), **options: Any) -> ImageSet:
    """Make a set of images named 0, 1, 2, …; `validation` lists rows."""
    files = [str(i) for i in range(len(labels))]
    held = np.isin(np.arange(len(labels)), validation)
    paths = [f"/data/{file}" for file in files]
    return image_set(files, paths=paths, labels=labels, truth=truth, validation=held, **options)


def named(images: ImageSet, numbers: NDArray[np.int64]) -> list[str | None]:
    names = images.classes + images.new_classes
    return [None if number == -1 else names[number] for number in numbers]


def hidden(
    truth: Names, validation: Sequence[bool], old: set[str], fraction: float, seed: int
) -> list[tuple[str, str]]:
    """Split one image at a time; return ("row", "split class") of each remaining image."""
    candidates = [i for i, name in enumerate(truth) if name in old and not validation[i]]
    size = int(fraction * len(candidates))
    kept = {candidates[i] for i in np.random.RandomState(seed).choice(len(candidates), size=size, replace=False)}
    rows = []
    for i, name in enumerate(truth):
        if validation[i]:
            if name in old:
                rows.append((str(i), f"validation {name}"))
        else:
            rows.append((str(i), f"labelled {name}" if i in kept else "unlabelled None"))
    return rows


def described(images: ImageSet) -> list[tuple[str, str]]:
    """Describe an ImageSet in the same form."""
    labels = named(images, images.labels)
    return [
        (file, f"{'validation' if held else 'unlabelled' if name is None else 'labelled'} {name}")
        for file, name, held in zip(images.files, labels, images.validation, strict=True)
    ]


def test_a_set_numbers_classes_and_derives_masks() -> None:
    images = make(["b", None, "a", None, "b", None], [None, "c", "a", "a", "b", None], validation=[4])
    assert len(images) == 6
    assert images.classes == ("a", "b")
    assert images.new_classes == ("c",)
    assert images.labels.tolist() == [1, -1, 0, -1, 1, -1]
    assert images.truth.tolist() == [1, 2, 0, 0, 1, -1]  # a label is the truth unless one is given
    assert images.labelled.tolist() == [True, False, True, False, False, False]
    assert images.unlabelled.tolist() == [False, True, False, True, False, True]
    assert images.validation.tolist() == [False, False, False, False, True, False]
    assert images.labels.dtype == images.truth.dtype == np.int64
    assert images.validation.dtype == np.bool_
    assert [images.source(i) for i in (0, 5)] == ["/data/0", "/data/5"]
    assert repr(images) == "<ImageSet: 6 images, 2 labelled in 2 classes, 3 unlabelled, 1 for validation>"


def test_a_set_may_lack_labels_truth_or_images() -> None:
    without_truth = make(["a", None])
    assert without_truth.truth.tolist() == [0, -1]
    assert without_truth.new_classes == ()
    without_labels = make([None, None], ["b", "a"])
    assert (without_labels.classes, without_labels.new_classes) == ((), ("a", "b"))
    assert without_labels.labels.tolist() == [-1, -1]
    assert without_labels.truth.tolist() == [1, 0]
    empty = make([])
    assert (len(empty), empty.classes, empty.labels.shape) == (0, (), (0,))
    assert empty.to_pandas().shape == (0, 4)


def test_truth_must_not_contradict_a_label() -> None:
    with pytest.raises(InputError, match="must be its label, unlike in 4 images: '0', '2', '3' and 1 more"):
        make(["a", "b", "a", "a", "b", None], ["b", "b", "B", "c", "a", "a"])


def test_classes_are_sorted_by_value_if_all_are_numbers() -> None:
    for names, expected in (
        (["b", "a", "C"], ["C", "a", "b"]),
        (["10", "9", "2"], ["2", "9", "10"]),
        (["10", "9", "-2"], ["-2", "10", "9"]),  # one is not all digits: all by code point
        (["1", "01", "001", "0"], ["0", "001", "01", "1"]),
        (["10", "\uff19"], ["10", "\uff19"]),  # not an ASCII digit
        (["9" * 5000, "1" + "0" * 5000, "7"], ["7", "9" * 5000, "1" + "0" * 5000]),  # too long for int()
    ):
        assert in_order(names) == expected
        assert make(names).classes == tuple(expected)
        assert make([None] * len(names), names).new_classes == tuple(expected)


def test_the_truth_does_not_change_the_labels() -> None:
    """The same labels get the same numbers, whatever the truth of other images."""
    for name in ("fox", "1", "9"):
        images = make(["10", "9", None], [None, None, name])
        assert images.classes == ("9", "10")
        assert images.labels.tolist() == [1, 0, -1]


def test_a_set_is_immutable() -> None:
    made = make(["a", "a", "b", "b"], validation=[1])
    for field in dataclasses.fields(made):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, getattr(made, field.name))
    for images in (made, made.select(made.labelled), made.hide_labels(old=2, fraction=1), made.hold_out(fraction=0.5)):
        for name in ("labels", "truth", "validation"):
            with pytest.raises(ValueError, match="read-only"):
                operator.setitem(getattr(images, name), 0, 0)
    for mask in (made.labelled, made.unlabelled):
        mask[:] = True
    assert described(made) == [("0", "labelled a"), ("1", "validation a"), ("2", "labelled b"), ("3", "labelled b")]


def test_the_callers_arrays_and_lists_are_copied() -> None:
    labels, truth, validation = np.array([0, 1]), np.array([0, 1]), np.array([False, True])
    images = ImageSet(
        files=("0", "1"), paths=("0", "1"), labels=labels, classes=("a", "b"), truth=truth, validation=validation
    )
    labels[:], truth[:], validation[:] = 7, 7, False
    assert images.labels.tolist() == images.truth.tolist() == [0, 1]
    assert images.validation.tolist() == [False, True]
    files, paths, names, ignored = ["0", "1"], ["x", "y"], ["a", None], ["t"]
    listed = image_set(files, paths=paths, labels=names, ignored=ignored)
    for column in (files, paths, names, ignored):
        column.clear()
    assert (listed.files, listed.paths, listed.ignored) == (("0", "1"), ("x", "y"), ("t",))
    assert described(listed) == [("0", "labelled a"), ("1", "unlabelled None")]


def test_select_keeps_the_classes_and_columns_of_the_chosen_rows() -> None:
    images = make(["c", "a", None, "b", None], [None, None, "d", None, "a"], validation=[3], ignored=["x.txt"])
    chosen = images.select(np.array([True, False, True, True, True]))
    assert chosen.files == ("0", "2", "3", "4")
    assert chosen.paths == ("/data/0", "/data/2", "/data/3", "/data/4")
    assert (chosen.classes, chosen.new_classes) == (("a", "b", "c"), ("d",))  # "a" is kept without labels
    assert chosen.labels.tolist() == [2, -1, 1, -1]
    assert chosen.truth.tolist() == [2, 3, 1, 0]
    assert chosen.validation.tolist() == [False, False, True, False]
    assert chosen.ignored == ("x.txt",)
    assert len(images.select(np.zeros(5, dtype=bool))) == 0


def test_labels_are_hidden_only_among_classes_with_images() -> None:
    images = make(["a", "b", "b", "c", "c"]).select(np.array([False, True, True, True, True]))
    split = images.hide_labels(old=1, fraction=1.0)
    assert (split.classes, split.new_classes) == (("b",), ("c",))
    assert make(["a", "b"], order=["b", "a"]).hide_labels(old=2, fraction=1).classes == ("b", "a")
    with pytest.raises(InputError, match="old must name classes with images; these have none: 'a'"):
        images.hide_labels(old=["a", "b"], fraction=1.0)


def test_rows_of_an_archive_are_selected_and_read_only() -> None:
    pixels = np.arange(3 * 2 * 2 * 3, dtype=np.uint8).reshape(3, 2, 2, 3)
    images = image_set(["0", "1", "2"], pixels=pixels, labels=["a", None, "a"])
    chosen = images.select(np.array([False, True, True]))
    assert chosen.paths == ()
    np.testing.assert_array_equal(chosen.pixels, pixels[1:])
    np.testing.assert_array_equal(chosen.source(1), pixels[2])
    for view in (images.pixels, images.source(0)):
        with pytest.raises(ValueError, match="read-only"):
            operator.setitem(view, 0, 1)  # type: ignore[call-overload]
    pixels[0] = 1  # the caller's array stays writable


def test_select_requires_a_mask() -> None:
    """Row numbers mistaken for a mask would select the wrong images."""
    for rows in (np.array([1, 1, 0, 1]), np.array([True]), np.ones(5, dtype=bool), np.ones((4, 1), dtype=bool)):
        with pytest.raises(InputError, match=r"rows must be a mask.*4"):
            make(["a", "b", "c", None]).select(rows)


@st.composite
def known(draw: st.DrawFn) -> tuple[list[str], list[bool]]:
    """Draw the classes of up to 60 images, each at least once, and which images are for validation."""
    k = draw(st.integers(1, 12))
    truth = [str(i) for i in range(k)] + draw(st.lists(st.integers(0, k - 1).map(str), max_size=48))
    held = [False] * k + draw(st.lists(st.booleans(), min_size=len(truth) - k, max_size=len(truth) - k))
    order = draw(st.permutations(range(len(truth))))
    return [truth[i] for i in order], [held[i] for i in order]


@given(known(), st.data(), st.floats(0.3, 1), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_hide_labels_splits_as_in_the_paper(
    rows: tuple[list[str], list[bool]], data: st.DataObject, fraction: float, seed: int
) -> None:
    truth, held = rows
    classes = sorted(set(truth), key=int)
    count = data.draw(st.integers(1, len(classes)))
    by_name = data.draw(st.booleans())
    names = data.draw(st.permutations(classes))[:count] if by_name else classes[:count]
    expected = hidden(truth, held, set(names), fraction, seed)
    images = make(truth, validation=np.flatnonzero(held).tolist(), ignored=["x.txt"])
    if {f"labelled {name}" for name in names} - {what for _, what in expected}:
        with pytest.raises(InputError, match="leave every old class a labelled image"):
            images.hide_labels(old=names if by_name else count, fraction=fraction, seed=seed)
        return
    split = images.hide_labels(old=names if by_name else count, fraction=fraction, seed=seed)
    assert described(split) == expected
    assert split.classes == tuple(name for name in classes if name in names)
    assert split.new_classes == tuple(name for name in classes if name not in names)
    assert named(split, split.truth) == [truth[int(file)] for file in split.files]
    assert split.paths == tuple(f"/data/{file}" for file in split.files)
    assert split.ignored == ("x.txt",)


def test_by_default_half_of_the_old_classes_is_labelled_with_seed_0() -> None:
    images, before = make(list("ab") * 20), np.random.get_state(legacy=False)
    split = images.hide_labels(old=1)
    assert described(split) == hidden(list("ab") * 20, [False] * 40, {"a"}, 0.5, 0)
    assert described(split) != described(images.hide_labels(old=1, seed=1))
    one, same, other = (described(images.hold_out(fraction=0.4, **seed)) for seed in ({}, {"seed": 0}, {"seed": 1}))
    assert one == same != other
    np.testing.assert_equal(np.random.get_state(legacy=False), before, "the global generator is not used")


def test_old_classes_may_be_named_in_any_order_and_container() -> None:
    images = make(list("abcabcabc"))
    every: Any = np.int64(3)
    kinds: list[Any] = [("c", "a"), {"a", "c"}, ["a", "c", "a"], np.array(["a", "c"])]
    for old in kinds:
        split = images.hide_labels(old=old, fraction=0.9)
        assert described(split) == hidden(list("abcabcabc"), [False] * 9, {"a", "c"}, 0.9, 0)
        assert (split.classes, split.new_classes) == (("a", "c"), ("b",))
    assert images.hide_labels(old=every, fraction=1).labelled.all()


def test_hide_labels_uses_the_truth_of_unlabelled_images() -> None:
    """As the truth is preserved, a split can be split again."""
    images = make(["a", None, None, None], ["a", "a", "b", None])
    split = images.hide_labels(old=["b"], fraction=1).hide_labels(old=["a"], fraction=1)
    assert described(split) == [
        ("0", "labelled a"),
        ("1", "labelled a"),
        ("2", "unlabelled None"),
        ("3", "unlabelled None"),
    ]
    assert named(split, split.truth) == ["a", "a", "b", None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"old": 1, "fraction": 0.0}, r"fraction must be above 0 and at most 1, got 0\.0"),
        ({"old": 1, "fraction": 1.01}, r"fraction must be above 0 and at most 1, got 1\.01"),
        ({"old": 1, "fraction": float("nan")}, "fraction must be above 0 and at most 1, got nan"),
        ({"old": 0}, r"old must be from 1 to 3 \(the number of classes with images\), got 0"),
        ({"old": 4}, r"old must be from 1 to 3 \(the number of classes with images\), got 4"),
        (
            {"old": ["x", "cat", "y", "z", "w"]},
            "are 'ape', 'cat', 'dog' and 1 more; got 'x', 'y', 'z' and 1 more",
        ),
        ({"old": ["ape"]}, "old must name classes with images; these have none: 'ape'"),  # only for validation
        ({"old": []}, "old must be a number of classes or a non-empty list"),
        ({"old": "cat"}, "old must .*non-empty list.*, got 'cat'"),  # not taken for a list of letters
        ({"old": 3, "fraction": 0.5}, "leave every old class a labelled image, got 0.5: .* would have none"),
        ({"old": 1, "seed": -1}, "seed must be between .*, got -1"),
    ],
)
def test_hide_labels_refuses_invalid_options(options: dict[str, Any], message: str) -> None:
    images = make(["cat", "dog", "ape", None], [None, None, None, "owl"], validation=[2])
    with pytest.raises(InputError, match=message):
        images.hide_labels(**options)


@given(known(), st.floats(0.05, 0.95), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_hold_out_takes_a_fraction_of_each_class(
    rows: tuple[list[str], list[bool]], fraction: float, seed: int
) -> None:
    truth, held = rows
    labels = [*truth, None]  # unlabelled images are not held out
    images = make(labels, validation=np.flatnonzero(held).tolist())
    generator, moved = np.random.RandomState(seed), {*np.flatnonzero(held).tolist()}
    for name in images.classes:
        members = [i for i, other in enumerate(truth) if other == name and not held[i]]
        moved |= {*generator.choice(members, size=int(fraction * len(members)), replace=False).tolist()}
    if len(moved) == sum(held):
        with pytest.raises(InputError, match="hold out at least one image"):
            images.hold_out(fraction=fraction, seed=seed)
        return
    split = images.hold_out(fraction=fraction, seed=seed)
    assert np.flatnonzero(split.validation).tolist() == sorted(moved)
    assert (split.files, split.classes) == (images.files, images.classes)
    np.testing.assert_array_equal(split.labels, images.labels)


def test_hold_out_refuses_invalid_options() -> None:
    images = make(["a", "a", "b", None])
    for fraction in (0.0, 1.0, float("nan")):
        with pytest.raises(InputError, match=f"fraction must be above 0 and below 1, got {fraction}"):
            images.hold_out(fraction=fraction)
    with pytest.raises(InputError, match=r"hold out at least one image, got 0\.3: every class is too small"):
        images.hold_out(fraction=0.3)
    with pytest.raises(InputError, match=f"seed must be between .*, got {2**32}"):
        images.hold_out(fraction=0.5, seed=2**32)


BYTES = "caf\udce9"  # a Latin-1 file name as Python decodes it


def test_a_data_frame_has_all_names_unchanged() -> None:
    """Including names that look missing or are not UTF-8."""
    labels, truth = ["nan", None, BYTES, None], [None, "c", None, None]
    frame = make(labels, truth, validation=[2]).to_pandas()
    assert list(frame.columns) == ["file_name", "label", "truth", "split"]
    assert frame["file_name"].tolist() == ["0", "1", "2", "3"]
    assert frame["label"].isna().tolist() == [False, True, False, True]
    assert frame["label"].dropna().tolist() == ["nan", BYTES]
    assert frame["truth"].isna().tolist() == [False, False, False, True]
    assert frame["truth"].dropna().tolist() == ["nan", "c", BYTES]
    assert frame["split"].tolist() == ["labelled", "unlabelled", "validation", "unlabelled"]
    assert image_set([BYTES], paths=["a"], labels=[None]).to_pandas()["file_name"].tolist() == [BYTES]
    own = Columns.infer(["self", "depth"], [["x"], ["2"]])
    frame = image_set(["0"], paths=["a"], labels=[None], columns=own).to_pandas()
    assert list(frame.columns) == ["file_name", "label", "truth", "split", "self", "depth"]
    assert frame[["self", "depth"]].to_numpy().tolist() == [["x", 2.0]]


def test_html_counts_each_class_and_escapes_its_name() -> None:
    html = make(["b", "b", "a", None, '"><img src=x>', "&lt;", BYTES, "חתול"], validation=[0])._repr_html_()
    assert "<i>ImageSet: 8 images, 6 labelled in 6 classes, 1 unlabelled, 1 for validation</i>" in html
    for name, count in (("a", 1), ("b", 2), ("&quot;&gt;&lt;img src=x&gt;", 1), ("&amp;lt;", 1), ("חתול", 1)):
        assert f"<td>{name}</td><td>{count}</td>" in html
    assert html.encode("utf-8").decode("utf-8") == html


def test_a_set_has_a_short_repr_and_is_hashable_by_identity() -> None:
    one, two = (make([f"class {i}" for i in range(2000)]) for _ in range(2))
    assert repr(one) == "<ImageSet: 2,000 images, 2,000 labelled in 2,000 classes, 0 unlabelled, 0 for validation>"
    assert len({one, two}) == 2
    assert one != two
