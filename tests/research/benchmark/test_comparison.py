"""Tables: means computed by hand, different runs in separate rows, missing figures blank."""

import io
import os
from collections.abc import Sequence
from csv import DictReader
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sample_records import example, scores
from support.sample_run import HOSTILE

from sortal.errors import InputError
from sortal.research.benchmark import typesetting
from sortal.research.benchmark.comparison import BOUND_TITLES, tables
from sortal.research.benchmark.presets import PRESETS
from sortal.research.benchmark.records import Bounds, KRecord, Record, RequestedK
from sortal.research.benchmark.typesetting import DOCUMENT_FILE, Figure, Table, csv, document, latex, markdown, write
from sortal.system.csv_tables import read
from sortal.system.files import LOCK_FILE, replace_all

# All 50, 52, 57: mean 53, deviations −3, −1, 4, so the sd is √(26 / 2) = 3.606; Old is always 60;
# New 40, 44, 45: mean 43, √(14 / 2) = 2.646.
THREE = ((50, 60, 40), (52, 60, 44), (57, 60, 45))


def runs(of: str = "table3/cub/gcd", **changes: Any) -> list[Record]:
    return [example(of, seed, **{"transductive": scores(*three), **changes}) for seed, three in enumerate(THREE)]


def own(row: str, seed: int = 0, **changes: Any) -> Record:
    """Make the record of a run outside the presets."""
    given = {"name": f"flowers55/{row}", "version": None, "dataset": "flowers55", "backbone": "vit_small.dino"}
    return example("table3/cub/gcd", seed, **{**given, **changes})


def k(found: int, true: int, asked: RequestedK = "auto") -> KRecord:
    return KRecord(asked=asked, k=found, true=true, error=abs(found - true) / true)


def changed(record: Record, **training: Any) -> dict[str, Any]:
    return {**record.recipe, "training": {**record.recipe["training"], **training}}


def row_of(table: Table, label: str) -> dict[str, Any]:
    (row,) = [row for row in table.rows if row[0] == label]
    return dict(zip(table.header, row, strict=True))


def shown(table: Table, label: str) -> list[str]:
    """Return the cells of a row that contain figures of the records, as text."""
    return [str(cell) for cell in row_of(table, label).values() if cell is not None and str(cell)[0] != "–"]


def row_notes(table: Table) -> list[str]:
    """Return the notes on particular rows."""
    general = ("Accuracy on", "GCD: our epoch", "SimGCD is", "The last epoch", "Mean ±", "In %", "Recipe version")
    return [note for note in table.notes if not note.startswith(general)]


def test_every_preset_has_a_cell_next_to_its_published_figure() -> None:
    for name, preset in PRESETS.items():
        (table,) = tables([example(name, transductive=scores(12.3, 45.6, 78.9), k=k(7, 7, preset.k))])
        assert table.name == name.partition("/")[0]
        ours = [[cell for cell in row if isinstance(cell, Figure) and cell.n] for row in table.rows]
        (figures,) = [row for row in ours if row]
        assert [each.mean for each in figures] == pytest.approx([7, 0] if preset.k == "auto" else [12.3, 45.6, 78.9])
        known = {"sortal": 0, "rlcd": 1}.get(name.rpartition("/")[2], len(figures))  # of RLCD only All is
        assert [each.published is not None for each in figures] == [at < known for at in range(len(figures))]
    assert tables([]) == ()
    names = ("table2/cifar10/uno", "table6/fgvc_aircraft/gcd", "table4/cub", "table5/cifar100/2")
    made = tables([example(name, k=k(1, 1, PRESETS[name].k)) for name in names])
    assert [table.name for table in made] == ["table2", "table4", "table5", "table6"], "only those with a figure"


def test_the_ablation_describes_its_rows() -> None:
    (table,) = tables([example("table5/cifar100/4")])
    labels, backbones, *has, clusterings = ([str(row[at]) for row in table.rows] for at in range(5))
    assert labels == [f"Row {number}" for number in range(1, 7)]
    assert backbones == ["ResNet-50", *["ViT-B/16"] * 5]
    assert has == [["no", "no", "yes", "no", "yes", "yes"], ["no", "no", "no", "yes", "yes", "yes"]]
    assert clusterings == [*["k-means"] * 5, "semi-supervised k-means"]
    assert str(row_of(table, "Row 4")["CIFAR-100 New"]) == "40.0 (35.0)"
    assert str(row_of(table, "Row 6")["Herbarium-19 New"]) == "– (27.0)"


