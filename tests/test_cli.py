import io
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sortal
from sortal import check, cli, show
from sortal.demo import DemoResult
from sortal.errors import InputError, SortalError
from sortal.metrics import Accuracy
from sortal.reading import read_images

RESULT = DemoResult(
    n_labelled=450,
    n_unlabelled=1347,
    old=(0, 1, 2, 3, 4),
    new=(5, 6, 7, 8, 9),
    k=12,
    k_true=10,
    k_estimated=True,
    plain=Accuracy(all=0.75, old=0.5, new=0.875),
    semi_supervised=Accuracy(all=0.9, old=None, new=1.0),
    learned=Accuracy(all=0.95, old=0.9, new=0.975),
    seconds=1.26,
)
RUN = "import sys; from sortal.cli import main; sys.exit(main())"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Replaces the demo by one that notes its arguments and returns RESULT."""
    seen: list[dict[str, object]] = []

    def run(*, on_progress: Callable[[str, int, int], None], **arguments: object) -> DemoResult:
        on_progress("Learning", 3, 7)
        on_progress("Clustering with labels", 0, 0)
        seen.append(arguments)
        return RESULT

    monkeypatch.setattr("sortal.demo.run", run)
    return seen


@pytest.fixture(autouse=True)
def terminal_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tester's own terminal says must not change what is printed here."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(**_: object) -> DemoResult:
        raise error

    monkeypatch.setattr("sortal.demo.run", run)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{sortal.__version__}\n"


@pytest.mark.parametrize(
    ("tokens", "example"),
    [
        ([], "sortal demo  "),
        (["--help"], "sortal demo  "),
        (["demo", "--help"], "sortal demo --k auto"),
        (["check", "--help"], "sortal check photos --labels labels.csv"),
        (["sample", "--help"], "sortal sample digits OUT"),
    ],
)
def test_help_has_examples(tokens: list[str], example: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(tokens) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: sortal")
    assert example in out.split("Examples:")[1]


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "sortal", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sortal.__version__}\n"


@pytest.mark.parametrize("token", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(token: str) -> None:
    code = (
        "import sys; from sortal.cli import main; main(sys.argv[1:]); "
        "print(*{'PIL', 'numpy', 'scipy', 'sklearn', 'torch'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, token], capture_output=True, text=True, check=True)
    assert done.stderr.split() == []


def test_demo_as_a_table(calls: list[dict[str, object]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo"]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "1,797 handwritten digits, 450 labelled. Old classes 0–4, new classes 5–9.",
        "k = 12, estimated; the truth is 10.",
        "",
        "Accuracy, %                                  All    Old     New",
        "───────────────────────────────────────────────────────────────",
        "pixels, plain k-means                       75.0   50.0    87.5",
        "pixels, semi-supervised k-means             90.0    n/a   100.0",
        "learned features, semi-supervised k-means   95.0   90.0    97.5",
        "",
        "Measured on the 1,347 unlabelled images; 1.3 s.",
    ]


def test_demo_as_json(calls: list[dict[str, object]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "n_labelled": 450,
        "n_unlabelled": 1347,
        "old": [0, 1, 2, 3, 4],
        "new": [5, 6, 7, 8, 9],
        "k": 12,
        "k_true": 10,
        "k_estimated": True,
        "plain": {"all": 0.75, "old": 0.5, "new": 0.875},
        "semi_supervised": {"all": 0.9, "old": None, "new": 1.0},
        "learned": {"all": 0.95, "old": 0.9, "new": 0.975},
        "seconds": 1.26,
    }


def test_demo_options_reach_the_library(calls: list[dict[str, object]]) -> None:
    assert cli.main(["demo"]) == 0
    assert cli.main(["demo", "--k", "7", "--labelled", "0.25", "--epochs", "2", "--n-init", "3", "--seed", "5"]) == 0
    assert cli.main(["demo", "--k", "auto", "--device", "cpu"]) == 0
    assert calls == [
        {"k": 10, "labelled": 0.5, "epochs": 40, "n_init": 100, "seed": 0, "device": "auto"},
        {"k": 7, "labelled": 0.25, "epochs": 2, "n_init": 3, "seed": 5, "device": "auto"},
        {"k": "auto", "labelled": 0.5, "epochs": 40, "n_init": 100, "seed": 0, "device": "cpu"},
    ]


def some_images(folder: Path) -> None:
    """Two classes, one unlabelled image, one file that is no image."""
    for seed, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png", "unlabelled/x.png")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / name)
    (folder / "notes.txt").touch()


def test_check_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    assert cli.main(["check", str(tmp_path)]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "4 images: 3 labelled in 2 classes, 1 unlabelled.",
        "",
        "Class          Images",
        "─────────────────────",
        "cat                 2",
        "dog                 1",
        "(unlabelled)        1",
        "",
        "Ignored, not in a format that is read: 1",
        "  notes.txt",
        "",
        "Nothing is wrong with them.",
    ]


def test_check_goes_on_without_unreadable_files_and_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    (tmp_path / "dog" / "2\n[red].jpg").write_text("no image")
    assert cli.main(["check", str(tmp_path)]) == 3
    out = capsys.readouterr().out
    assert out.startswith("5 images: 4 labelled in 2 classes, 1 unlabelled. 1 cannot be read.\n")
    assert "left out of every run (exit code 3): 1\n  not an image: none of JPEG" in out
    assert "GIF\n    dog/2\\n[red].jpg\n" in out
    assert "dog                 2            1\n" in out
    assert cli.main(["check", str(tmp_path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["unreadable"][0]["file"] == "dog/2\n[red].jpg"


def test_check_of_an_image_under_two_labels_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    (tmp_path / "dog" / "2.png").write_bytes((tmp_path / "cat" / "2.png").read_bytes())
    (tmp_path / "dog" / "3.png").touch()  # an unreadable one beside it does not make it better
    assert cli.main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "One image under two labels (exit code 1); keep one of them: 1\n  cat/2.png (cat) = dog/2.png (dog)\n" in out


def test_each_label_of_a_group_is_shown_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    for name in [*(f"cat/{number}.png" for number in range(10, 20)), "dog/x.png", "unlabelled/y.png"]:
        (tmp_path / name).write_bytes((tmp_path / "cat" / "1.png").read_bytes())
    assert cli.main(["check", str(tmp_path)]) == 1
    shown = "cat/1.png (cat) = dog/x.png (dog) = unlabelled/y.png (unlabelled) = cat/10.png (cat) and 9 more"
    assert shown in capsys.readouterr().out


def test_unreadable_files_are_listed_by_reason_and_not_without_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some_images(tmp_path)
    for number in range(8):
        (tmp_path / f"{number}.png").touch()
        (tmp_path / f"{number}.jpg").write_text("text")
    assert cli.main(["check", str(tmp_path)]) == 3
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("Cannot be read and left out of every run (exit code 3): 16")
    assert lines[start + 1].startswith("  not an image")
    assert lines[start + 2 : start + 10] == [f"    {number}.jpg" for number in range(8)]
    assert lines[start + 10 : start + 14] == [
        "  empty: 0 bytes",
        "    0.png",
        "    1.png",
        "  … and 6 more; --json lists all",
    ]


def test_what_is_true_of_all_images_is_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    assert cli.main(["check", str(tmp_path), "--tiny", "41"]) == 0
    assert "Tiny, shorter side below 41 pixels: all 4\n" in capsys.readouterr().out


def test_names_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    (tmp_path / "cat").rename(tmp_path / ":smile:")
    (tmp_path / ":smile:" / ":cat: [bold].png").touch()
    assert cli.main(["check", str(tmp_path)]) == 3
    out = capsys.readouterr().out
    assert ":smile:  " in out
    assert "    :smile:/:cat: [bold].png\n" in out
    (tmp_path / "t.csv").write_text("file_name,label\nunlisted='x'.jpg,a\n")
    assert cli.main(["check", str(tmp_path), "--labels", str(tmp_path / "t.csv")]) == 2
    assert "do not: \"unlisted='x'.jpg\"." in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_told(tmp_path: Path) -> None:
    some_images(tmp_path)
    with open("/dev/full", "w") as full:
        run = [sys.executable, "-c", RUN, "check", str(tmp_path)]
        done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "sortal: error: there is no space left to write to.\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
def test_signals_and_streams_that_were_taken_away(tmp_path: Path) -> None:
    some_images(tmp_path)
    code = "import os, signal; from sortal import check, cli; old = check.check; check.check = lambda *a, **k: "
    code += "(os.kill(os.getpid(), signal.SIGTERM), old(*a, **k))[1]; import sys; sys.exit(cli.main())"
    shell = f"trap '' TERM; {sys.executable} -c {shlex.quote(code)} check {shlex.quote(str(tmp_path))} 2>&-"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("4 images: 3 labelled")


def test_bytes_of_names_are_shown() -> None:
    assert show.plain("a\udce9\x1b[31m\u202eb é") == "a\\xe9\\x1b[31m\\u202eb é"


def test_check_with_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    table = tmp_path / "labels.csv"
    table.write_text("file_name,label,who\ncat/1.png,tom,me\ncat/2.png,,me\n")
    tokens = ["check", str(tmp_path), "--labels", str(table), "--json"]
    assert cli.main(tokens) == 2
    assert "unknown columns, 1: 'who'" in capsys.readouterr().err
    tokens += ["--extra-columns", "ignore"]
    assert cli.main(tokens) == 2
    err = capsys.readouterr().err
    assert "2 have none: 'dog/1.png', 'unlabelled/x.png'" in err
    assert "are unlabelled (--unlisted unlabelled) or left out (--unlisted ignore)" in err
    assert cli.main([*tokens, "--unlisted", "unlabelled"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(count["name"], count["images"]) for count in found["classes"]] == [("tom", 1), (None, 3)]
    assert found["ignored"] == ["notes.txt"]  # the table itself is not an odd file


def test_check_options_reach_the_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)

    def checked(*tokens: str) -> dict[str, Any]:
        cli.main(["check", str(tmp_path), "--json", *tokens])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    assert len(checked("--tiny", "41")["tiny"]) == 4
    assert len(checked("--max-pixels", "1599", "--workers", "1")["unreadable"]) == 4
    assert checked("--unlabelled", "dog")["labelled"] == 3  # and unlabelled/x.png is now one of them
    assert cli.main(["check", str(tmp_path), "--workers", "0"]) == 2
    assert "workers must be at least 1, got 0." in capsys.readouterr().err


def test_check_without_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    assert cli.main(["check", str(tmp_path), "--folders", "ignore", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labelled"] == 0


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_names_are_shown_as_far_as_the_encoding_goes(encoding: str, tmp_path: Path) -> None:
    some_images(tmp_path)
    (tmp_path / "cat").rename(tmp_path / "дуб")
    run = [sys.executable, "-c", RUN, "check", str(tmp_path)]
    done = subprocess.run(run, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u0434\u0443\u0431" in done.stdout


def test_check_of_a_folder_without_labels_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    assert cli.main(["check", str(tmp_path / "cat")]) == 0
    assert "No image is labelled. Put the images of a class" in capsys.readouterr().out


def test_check_shows_the_largest_and_the_smallest_of_many_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(30):
        (tmp_path / f"class{number:02d}").mkdir()
        for copy in range(1 + (number == 29)):
            Image.new("L", (40, 40), 8 * number + copy).save(tmp_path / f"class{number:02d}" / f"{copy}.png")
    assert cli.main(["check", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].split() == ["class29", "2"]
    assert [line.split() for line in lines if "more classes" in line] == [["…", "6", "more", "classes", "6"]]
    assert sum(int(line.split()[-1]) for line in lines[4:29]) == 31


def test_the_defaults_shown_are_those_of_the_library() -> None:
    shown = signature(cli.check).parameters
    real = signature(check.check).parameters
    for name in ("tiny", "max_pixels", "workers"):
        assert shown[name].default == real[name].default
    read = signature(read_images).parameters
    for name in ("folders", "unlabelled", "unlisted", "extra_columns"):
        assert shown[name].default == read[name].default


def test_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "my digits"
    assert cli.main(["sample", "digits", str(out), "--labelled", "0.25", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"1,797 images and labels.csv written to {out}. Look at them with:"
    assert cli.main(shlex.split(lines[1])[1:]) == 0
    assert "1,797 images: 225 labelled in 5 classes, 1,572 unlabelled." in capsys.readouterr().out
    assert cli.main(["sample", "digits", str(out)]) == 2
    assert "must be new or empty" in capsys.readouterr().err


def test_a_bar_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_images(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["check", str(tmp_path)]) == 0
    assert "Checking images" in terminal.getvalue()
    assert "4/4" in terminal.getvalue()


def test_progress_only_on_a_terminal(
    calls: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--json"]) == 0
    assert capsys.readouterr().err == ""

    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["demo", "--json"]) == 0
    assert "Clustering with labels" in terminal.getvalue()
    assert json.loads(capsys.readouterr().out)["k"] == 12  # data and nothing else on stdout


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["dmo"], 'Unknown command "dmo"'),
        (["demo", "--zzz", "1"], "--zzz"),
        (["demo", "--k", "many"], "--k"),
        (["demo", "--device", "gpu"], "--device"),
        (["demo", "stray"], "stray"),
    ],
)
def test_bad_usage_exits_2(tokens: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(tokens) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sortal: error: ")
    assert message in err
    assert err.endswith("--help.\n")


def test_own_errors_have_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(monkeypatch, InputError("k must be at least 5 (the labelled classes), got 2."))
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr() == ("", "sortal: error: k must be at least 5 (the labelled classes), got 2.\n")
    fail_with(monkeypatch, SortalError("A process that reads images could not start."))  # nobody's bad input
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr() == ("", "sortal: error: A process that reads images could not start.\n")


def test_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr() == ("", "sortal: interrupted\n")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_exits_130(how: signal.Signals, tmp_path: Path) -> None:
    some_images(tmp_path)
    waiting = (
        "import sys, time; from sortal import check, cli; check.check = lambda *_, **__: (print('on', flush=True), "
    )
    code = waiting + "time.sleep(60)); sys.exit(cli.main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "check", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(how)
    assert process.communicate(timeout=30) == ("", "sortal: interrupted\n")
    assert process.returncode == 130


def test_unexpected_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["demo"])


@pytest.mark.parametrize("tokens", [["--help"], ["demo", "--json", "--epochs", "0"]])
def test_closed_pipe_is_quiet(tokens: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-c", RUN, *tokens], stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_no_color_is_honoured() -> None:
    assert "\x1b[36m" in help_on_a_terminal({})
    assert "\x1b[36m" not in help_on_a_terminal({"NO_COLOR": "1"})


def help_on_a_terminal(environment: dict[str, str]) -> str:
    import pty

    main, terminal = pty.openpty()
    env = os.environ | {"TERM": "xterm"} | environment
    process = subprocess.Popen([sys.executable, "-c", RUN, "--help"], stdin=terminal, stdout=terminal, env=env)
    os.close(terminal)
    out = b""
    with suppress(OSError):  # how Linux says that the other end is closed
        while chunk := os.read(main, 65536):
            out += chunk
    os.close(main)
    assert process.wait() == 0
    return out.decode()


def test_every_command_is_in_the_readme() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    commands = [name for name in cli.app if not name.startswith("-")]
    assert "demo" in commands
    for name in commands:
        assert f"sortal {name}" in readme
