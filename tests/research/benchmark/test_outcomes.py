"""Outcomes from records and JSON lines: names that tell methods apart, repeated runs, and damaged files."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.sample_records import example, scores

from sortal.errors import InputError
from sortal.research.benchmark import records
from sortal.research.benchmark.outcomes import MethodOutcome, SharedTask, named, read_outcomes, reference_among
from sortal.research.benchmark.records import Bounds, KRecord, Record


def line(**changes: Any) -> str:
    usual = {"set": "trees", "condition": "H", "split": "first", "seed": 0, "method": "sortal", "asked": "auto"}
    usual |= {"version": "", "all": 0.5, "old": 0.75, "new": 0.25, "mean": 0.375, "k": 6, "true": 8, "interval": [5, 7]}
    return json.dumps({**usual, "seconds": 4, "ece": 0.1, "bins": [], **changes})


def given(**changes: Any) -> str:
    """Return the line of a method that got the true k."""
    return line(**{"interval": None, "k": 8, "method": "gcd", **changes})


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n\n")
    return path


def saved(root: Path, *found: Record) -> Path:
    for number, record in enumerate(found):
        records.save(record, root / str(number))
    return root


def test_a_json_line_is_an_outcome(tmp_path: Path) -> None:
    failed = json.dumps({"set": "trees", "condition": "F", "split": "first", "seed": 1, "method": "uno", "error": "no"})
    found, notes = read_outcomes([written(tmp_path / "a.jsonl", line(), failed)])
    assert notes == []
    figures: dict[str, Any] = {"all": 0.5, "old": 0.75, "new": 0.25, "mean": 0.375, "k_error": 0.25, "seconds": 4}
    assert found == [
        MethodOutcome(task=SharedTask("trees", "H", "first", 0), method="sortal", k_words="estimated k", **figures),
        MethodOutcome(task=SharedTask("trees", "F", "first", 1), method="uno", k_words="true k", error="no"),
    ]
    assert str(found[0].task) == "trees, H, first, seed 0"


@pytest.mark.parametrize(
    ("asked", "words"),
    [("auto", "true k"), ("true", "true k"), ("own", "the method's own k"), ("9", "k = 9")],
)
def test_a_line_says_which_k_a_method_was_given(tmp_path: Path, asked: str, words: str) -> None:
    found, _ = read_outcomes([written(tmp_path / "a.jsonl", given(asked=asked))])
    assert [each.k_words for each in found] == [words]


def test_a_record_is_an_outcome_whose_condition_is_the_network(tmp_path: Path) -> None:
    record = example(
        "table3/cub/gcd",
        2,
        transductive=scores(50, None, 40, class_mean=0.45),
        timings={"learn": 90.0, "clusters": 30.0},
    )
    (found,), notes = read_outcomes([saved(tmp_path, record)])
    condition = "vit_base_patch16_224.dino, model.safetensors (sha256 0123456789ab)"
    assert found.task == SharedTask("cub", condition, "", 2)
    assert (found.method, found.k_words, found.version, notes) == ("gcd", "true k", "", [])
    assert (found.all, found.old, found.new, found.mean) == (0.5, None, 0.4, 0.45)
    assert found.k_error == 0
    assert found.seconds == pytest.approx(120)


def test_records_have_a_floor_and_a_ceiling_for_each_seed(tmp_path: Path) -> None:
    both = Bounds(floor=scores(20, 30, 10), ceiling=scores(90, 91, 89, class_mean=0.88))
    auto = KRecord(asked="auto", k=190, true=200, error=0.05)
    runs = [example(f"table3/cub/{method}", seed, bounds=both) for method in ("gcd", "uno") for seed in (0, 1)]
    found, notes = read_outcomes([saved(tmp_path, *runs, example(seed=0, bounds=both, k=auto))])
    by_name = named(found)
    assert [*by_name] == ["ceiling", "floor", "gcd (estimated k)", "gcd (true k)", "uno"]
    assert [each.all for each in by_name["floor"].values()] == [0.2, 0.2], "once for each seed"
    assert {(each.mean, each.seconds) for each in by_name["ceiling"].values()} == {(0.88, None)}
    assert notes == []


def test_settings_given_by_hand_are_in_a_name_only_where_a_method_has_several(tmp_path: Path) -> None:
    def run(name: str, **losses: Any) -> Record:
        recipe = {**example().recipe, "losses": losses}
        return example(name=f"my flowers/{name}", version=None, dataset="my flowers", recipe=recipe)

    gcd, uno = run("gcd losses.a=1", a=1), run("uno losses.a=1 losses.b=x", a=1, b="x")
    by_name = named(read_outcomes([saved(tmp_path / "one", gcd, uno)])[0])
    assert {*by_name} == {"gcd", "uno"}
    several = named(read_outcomes([saved(tmp_path / "two", gcd, uno, run("gcd", a=2), run("uno losses.a=3", a=3))])[0])
    assert {*several} == {"gcd", "gcd (losses.a=1)", "uno (losses.a=1 losses.b=x)", "uno (losses.a=3)"}
    assert reference_among(several, "gcd") == "gcd"
    with pytest.raises(InputError, match="The reference must be one of"):
        reference_among(several, "uno")


def test_names_of_records_are_their_rows(tmp_path: Path) -> None:
    k = KRecord(asked="auto", k=9, true=10, error=0.1)
    every = [example("table4/cub", k=k), example("table5/cifar100/3"), example(name="flowers/uno-4", version=None)]
    found, _ = read_outcomes([saved(tmp_path, *every)])
    assert {each.method for each in found} == {"kmeans", "table5-3", "uno-4"}


def test_runs_with_other_settings_are_other_methods_and_repeated_ones_are_noted(tmp_path: Path) -> None:
    other = {**example().recipe, "n_init": 1}
    again = example(transductive=scores(70, 70, 70), finished="2026-02-01T10:00:00+00:00")
    found, notes = read_outcomes([saved(tmp_path, example(), again, example(recipe=other))])
    assert {each.all for each in found} == {0.7, 0.5}, "the newest run with the same settings, and the other one"
    assert {*named(found)} == {"gcd (1)", "gcd (2)"}
    assert "gcd (1), gcd (2) on cub differ in n_init" in notes[0]
    assert any("seed 0 was run 2 times; the newest run counts." in note for note in notes)


def test_names_tell_k_and_version_only_where_they_differ(tmp_path: Path) -> None:
    lines = [line(), line(asked="true", interval=None), given(version="old"), given(version="new"), given(method="uno")]
    found, _ = read_outcomes([written(tmp_path / "a.jsonl", *lines)])
    by_name = named(found)
    assert [*by_name] == ["sortal (estimated k)", "sortal (true k)", "gcd (old)", "gcd (new)", "uno"]
    assert reference_among(by_name, "sortal") == "sortal (estimated k)"
    assert reference_among(by_name, "sortal (true k)") == "sortal (true k)"
    assert reference_among(by_name, "uno") == "uno"
    for ambiguous in ("gcd", "nothing"):
        with pytest.raises(InputError, match=rf"The reference must be one of .*'gcd \(old\)'.*, got '{ambiguous}'\."):
            reference_among(by_name, ambiguous)


def test_the_last_of_two_lines_counts_and_a_failed_run_belongs_to_its_method(tmp_path: Path) -> None:
    first = written(tmp_path / "a.jsonl", line(), given(), given(seed=1))
    failed = json.dumps({**json.loads(line(seed=1)), "interval": None, "error": "no"})
    second = written(tmp_path / "b.jsonl", given(asked="true", all=0.625), failed, line(seed=2))
    found, notes = read_outcomes([first, second, first])
    by_name = named(found)
    assert [*by_name] == ["sortal", "gcd"], "others get the true k whatever sortal was asked for"
    assert by_name["gcd"][SharedTask("trees", "H", "first", 0)].all == 0.625
    assert by_name["sortal"][SharedTask("trees", "H", "first", 1)].error == "no"
    assert notes == ["gcd: 1 run made more than once; the last one counts."]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", ", got none."),
        ("\n \n", ", got none."),
        ("{", "; in line 1, "),
        (line() + "\n[1]", "; in line 2, it must be an object, got '0'."),
        (json.dumps({"set": "a"}), "; in line 1, it has no key 'condition'."),
        (line(seed="x"), "; in line 1, it.seed must be int, got 'x'."),
        (line(all=50.0), "; in line 1, all must be from 0 to 1, got 50.0."),
        (line(new=float("nan")), "; in line 1, new must be from 0 to 1, got nan."),
        ("[" * 100_000, "; in line 1, "),
        ("\ud800", ", got other bytes."),
    ],
)
def test_damaged_lines_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError) as error:
        read_outcomes([path])
    assert str(error.value).startswith(f"The results {str(path)!r} must hold a JSON object per line, as ")
    assert problem in str(error.value)


def test_missing_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.jsonl' cannot be read: No such file or directory\."):
        read_outcomes([tmp_path / "a.jsonl"])
    with pytest.raises(InputError, match="got no path"):
        read_outcomes([])
    with pytest.raises(InputError, match="contains none"):
        read_outcomes([tmp_path])
