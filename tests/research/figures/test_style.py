"""Names in figures are only text."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.drawn import texts_of, words
from support.sample_run import HOSTILE, sample_run
from support.thorough import thorough_but

from sortal.research.figures import (
    FIGURE_FORMATS,
    legacy_inflation,
    style,
    tsne,
)
from sortal.runs.run import Run

MARKUP = ("$\\frac{1", "_hidden", "a $b$ c", "%s {0}", "--> <!-- x", "\ufffe", "日本語", "😀")


def test_a_name_is_drawn_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters and missing glyphs are escaped, except joiners, which Persian needs."""
    for name in ("Blüte – №1 $x^2$", "\u06cc\u200c\u06cc", "x" * 28):
        assert style.drawable(name) == name
    assert style.drawable("one\ntwo\x00a\u202eb\u2028") == "one\\ntwo\\x00a\\u202eb\\u2028"
    assert style.drawable("\udcff\U000f0000") == "\\xff\\U000f0000"
    assert style.drawable("x" * 29) == "x" * 14 + "…" + "x" * 13
    monkeypatch.setattr(style, "_glyphs", lambda: (frozenset(map(ord, "abc")), frozenset({0x65E5})))
    assert style.drawable("ab日本") == "ab日\\u672c"


@pytest.mark.parametrize("figure", thorough_but([tsne], [tsne, legacy_inflation]))
@pytest.mark.usefixtures("by_rows")
def test_hostile_names_are_only_text(figure: Callable[[Run], Figure], tmp_path: Path) -> None:
    names = (*HOSTILE, *MARKUP)
    run = sample_run(categories=16, known=8, images=300, name=lambda i: names[i], category=np.arange(300) % 8)
    a = run.assignments
    truth = tuple(names[j % 8 + 8 * (row // 16 % 2)] for row, j in enumerate(a.category_id.tolist()))
    drawn = figure(replace(run, folder=tmp_path, assignments=replace(a, truth=truth)))
    for kind in FIGURE_FORMATS:
        assert len(style.render(drawn, kind)) > 10_000
        drawn.savefig(io.BytesIO(), format=kind)  # as a user would, under other settings
    shown = " ".join([*texts_of(drawn)[:-1], *(word for axes in drawn.axes for word in words(axes.texts))])
    assert [each in shown for each in ("$\\frac{1", "_hidden", "\n")] == [True, True, False]
