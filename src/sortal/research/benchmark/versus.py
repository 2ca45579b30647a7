"""Methods against a reference: means, paired differences with intervals, ranks; overall, by condition and by row.

A row is a data set under a condition. Its runs are splits of the classes and seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from sortal.errors import InputError, listing
from sortal.research.benchmark import significance
from sortal.research.benchmark.comparison import ABOUT_BOUNDS, BOUND_TITLES
from sortal.research.benchmark.outcomes import MethodOutcome, SharedTask, named, reference_among
from sortal.research.benchmark.significance import MeanRanks, Nest
from sortal.research.benchmark.typesetting import Cell, Difference, Figure, Table, file_name
from sortal.system.text import plural

Score: TypeAlias = Literal["all", "old", "new", "mean"]
SCORE_TITLES: dict[Score, str] = {"all": "All", "old": "Old", "new": "New", "mean": "Class mean"}
ABOUT_MEANS = (
    "Accuracy on the unlabelled images in %: the mean over data sets of the mean over their splits of the mean over "
    "seeds. k error: |k − true| / true in %."
)
ABOUT_ROWS = (
    "About one interval in twenty excludes 0 by chance: look for rows that agree. There is neither an interval nor a "
    f"verdict for fewer than {significance.FEWEST_JUDGED} runs, whose differences all have the same sign by chance in "
    "more than one case in twenty."
)

ByTask: TypeAlias = Mapping[SharedTask, MethodOutcome]
Values: TypeAlias = Mapping[SharedTask, float]


@dataclass(frozen=True, kw_only=True)
class MethodComparison:
    """Tables of methods against a reference, and their ranks, if there are enough to rank."""

    tables: tuple[Table, ...]
    ranking: MeanRanks | None


def compare(
    outcomes: Sequence[MethodOutcome],
    *,
    reference: str | None = None,
    score: Score = "all",
    methods: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> MethodComparison:
    """Compare methods, by default all, with a reference, by default Sortal's own, or else the first one.

    What a method lacks is named in the notes of the first table. Methods are ranked on the tasks that all of
    them have; the difference of two is over those that both have.
    """
    everything = named(outcomes)
    reference = reference_among(everything, reference)
    by_name = _chosen(everything, methods, reference)
    values = {name: _attributes(tasks, score, 100) for name, tasks in by_name.items()}
    if not values[reference]:
        raise InputError(
            f"The reference {reference!r} must have a run with the score {score!r}, got none."
            + (" Records of earlier versions lack it: run them again." if score == "mean" else "")
        )
    tasks = dict.fromkeys(task for each in by_name.values() for task in each)
    ranked = [name for name in by_name if _bound(name) is None]
    shared = [task for task in tasks if all(task in values[name] for name in ranked)]
    ranking = significance.rank({name: _row_means(values[name], shared) for name in ranked})
    order = _order(values)
    lacking = [note for name in order for note in _lacking(name, by_name[name], values[name], tasks)]
    conditions = list(dict.fromkeys(task.condition for task in tasks))
    make = _Tables(by_name=by_name, values=values, reference=reference, score=score, order=order, ranking=ranking)
    bounds = [f"{ABOUT_BOUNDS} Neither is ranked."] if len(ranked) < len(by_name) else []
    first = (ABOUT_MEANS, make.about_differences, *bounds, _about_ranks(ranking, shared, tasks), *lacking, *notes)
    tables = [make.summary(notes=first), make.rows(conditions)]
    for condition in conditions if len(conditions) > 1 else ():
        name = file_name(f"condition-{condition}", {table.name for table in tables})
        tables.insert(-1, make.summary(condition, name=name, notes=first[:2]))
    return MethodComparison(tables=tuple(tables), ranking=ranking)


def _chosen(by_name: Mapping[str, ByTask], methods: Sequence[str], reference: str) -> dict[str, ByTask]:
    ways = {name: next(iter(tasks.values())).method for name, tasks in by_name.items()}
    if unknown := [each for each in methods if each not in (*ways, *ways.values())]:
        raise InputError(f"methods must be among {listing([*ways], show=20)}, got {', '.join(map(repr, unknown))}.")
    wanted = {reference, *methods, *BOUND_TITLES}
    return {name: each for name, each in by_name.items() if not methods or name in wanted or ways[name] in wanted}


def _nest(values: Values) -> Nest:
    """Return values by data set, split and seed; conditions of the same seed are averaged."""
    tree: dict[str, dict[str, dict[int, list[float]]]] = {}
    for task, value in sorted(values.items()):
        tree.setdefault(task.dataset, {}).setdefault(task.split, {}).setdefault(task.seed, []).append(value)
    return [
        [[sum(each) / len(each) for each in seeds.values()] for seeds in splits.values()] for splits in tree.values()
    ]


def _difference(values: Values, other: Values) -> Difference | None:
    paired = {task: value - other[task] for task, value in values.items() if task in other}
    if not paired:
        return None
    nest = _nest(paired)
    ends = significance.interval(nest) if len(paired) >= significance.FEWEST_JUDGED else None
    low, high = ends or (None, None)
    return Difference(mean=significance.mean(nest), low=low, high=high, n=len(paired))


def _row_means(values: Values, tasks: Sequence[SharedTask]) -> list[float]:
    rows = dict.fromkeys((task.dataset, task.condition) for task in tasks)
    of_rows = ({task: values[task] for task in tasks if (task.dataset, task.condition) == row} for row in rows)
    return [significance.mean(_nest(each)) for each in of_rows]


def _order(values: Mapping[str, Values]) -> list[str]:
    """Return the floor, the methods from the best on, and the ceiling."""

    def place(name: str) -> tuple[int, float, str]:
        mean = significance.mean(_nest(values[name])) if values[name] else float("-inf")
        return {"floor": 0, "ceiling": 2}.get(_bound(name) or "", 1), -mean, name

    return sorted(values, key=place)


def _bound(name: str) -> str | None:
    """Return floor or ceiling, whatever else the name tells; None for a method."""
    method = name.partition(" (")[0]
    return method if method in BOUND_TITLES else None


def _lacking(name: str, tasks: ByTask, values: Values, all_tasks: Mapping[SharedTask, None]) -> list[str]:
    """Name every task without a figure of a method."""
    absent = [task for task in all_tasks if task not in values]
    if not absent:
        return []

    def why(task: SharedTask) -> str:
        if task not in tasks:
            return ""
        error = tasks[task].error
        return " (undefined)" if error is None else f" (failed: {error})"

    listed = "; ".join(f"{task}{why(task)}" for task in absent)
    return [f"{name} lacks {len(absent)} of {plural(len(all_tasks), 'run')}: {listed}."]


def _about_ranks(ranking: MeanRanks | None, shared: Sequence[SharedTask], tasks: Mapping[SharedTask, None]) -> str:
    if ranking is None:
        methods, rows = significance.FEWEST_RANKED, significance.FEWEST_RANKED_ROWS
        return f"Ranks need at least {methods} methods that differ and {rows} rows that all have."
    return (
        f"Rank: mean over the {ranking.rows} rows (a data set under a condition) that all methods have, from "
        f"{len(shared)} of {plural(len(tasks), 'run')} each; two methods differ if their ranks are "
        f"{ranking.critical:.2f} apart (Nemenyi, 0.05). Friedman: chi-squared {ranking.statistic:.2f}, "
        f"p = {ranking.p:.2g}."
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tables:
    """What the tables of one comparison are made from."""

    by_name: Mapping[str, ByTask]
    values: Mapping[str, Values]
    reference: str
    score: Score
    order: Sequence[str]
    ranking: MeanRanks | None

    @property
    def heading(self) -> str:
        return f"{SCORE_TITLES[self.score]} − {self.reference}"

    @property
    def about_differences(self) -> str:
        return (
            f"{self.heading}: the mean difference on runs that both have, with a 95 % interval from "
            f"{significance.FEWEST_JUDGED} runs on: data sets, their splits and seeds drawn again with replacement "
            "(paired bootstrap)."
        )

    def summary(self, condition: str | None = None, *, name: str = "all", notes: Sequence[str]) -> Table:
        """Return the table of all methods, under one condition or over all."""

        def within(task: SharedTask) -> bool:
            return condition in (None, task.condition)

        has_mean = any(each.mean is not None for tasks in self.by_name.values() for each in tasks.values())
        scores = [each for each in SCORE_TITLES if each != "mean" or has_mean]
        rows: list[tuple[Cell, ...]] = []
        ranks = {} if self.ranking is None else self.ranking.ranks
        for method in self.order:
            tasks = {task: each for task, each in self.by_name[method].items() if within(task)}
            values = {task: each for task, each in self.values[method].items() if within(task)}
            shares = [_mean(_attributes(tasks, each, 100)) for each in scores]
            others = _mean(_attributes(tasks, "k_error", 100)), _mean(_attributes(tasks, "seconds")), len(values)
            rank = (replace(_mean({}), mean=ranks.get(method), digits=2),) if condition is None else ()
            rows.append((method, *shares, self._against(values, method), *rank, *others))
        return Table(
            name=name,
            title="All runs" if condition is None else f"Condition {condition}",
            header=(
                *("Method", *(SCORE_TITLES[each] for each in scores), self.heading),
                *(*(("Rank",) if condition is None else ()), "k error", "Seconds", "Runs"),
            ),
            rows=tuple(rows),
            notes=tuple(notes),
        )

    def rows(self, conditions: Sequence[str]) -> Table:
        """Return the table of every row: a data set under a condition, a method, and whether it is ahead."""
        found: list[tuple[Cell, ...]] = []
        several = len(conditions) > 1
        tasks = dict.fromkeys((task.dataset, task.condition) for each in self.values.values() for task in each)
        for dataset, condition in sorted(tasks, key=lambda task: conditions.index(task[1])):
            for name in self.order:
                own = {t: v for t, v in self.values[name].items() if (t.dataset, t.condition) == (dataset, condition)}
                against = self._against(own, name)
                first = (dataset, condition) if several else (dataset,)
                found.append((*first, name, _mean(own), against, _verdict(against), len(own)))
        first_headings = ("Data set", "Condition") if several else ("Data set",)
        header = (*first_headings, "Method", SCORE_TITLES[self.score], self.heading, "Verdict", "Runs")
        return Table(name="rows", title="Every row", header=header, rows=tuple(found), notes=(ABOUT_ROWS,))

    def _against(self, values: Values, name: str) -> Difference | None:
        return None if name == self.reference else _difference(values, self.values[self.reference])


def _attributes(tasks: ByTask, name: str, scale: float = 1) -> Values:
    found = {task: getattr(each, name) for task, each in tasks.items()}
    return {task: scale * value for task, value in found.items() if value is not None}


def _mean(values: Values) -> Figure:
    n = len(values)
    return Figure(mean=significance.mean(_nest(values)) if n else None, sd=None, n=n, runs=n)


def _verdict(difference: Difference | None) -> str:
    if difference is None:
        return ""
    if difference.low is None or difference.high is None:
        return "too few runs"
    return "ahead" if difference.low > 0 else "behind" if difference.high < 0 else "within noise"