GOLDEN = """\
## Table 4: number of classes

| Data set | k | k of each seed | Classes | Error | Seeds |
| --- | ---: | --- | ---: | ---: | ---: |
| CIFAR-10 | 9 ± 0 (9) | 9, 9 | 10 | 10.0 ± 0.0 (10.0) | 2 |
| CIFAR-100 | – (100) | – | 100 | – (0.0) | – |
| ImageNet-100 | – (109) | – | 100 | – (9.0) | – |
| CUB-200-2011 | 210.0 ± 17.3 (231) | 190, 220, 220 | 200 | 8.3 ± 2.9 (15.5) | 3 |
| Stanford Cars | 190 (230) | 190 | 196 | 3.1 (17.3) | 1 |
| Herbarium-19 | – (520) | – | 683 | – (23.9) | – |

- Mean ± sample standard deviation over seeds; published figures in brackets. The error is in %.
- Recipe version 1; vit_base_patch16_224.dino with model.safetensors (sha256 0123456789ab).
"""
GOLDEN_CSV = """\
"Data set","k mean","k sd","k n","k published","k of each seed","Classes",\
"Error mean","Error sd","Error n","Error published","Seeds"
"CIFAR-10",9.0,0.0,2,9,"9, 9",10,10.0,0.0,2,10.0,2
"CIFAR-100","","","",100,"",100,"","","",0.0,""
"ImageNet-100","","","",109,"",100,"","","",9.0,""
"CUB-200-2011",210.0,17.320508,3,231,"190, 220, 220",200,8.333333,2.886751,3,15.5,3
"Stanford Cars",190.0,"",1,230,"190",196,3.061224,"",1,17.346939,1
"Herbarium-19","","","",520,"",683,"","","",23.8653,""
"""


def test_the_table_of_k_is_written_in_full() -> None:
    found = {("cifar10", 10): (9, 9), ("cub", 200): (190, 220, 220), ("stanford_cars", 196): (190,)}
    each = [(*of, seed, at) for of, ks in found.items() for seed, at in enumerate(ks)]
    (table,) = tables([example(f"table4/{dataset}", seed, k=k(at, true)) for dataset, true, seed, at in each])
    assert markdown(table) == GOLDEN
    assert csv(table).decode() == GOLDEN_CSV


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"version": 2}, "version (1, 2)"),
        ({"version": 2, "recipe": changed(example(), epochs=9)}, "version (1, 2); training.epochs (200, 9)"),
        ({"weights": "other.pth"}, "weights (model.safetensors (sha256 0123456789ab), other.pth)"),
        ({"transductive": scores(10, 20, 30, images=99)}, "images (100, 99)"),
        ({"k": k(200, 199, "true")}, "classes (199, 200)"),
        ({"recipe": {**example().recipe, "added": 1}}, "added (1, –)"),
    ],
)
def test_runs_that_differ_have_separate_rows(changes: dict[str, Any], difference: str) -> None:
    other = example("table3/cub/gcd", 3, **{"transductive": scores(10, 20, 30), **changes})
    (table,) = tables([*runs(), other])
    both = [shown(table, label)[1] for label in ("GCD (1)", "GCD (2)")]
    assert sorted(both) == ["10.0 (51.3)", "53.0 ± 3.6 (51.3)"]
    assert row_notes(table) == [f"GCD (1), GCD (2) on CUB-200-2011 differ in {difference}."]


def test_modified_presets_are_not_in_the_papers_table() -> None:
    recipe = example().recipe
    others: list[dict[str, Any]] = [
        *({"version": None}, {"weights": "random weights"}, {"dataset": "stanford_cars"}),
        *({"k": k(200, 200, 200)}, {"k": k(199, 200)}, {"backbone": "vit_small_patch16_224.dino"}),
        *({"recipe": changed(example(), epochs=10)}, {"recipe": {**recipe, "n_init": 1}}),
        {"recipe": {**recipe, "losses": {**recipe["losses"], "output": "bottleneck"}}},
    ]
    for other in (example(**changes) for changes in others):
        (table,) = tables([other])
        assert table.name == f"{other.dataset}-{other.backbone}-k-{other.k.asked}"
        assert [row[0] for row in table.rows] == ["table3/cub/gcd"]  # the full name


