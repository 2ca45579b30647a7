"""LaTeX that a small reader of it turns back into the same cells, and numbers that survive in CSV."""

import io
from csv import DictReader

import pytest
from support.latex_tables import read_latex
from support.sample_run import HOSTILE

from sortal.research.benchmark.typesetting import (
    Cell,
    Difference,
    Figure,
    Table,
    csv,
    latex,
    latex_text,
    markdown,
)
from sortal.system.text import plain


def figure(mean: float | None, sd: float | None = None) -> Figure:
    return Figure(mean=mean, sd=sd, n=3, runs=3)


def table(*rows: tuple[Cell, ...], title: str = "Ours & theirs", notes: tuple[str, ...] = ("100 % of it.",)) -> Table:
    return Table(name="ours", title=title, header=("Method", "All", "Ahead"), rows=rows, notes=notes)


def test_latex_is_read_back_as_the_same_table() -> None:
    made = table(
        ("sortal [1]*", figure(53.0, 3.61), None),
        ("50 % of_a\\b {x} #1 ~^ <k|l> $5", figure(None), Difference(mean=-3.14, low=-6, high=0.04, n=9)),
        ("a--b ``c'' ?` – × ±", figure(100), Difference(mean=2, low=None, high=None, n=1)),
    )
    title, columns, (header, *rows), notes = read_latex(latex(made))
    assert (title, columns, notes) == ("Ours & theirs", "lrr", "100 % of it.")
    assert header == ["Method", "All", "Ahead"]
    assert rows == [
        ["sortal [1]*", "53.0 ± 3.6", "–"],
        ["50 % of_a\\b {x} #1 ~^ <k|l> $5", "–", "−3.1 [−6.0, +0.0]"],
        ["a--b ``c'' ?` – × ±", "100.0", "+2.0"],
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text_in_latex(name: str) -> None:
    _, _, rows, _ = read_latex(latex(table((name, 1, 2), (f"[{name}]", 1, 2), title=name, notes=(name,))))
    assert [row[0] for row in rows[1:]] == [plain(name), plain(f"[{name}]")]


def test_ligatures_are_broken_up() -> None:
    assert latex_text("a--b---c") == "a-{}-b-{}-{}-c"
    assert latex_text("1–2 −3") == "1--2 $-$3"


def test_differences_have_columns_of_their_own_in_csv_and_brackets_in_markdown() -> None:
    made = table(("a", figure(1 / 3), None), ("b", figure(2.5), Difference(mean=1.25, low=-0.5, high=3.5, n=4)))
    first, second = DictReader(io.StringIO(csv(made).decode()))
    names = ["Method", "All mean", "All sd", "All n", *(f"Ahead {part}" for part in ("mean", "low", "high", "n"))]
    assert [*first] == names
    assert [first[name] for name in names] == ["a", "0.333333", "", "3", "", "", "", ""]
    assert [second[name] for name in names] == ["b", "2.5", "", "3", "1.25", "-0.5", "3.5", "4"]
    assert "| b | 2.5 | +1.2 \\[−0.5, +3.5\\] |" in markdown(made)
