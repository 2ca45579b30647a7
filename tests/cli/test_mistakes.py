"""Mistakes on the command line."""

from pathlib import Path

import pytest
from support.command_line import invoke

from sortal.cli import app


def test_bad_usage_exits_2_and_says_the_rule_and_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    commands = ", ".join(name for name in app.app if not name.startswith("-"))
    for tokens, message in (
        ("dmo", f"sortal has no command 'dmo'. Did you mean demo? It has {commands}. See sortal --help."),
        ("tests", "sortal has no command 'tests'. To sort a folder: sortal discover tests. It has "),
        ("demo --zzz 1", "sortal demo has no option --zzz. See sortal demo --help."),
        ("discover x --epoch 1", "sortal discover has no option --epoch. Did you mean --epochs?"),
        ("discover x -k 1", "sortal discover has no option -k. Did you mean --k?"),
        ("discover", "sortal discover needs IMAGES, a folder of images, or several; or --features, a file of feature"),
        ("predict run", "sortal predict needs IMAGES, a folder of images, or several; or --features, a file of"),
        ("check", "sortal check needs IMAGES: a folder of images, or several. See sortal check --help."),
        ("decisions merge run", "sortal decisions merge needs OTHER: the decisions.jsonl of another person's copy"),
        (
            "discover x --k",
            "--k needs a value: number of classes, including the known ones; auto estimates it, own leaves",
        ),
        ("discover x --k ten", "--k must be a whole number, 'auto' or 'own', got 'ten'. See sortal discover --help."),
        ("discover x --k 3.5", "--k must be a whole number, 'auto' or 'own', got '3.5'. See sortal discover --help."),
        ("discover x --k 3 --k 4", "--k is given more than once. Give it once."),
        ("discover x --held-out half", "--held-out must be a number, got 'half'."),
        ("discover x --workers two", "--workers must be a whole number, got 'two'."),
        ("discover x --views dead", "--views must be a whole number, 'auto' or 'live', got 'dead'."),
        (
            "discover x --folders class",
            "--folders must be 'classes', 'reviewed' or 'ignore', got 'class'. Did you mean classes?",
        ),
        ("sample digit out", "NAME must be 'digits', got 'digit'. Did you mean digits?"),
        ("export run --out x", "sortal export needs --format, which must be 'csv', 'parquet', 'embeddings', "),
        ("benchmark cub --epochs auto", "--epochs must be a whole number, got 'auto'."),
        ("benchmark cub --device gpu", "--device must be 'auto', 'cpu', 'cuda' or 'mps', got 'gpu'. See sortal"),
        ("figures run legacy", "sortal figures takes RUN and options, but got 'legacy' as well."),
        ("demo out", "sortal demo takes options only, got 'out'."),
    ):
        done = invoke(*tokens.split())
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"sortal: error: {message}")
        assert done.err.endswith("--help.\n")