def test_a_row_has_the_same_weights_on_all_data_sets() -> None:
    """Even if a data set lacks the first row."""
    records = [
        *runs("table3/cub/gcd"),
        example("table3/cub/gcd", 7, weights="other.pth", transductive=scores(1, 1, 1)),
        *runs("table3/herbarium19/gcd", weights="other.pth"),
    ]
    (table,) = tables(records)
    for label, seeds in (("GCD (1)", [3, None]), ("GCD (2)", [1, 3])):
        assert [row_of(table, label)[f"{name} seeds"] for name in ("CUB-200-2011", "Herbarium-19")] == seeds
    weights = "model.safetensors (sha256 0123456789ab), other.pth"
    assert row_notes(table) == [f"GCD (1), GCD (2) on CUB-200-2011 differ in weights ({weights})."]
    assert (table.name, table.title) == ("table3", "Table 3: fine-grained images")
    assert table.header[:5] == ("Method", *(f"CUB-200-2011 {what}" for what in ("All", "Old", "New", "seeds")))
    assert [row[0] for row in table.rows] == ["k-means", "RankStats+", "UNO+", "GCD (1)", "GCD (2)", "SimGCD", "Sortal"]
    assert str(row_of(table, "UNO+")["Stanford Cars All"]) == "– (35.5)"


def test_the_newest_run_of_a_repeated_seed_counts() -> None:
    again = [
        example(seed=1, transductive=scores(99, 99, 99), finished="2025-12-31T23:00:00+00:00"),
        example(seed=2, transductive=scores(60, 60, 48), finished="2026-01-01T10:30:00+00:00"),
        example(seed=2, transductive=scores(98, 98, 98), finished="2026-01-01T11:15:00+02:00"),  # 9:15 in UTC
    ]
    (table,) = tables([*runs(), *again])
    assert shown(table, "GCD")[1:] == ["54.0 ± 5.3 (51.3)", "60.0 ± 0.0 (56.6)", "44.0 ± 4.0 (48.7)", "3"]
    assert row_notes(table) == [
        "GCD on CUB-200-2011: seed 1 was run 2 times; the newest run counts.",
        "GCD on CUB-200-2011: seed 2 was run 3 times; the newest run counts.",
    ]


def test_runs_on_other_machines_and_versions_share_a_mean_and_are_noted() -> None:
    other: dict[str, Any] = {"machine": "Linux, one GPU", "versions": {"sortal": "0.1", "torch": "2.7"}}
    tested = [example(seed=seed, inductive=scores(1, 2, 3, images=10 - seed)) for seed in range(2)]
    (table,) = tables([*tested, example(seed=2, **other), example("table3/stanford_cars/gcd", **other)])
    assert row_of(table, "GCD")["CUB-200-2011 seeds"] == 3
    assert row_notes(table) == [
        "GCD on CUB-200-2011: the runs differ in machine (Linux x86_64, 2 cores, Linux, one GPU); torch (2.6, 2.7); "
        "test images (10, 9)."
    ]
    (table,) = tables([example("table5/cifar100/1", weights="dino.pth"), example("table5/cifar100/2", version=3)])
    vit = "vit_base_patch16_224.dino with model.safetensors (sha256 0123456789ab)"
    assert f"Recipe version 1, 3; resnet50 with dino.pth; {vit}." in table.notes


