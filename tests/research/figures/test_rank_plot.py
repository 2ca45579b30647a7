"""The plot of ranks: where its lines are."""

from typing import Any

import numpy as np

from sortal.research.benchmark.significance import MeanRanks
from sortal.research.figures.rank_plot import rank_plot
from sortal.research.figures.style import render

RANKS = {"a": 1.25, "b": 2.0, "c<$\n": 3.25, "d": 3.5, "e": 5.0}
RANKING = MeanRanks(ranks=RANKS, rows=9, critical=1.5, statistic=9, p=0.1)


def lines(named: str) -> list[Any]:
    (axes,) = rank_plot(RANKING).axes
    return [np.asarray(line.get_xdata()).tolist() for line in axes.lines if line.get_label() == named]


def test_methods_hang_at_their_ranks_and_bars_join_those_that_do_not_differ() -> None:
    for name, rank in RANKS.items():
        (line,) = lines(name)
        assert line[:2] == [rank, rank]
    assert lines("group") == [[1.25, 2.0], [2.0, 3.5], [3.5, 5.0]]
    assert lines("critical") == [[1, 2.5]]


def test_names_are_drawn_with_their_ranks_and_the_file_is_the_same_every_time() -> None:
    texts = [text.get_text().strip() for text in rank_plot(RANKING).axes[0].texts]
    assert texts[:6] == ["1", "2", "3", "4", "5", "critical difference 1.50"]
    assert texts[6:] == ["a  1.25", "b  2.00", "c<$\\n  3.25", "3.50  d", "5.00  e"]
    assert render(rank_plot(RANKING), "svg") == render(rank_plot(RANKING), "svg")
