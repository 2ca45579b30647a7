"""Comparisons of methods: differences on shared runs, ranks by hand, and every missing run by its name."""

from collections.abc import Sequence
from typing import Any

import pytest

from sortal.errors import InputError
from sortal.research.benchmark.outcomes import MethodOutcome, SharedTask
from sortal.research.benchmark.typesetting import Difference, Table
from sortal.research.benchmark.versus import compare

SETS = ("cars", "flowers", "pets")


def outcome(method: str, score: float, task: Sequence[Any] = ("cars", "H", "first", 0), **others: Any) -> MethodOutcome:
    """Return an outcome with All, in %, Old ten points higher and New ten points lower."""
    shares = {"all": score / 100, "old": (score + 10) / 100, "new": (score - 10) / 100}
    return MethodOutcome(task=SharedTask(*task), method=method, **{**shares, **others})


def full(*leads: tuple[str, float], conditions: str = "HF", seeds: int = 2) -> list[MethodOutcome]:
    """Return runs on three sets, two splits and some seeds, in which each method leads a set's level by so much."""
    found = []
    for level, name in zip((30, 50, 70), SETS, strict=True):
        for task in [(name, each, split, seed) for each in conditions for split in ("a", "b") for seed in range(seeds)]:
            found += [outcome(method, level + lead, task) for method, lead in leads]
    return found


def row_of(table: Table, *start: str) -> dict[str, Any]:
    (row,) = [row for row in table.rows if row[: len(start)] == start]
    return dict(zip(table.header, row, strict=True))


def test_a_constant_lead_is_found_exactly() -> None:
    """However much sets differ, because runs are paired."""
    found = compare(full(("sortal", 5), ("gcd", 0), ("uno", 7), ("floor", -20), ("ceiling", 20)))
    table, *conditions, rows = found.tables
    assert [row[0] for row in table.rows] == ["floor", "uno", "sortal", "gcd", "ceiling"], "the best first"
    assert str(row_of(table, "gcd")["All"]) == "50.0"
    assert str(row_of(table, "gcd")["Old"]) == "60.0"
    gcd, uno = (row_of(table, name)["All − sortal"] for name in ("gcd", "uno"))
    assert (gcd.mean, gcd.low, gcd.high) == pytest.approx((-5, -5, -5))
    assert (uno.mean, uno.n) == (pytest.approx(2), 24)
    assert row_of(table, "sortal")["All − sortal"] is None
    ranks = {str(row[0]): str(row[table.header.index("Rank")]) for row in table.rows}
    assert ranks == {"floor": "–", "uno": "1.00", "sortal": "2.00", "gcd": "3.00", "ceiling": "–"}
    assert found.ranking is not None
    assert found.ranking.rows == 6
    assert found.ranking.statistic == pytest.approx(12), "12 / (6·3·4) · (6² + 12² + 18²) − 3·6·4"
    assert [each.title for each in conditions] == ["Condition H", "Condition F"]
    assert [each.name for each in found.tables] == ["all", "condition-h", "condition-f", "rows"]
    assert row_of(conditions[0], "gcd")["Runs"] == 12
    assert row_of(rows, "pets", "F", "uno")["Verdict"] == "too few runs"
    assert len(rows.rows) == 6 * 5
    *_, rows = compare(full(("sortal", 5), ("gcd", 0), ("uno", 7), seeds=3)).tables
    assert row_of(rows, "pets", "F", "uno")["Verdict"] == "ahead"
    assert row_of(rows, "pets", "F", "gcd")["Verdict"] == "behind"


def test_noise_is_not_a_lead() -> None:
    """Differences of −1 and 1: of six, each resampled mean is between them."""
    pairs = [outcome("sortal", 50, ("cars", "H", "a", seed)) for seed in range(6)]
    pairs += [outcome("gcd", 49 + 2 * (seed % 2), ("cars", "H", "a", seed)) for seed in range(6)]
    two = compare([each for each in pairs if each.task.seed < 2])
    assert str(row_of(two.tables[0], "gcd")["All − sortal"]) in ("+0.0", "−0.0"), "two runs have no interval"
    assert row_of(two.tables[1], "cars", "gcd")["Verdict"] == "too few runs"
    _, rows = compare(pairs).tables
    assert rows.header == ("Data set", "Method", "All", "All − sortal", "Verdict", "Runs"), (
        "one condition has no column"
    )
    six = row_of(rows, "cars", "gcd")
    assert six["Verdict"] == "within noise"
    assert -1 <= six["All − sortal"].low < 0 < six["All − sortal"].high <= 1


def test_ranks_are_of_means_over_the_runs_of_a_row() -> None:
    """On cars, b wins one seed by more than it loses the other; c is last, and ties with b on flowers."""
    scores = {"a": (50, 50, 80), "b": (49, 60, 70), "c": (10, 20, 70)}
    tasks = [("cars", "H", "x", 0), ("cars", "H", "x", 1), ("flowers", "H", "x", 0)]
    runs = [outcome(name, each[at], task) for name, each in scores.items() for at, task in enumerate(tasks)]
    found = compare(runs, reference="a")
    assert found.ranking is not None
    assert found.ranking.ranks == {"a": 1.5, "b": 1.75, "c": 2.75}
    assert found.ranking.rows == 2