GOLDEN_OTHERS = """\
## flowers55: vit_small.dino, model.safetensors (sha256 0123456789ab), true k

| Method | All | Old | New | Legacy All | Old by name | NMI | ARI | k | Inductive All | Inductive Old | Inductive New \
| Seeds | Minutes |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| k-means | 20.0 | – | 20.0 | 20.0 | – | 0.0 | -1.5 | 55 | – | – | – | 1 | 0.5 |
| GCD | 53.0 ± 3.6 | 60.0 ± 0.0 | 43.0 ± 2.6 | 53.0 ± 3.6 | 75.0 ± 0.0 | 50.0 ± 0.0 | 25.0 ± 0.0 | 55 \
| 71.0 ± 1.4 | 80.0 ± 0.0 | 60.0 ± 0.0 | 3 | 2.0 ± 1.0 |
| my_row | 50.0 | 60.0 | 40.0 | 50.0 | 75.0 | 50.0 | 25.0 | 55 | – | – | – | 1 | 2.0 |

- In %, except k, seeds and minutes: mean ± sample standard deviation over seeds. Legacy matches old and new classes \
separately; Old by name compares the names of categories, without a match; Inductive is on the test split, \
whose images of old classes decide the epoch where one is selected. Minutes exclude stages reused from other runs.
- GCD: only 2 of 3 seeds have Inductive All, Inductive Old, Inductive New.
"""


def test_a_table_of_other_runs_is_written_in_full() -> None:
    made = partial(own, k=k(55, 55, "true"))
    tested = (None, scores(70, 80, 60), scores(72, 80, 60))
    figures = scores(20, None, 20, nmi=0.0, ari=-0.015, known_accuracy=None)
    records = [made("my_row"), made("kmeans", transductive=figures, timings={"k": 30})]
    for seed, three in enumerate(THREE):
        timings = {"learn": 60 + 60 * seed}
        records.append(made("gcd", seed, transductive=scores(*three), inductive=tested[seed], timings=timings))
    (table,) = tables(records)
    assert markdown(table) == GOLDEN_OTHERS
    text = csv(table).decode()
    assert text.splitlines()[1].startswith('"k-means",20.0,"",1,"","","",20.0,"",1,'), "Old is undefined"
    assert "published" not in text


def test_rows_have_titles_and_only_the_settings_that_are_not_shared() -> None:
    """A method from outside has the title that it was run under; its code may be missing here."""
    both = Bounds(floor=scores(20, 30, 10), ceiling=scores(90, 91, 89))
    outside = partial(own, method="lego", title="My Lego", bounds=both)
    runs = [own("gcd losses.a=1 losses.b=2", bounds=both), outside("lego losses.a=1 losses.b=3")]
    (table,) = tables(runs)
    floor, ceiling = BOUND_TITLES.values()
    assert [row[0] for row in table.rows] == [floor, "GCD losses.b=2", "My Lego losses.b=3", ceiling]
    assert table.notes[-1] == "All methods were run with losses.a=1."
    (table,) = tables([*runs, own("simgcd", bounds=both)])
    names = ["GCD losses.a=1 losses.b=2", "SimGCD", "My Lego losses.a=1 losses.b=3"]
    assert [row[0] for row in table.rows] == [floor, *names, ceiling]
    (table,) = tables([outside("lego losses.a=1")])
    assert table.rows[1][0] == "My Lego"


def test_each_data_set_backbone_weights_and_k_has_its_own_table() -> None:
    changes: list[dict[str, Any]] = [{}, {"k": k(50, 55)}, {"k": k(50, 55, 50)}, {"weights": "other"}]
    changes += [{"backbone": "resnet50"}, {"dataset": "cars"}]
    made = tables([own("uno"), *(own("gcd", **each) for each in changes)])
    small = [f"flowers55-vit_small.dino-k-{which}" for which in ("50", "auto", "true", "true-2")]
    assert [table.name for table in made] == ["cars-vit_small.dino-k-true", "flowers55-resnet50-k-true", *small]
    assert [[row[0] for row in table.rows] for table in made[-2:]] == [["UNO+", "GCD"], ["GCD"]]
    assert [table.title.split(", ")[-1] for table in made[2:4]] == ["k = 50", "estimated k"]
    assert [str(row_of(table, "GCD")["k"]) for table in made[2:5]] == ["50", "50", "200"]
    (table,) = tables([own("gcd", seed, k=k(found, 55)) for seed, found in enumerate((49, 49, 50))])
    assert str(row_of(table, "GCD")["k"]) == "49.3 ± 0.6", "an estimate has a spread"
    (table,) = tables([own("gcd"), own("gcd", 1, recipe=changed(example(), epochs=10, views=8))])
    assert [row[0] for row in table.rows] == ["GCD (1)", "GCD (2)"]
    assert row_notes(table) == ["GCD (1), GCD (2) differ in training.epochs (10, 200); training.views (8, None)."]


