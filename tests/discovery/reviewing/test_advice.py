"""Advice for a review: the parts of a category, and lists of names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.planted import planted, planted_run
from support.runtimes import CPU

from sortal.discovery.reviewing.advice import LONGEST_WORD, Advice, advise, read_words
from sortal.errors import InputError

NO_STORE: Any = None  # no pictures are looked at


def advice(*counts: int) -> tuple[Advice, NDArray[np.int64]]:
    x, of = planted([*counts])
    return Advice(run=planted_run(x, np.zeros(len(of), dtype=np.int64)), store=NO_STORE, device="cpu"), of


@pytest.mark.parametrize("count", [2, 3])
def test_parts_of_a_category_are_its_classes_the_largest_first(count: int) -> None:
    found, of = advice(*[30, 40, 50][:count], 20)
    rows = np.flatnonzero(of < count)[::-1].copy()
    parts = found.parts(rows, rows[:0], count)
    assert [of[part].tolist() for part in parts] == [[each] * (30 + 10 * each) for each in reversed(range(count))]
    assert sorted(np.concatenate(parts).tolist()) == sorted(rows.tolist())


def test_what_is_anchored_is_in_the_first_part() -> None:
    found, of = advice(20, 40, 30)
    rows = np.arange(90)
    small = np.flatnonzero(of == 0)
    parts = found.parts(rows, small[:3], 3)
    assert [set(of[part].tolist()) for part in parts] == [{0}, {1}, {2}]
    stray = np.append(small[:3], np.flatnonzero(of == 1)[:1])
    first, *others = found.parts(rows, stray, 3)
    assert {*stray.tolist()} <= {*first.tolist()}, "wherever they look like they belong"
    assert sum(map(len, others)) + len(first) == 90


def test_too_few_images_have_no_parts() -> None:
    found, _ = advice(5)
    none, rows = np.zeros(0, dtype=np.int64), np.arange(5)
    assert found.parts(none, none, 2) == []
    assert found.parts(rows[:2], none, 3) == []
    assert found.parts(rows, rows, 2) == [], "all are to stay in the first"
    assert [part.tolist() for part in found.parts(rows[:3], rows[:2], 2)] == [[0, 1], [2]]
    same = planted_run(np.repeat(found.run.features[:1], 6, axis=0), np.zeros(6, dtype=np.int64))
    assert Advice(run=same, store=NO_STORE, device="cpu").parts(np.arange(6), none, 2) == [], "copies of one image"


def test_copies_of_an_image_are_one_part() -> None:
    found, _ = advice(4)
    run = planted_run(found.run.features[[0, 1, 2, 3, 3]], np.zeros(5, dtype=np.int64))
    parts = Advice(run=run, store=NO_STORE, device="cpu").parts(np.arange(5), np.arange(3), 3)
    assert all(len(part) for part in parts)


def test_names_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes("\ufeffash\r\n\r\n  oak tree \nash\n\tżółw\n".encode())
    assert read_words(path) == ("ash", "oak tree", "żółw")
    path.write_text("x" * LONGEST_WORD)
    assert advise(planted_run(*planted([5])), NO_STORE, words=path, text_model=None, runtime=CPU).words == ("x" * 200,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "names.txt' cannot be read: No such file"),
        (b"", "must have 1 to 100,000 of them, one per line, got 0"),
        (b" \n\n\t\n", "must have 1 to 100,000 of them, one per line, got 0"),
        (b"ash\n\xff\xfe\n", "cannot be read: it is not UTF-8 text"),
        (b"ash\n" + 201 * b"x", "1 to 200 printable characters, got 'x{40}' in .*names.txt"),
        (b"ash\no\x07ak\n", r"1 to 200 printable characters, got 'o\\x07ak'"),
        (b"".join(b"%d\n" % each for each in range(100_001)), "1 to 100,000 of them, one per line, got 100,001"),
    ],
    ids=["missing", "empty", "blank", "bytes", "long", "control", "many"],
)
def test_what_is_no_list_of_names_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_words(path)


def test_without_a_model_nothing_is_named_or_seen(tmp_path: Path) -> None:
    run = planted_run(*planted([5]))
    with pytest.raises(InputError, match="must contain 'open_clip_config"):
        advise(run, NO_STORE, words=None, text_model=tmp_path, runtime=CPU)
    without = advise(run, NO_STORE, words=None, text_model=None, runtime=CPU)
    assert without.names(np.arange(2), [np.arange(2), np.arange(2, 4)]) == []
    assert not without.sees