def test_every_missing_run_is_named() -> None:
    gone = ("flowers", "F", "b", 1)
    failed = ("cars", "H", "a", 0)
    runs = [each for each in full(("sortal", 5), ("gcd", 0), ("uno", 1)) if (each.method, each.task) != ("gcd", gone)]
    runs += [MethodOutcome(task=SharedTask(*failed), method="gcd", error="ValueError: no room")]
    runs += [outcome("uno", 50, ("pets", "F", "b", 1), all=None)]
    found = compare(runs, notes=["sortal: seed 3 was run 2 times."])
    table = found.tables[0]
    assert table.notes[-3:] == (
        "uno lacks 1 of 24 runs: pets, F, b, seed 1 (undefined).",
        "gcd lacks 2 of 24 runs: cars, H, a, seed 0 (failed: ValueError: no room); flowers, F, b, seed 1.",
        "sortal: seed 3 was run 2 times.",
    )
    assert "from 21 of 24 runs each" in table.notes[2], "ranks are over what all have"
    assert row_of(table, "gcd")["Runs"] == 22
    assert row_of(table, "gcd")["All − sortal"].mean == pytest.approx(-5), "on the runs that both have"
    fewer = compare(runs, methods=["uno"]).tables[0]
    assert [note for note in fewer.notes if "lacks" in note] == [table.notes[-3]]


def test_a_method_without_any_run_of_a_row_has_a_line_there() -> None:
    runs = [each for each in full(("sortal", 5), ("gcd", 0)) if each.method == "sortal" or each.task.dataset == "cars"]
    assert ["pets", "F", "gcd", "–", "–", "", "0"] in compare(runs).tables[-1].text


def test_without_sortal_the_first_method_is_the_reference() -> None:
    runs = full(("floor", -20), ("gcd", 0), ("uno", 7))
    assert "All − gcd" in compare(runs).tables[0].header
    assert "All − sortal" in compare([*runs, *full(("sortal", 5))]).tables[0].header
    with pytest.raises(InputError, match="The reference must be one of 'floor', got 'sortal'"):
        compare(full(("floor", -20)))


def test_other_references_and_scores() -> None:
    runs = full(("sortal", 5), ("gcd", 0), ("uno", 1))
    table = compare(runs, reference="gcd", score="new").tables[0]
    assert "New − gcd" in table.header
    assert row_of(table, "sortal")["New − gcd"].mean == pytest.approx(5)
    by_class = [outcome("gcd", 50, mean=0.25), outcome("sortal", 40, mean=0.75)]
    table = compare(by_class, score="mean").tables[0]
    assert str(row_of(table, "gcd")["Class mean − sortal"]) == "−50.0", "one run has no interval"
    assert [row[0] for row in table.rows] == ["sortal", "gcd"]
    assert table.notes[2] == "Ranks need at least 3 methods that differ and 2 rows that all have."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": "gdc"}, "The reference must be one of 'sortal', 'gcd', got 'gdc'."),
        ({"methods": ["gcd", "x", "y"]}, "methods must be among 'sortal', 'gcd', got 'x', 'y'."),
        (
            {"score": "mean"},
            "The reference 'sortal' must have a run with the score 'mean', got none. Records of earlier "
            "versions lack it: run them again.",
        ),
    ],
)
def test_unknown_names_are_refused(options: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        compare(full(("sortal", 5), ("gcd", 0)), **options)
    assert str(error.value) == message


def test_two_ways_of_a_method_are_compared_with_each_other() -> None:
    ways = [outcome("sortal", 50, k_words="estimated k"), outcome("sortal", 60, k_words="true k"), outcome("gcd", 55)]
    table = compare(ways).tables[0]
    assert "All − sortal (estimated k)" in table.header
    ahead = row_of(table, "sortal (true k)")["All − sortal (estimated k)"]
    assert isinstance(ahead, Difference)
    assert ahead.mean == pytest.approx(10)
    assert (ahead.low, ahead.high, ahead.n) == (None, None, 1)
    assert [row[0] for row in compare(ways, methods=["sortal"]).tables[0].rows] == [
        "sortal (true k)",
        "sortal (estimated k)",
    ]


def test_floor_and_ceiling_stay_whatever_methods_are_chosen_and_are_never_ranked() -> None:
    runs = full(("sortal", 5), ("gcd", 0), ("uno", 1), ("floor", -9), ("ceiling", 9))
    runs += [outcome("floor", 20, ("cars", "H", "a", 0), version="before")]
    found = compare(runs, methods=["gcd"])
    assert [row[0] for row in found.tables[0].rows] == ["floor", "floor (before)", "sortal", "gcd", "ceiling"]
    assert found.ranking is None
    assert compare([each for each in runs if each.method in ("gcd", "sortal")]).tables[0].notes[2].startswith("Ranks")


def test_the_order_of_runs_does_not_matter() -> None:
    runs = full(("sortal", 5), ("gcd", 0), ("uno", 1))
    one, other = compare(runs), compare(runs[::-1])
    assert sorted(map(str, one.tables[-1].rows)) == sorted(map(str, other.tables[-1].rows))
    assert one.tables[0].rows == other.tables[0].rows