def mixed() -> list[Record]:
    return [
        *runs(),
        *runs("table3/herbarium19/gcd", weights="other.pth"),
        example(seed=0, finished="2026-01-02", transductive=scores(1, 2, 3)),
        example(seed=0, transductive=scores(3, 2, 1)),  # as old as another, and different
        example("table5/cifar100/3", 4, version=2),
        example("table4/cub", k=k(210, 200)),
        *(own("gcd", seed, transductive=scores(*three)) for seed, three in enumerate(THREE)),
        own("gcd", recipe=changed(example(), epochs=1)),
        own("gcd", dataset="Flowers55"),
        own("kmeans", k=k(3, 4, 3)),
    ]


@hypothesis.settings(deadline=None, max_examples=30)
@given(st.permutations(mixed()))
def test_the_order_of_records_does_not_matter(records: Sequence[Record]) -> None:
    assert tables(records) == tables(mixed())


@pytest.mark.parametrize("name", [*HOSTILE, "a|b", "=HYPERLINK(1)", "`*_[x](y)_*`", "../../x", ""])
def test_hostile_names_are_escaped(tmp_path: Path, name: str) -> None:
    made = tables([own("gcd", dataset=name, name=f"{name}/{name}", backbone=name, weights=name, machine=name)])
    lines = document(made).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 3
    assert {row.replace("\\|", "").count("|") for row in rows} == {len(made[0].header) + 1}
    assert all(line.isprintable() and "<" not in line for line in lines)
    paths = write(made, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == sorted([LOCK_FILE, *(path.name for path in paths)])
    assert os.listdir(tmp_path) == ["out"]
    (row,) = DictReader(io.StringIO(paths[1].read_bytes().decode(errors="replace")))
    assert not row["Method"].startswith(("=", "+", "-", "@"))
    assert read(paths[1])["Method"] == [made[0].rows[0][0]]


def test_tables_are_written_as_one_text_and_a_csv_and_a_latex_file_each(tmp_path: Path) -> None:
    """Earlier tables are overwritten only if forced, and other files never."""
    made, out = tables([*runs(), own("gcd"), example("table4/cub", k=k(210, 200))]), tmp_path / "a" / "b"
    stems = ["table3", "table4", "flowers55-vit_small.dino-k-true"]
    paths, names = write(made, out), [DOCUMENT_FILE, *(f"{stem}.{kind}" for stem in stems for kind in ("csv", "tex"))]
    assert (DOCUMENT_FILE, paths) == ("tables.md", tuple(out / name for name in names))
    assert paths[0].read_text(encoding="utf-8") == document(made)
    assert document(made) == "# Benchmarks\n\n" + "\n".join(map(markdown, made))
    assert [path.read_bytes() for path in paths[1::2]] == [*map(csv, made)]
    assert [path.read_text(encoding="utf-8") for path in paths[2::2]] == [*map(latex, made)]

    (out / "mine.csv").write_text("mine")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    fewer = tables([own("gcd"), *runs()])
    with pytest.raises(InputError, match=r"'.*tables\.md' already exists\. .*force=True"):
        write(fewer, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    write(fewer, out, force=True)
    assert {*os.listdir(out)} == {LOCK_FILE, "mine.csv", *names}, "nothing is deleted"
    assert (out / DOCUMENT_FILE).read_text(encoding="utf-8") == document(fewer)
    with pytest.raises(InputError, match=r"Tables are written to a folder, got '.*mine.csv', which is a file"):
        write(fewer, out / "mine.csv", force=True)
    assert (out / "mine.csv").read_text() == "mine"


def test_tables_of_two_processes_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = replace_all

    def late(*values: Any) -> None:
        monkeypatch.setattr(typesetting, "replace_all", real)
        with pytest.raises(InputError, match="Another process is using"):
            write(tables([own("gcd")]), tmp_path)
        real(*values)

    monkeypatch.setattr(typesetting, "replace_all", late)
    write(tables(runs()), tmp_path)
    assert (tmp_path / DOCUMENT_FILE).read_text(encoding="utf-8") == document(tables(runs()))
