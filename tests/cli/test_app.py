"""The command line: help, errors, signals and exit codes."""

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import (
    FUNCTIONS,
    INTERRUPTED,
    NOTE,
    STOPPING,
    Benchmarked,
    Done,
    Real,
    Stub,
    Terminal,
    invoke,
    options_of,
    refused,
)
from support.printed import RESULT

import sortal
from sortal.cli import app, benchmark, decisions
from sortal.discovery.demo import DemoResult
from sortal.errors import InputError, SortalError


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_lists_every_option_and_fits_a_terminal(name: str) -> None:
    done = invoke(*name.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert re.search(rf"^  sortal {name}\b", done.out.split("Examples:")[1], flags=re.MULTILINE)
    for option in options_of(FUNCTIONS[name]).values():
        shown = f"--{option.name.replace('_', '-')}" if option.kind is option.KEYWORD_ONLY else option.name.upper()
        assert re.search(rf"(?<![\w-]){shown}(?![\w-])", done.out), shown
    assert max(map(len, done.out.splitlines())) <= 80


def test_help_the_readme_and_the_reference_list_every_command() -> None:
    assert invoke("--version") == Done(0, f"{sortal.__version__}\n", "")
    done = invoke("--help")
    assert done == invoke() == replace(done, code=0, err="")
    assert done.out.startswith("Usage: sortal")
    assert "sortal discover photos  " in done.out.split("Examples:")[1]
    groups = {"": app.app, "benchmark ": benchmark.benchmark, "decisions ": decisions.decisions}
    listed = {prefix: invoke(*prefix.split(), "--help").out.split("Commands")[1] for prefix in groups}
    pages = [Path(__file__).parents[2] / name for name in ("README.md", "docs/commands.md")]
    commands = "".join(page.read_text(encoding="utf-8") for page in pages)
    names = {prefix + name for prefix, each in groups.items() for name in each}
    assert {name for name in names if "-" not in name} == FUNCTIONS.keys()
    for name in FUNCTIONS:
        above, _, last = name.rpartition(" ")
        assert re.search(rf"^\W*{last} ", listed[f"{above} ".lstrip()], flags=re.MULTILINE)
        assert f"\nsortal {name} " in commands


def test_help_imports_nothing_heavy_and_commands_without_computation_no_torch(benchmarked: Benchmarked) -> None:
    code = (
        "import sys; from sortal.cli.app import main; assert 0 == main(['--version']) == main(['--help']); "
        f"assert not any(main([*name.split(), '--help']) for name in {[*FUNCTIONS]}); "
        "print(*{'PIL', 'numpy', 'scipy', 'sklearn', 'torch', 'timm', 'pandas'} & set(sys.modules), file=sys.stderr); "
        "assert main(['benchmark', 'presets']) == main(['benchmark', 'presets', '--json']) == 0; "
        f"assert main(['benchmark', 'table', {str(benchmarked.out)!r}]) == 0; "
        "assert main(['benchmark']) == main(['benchmark', 'mnist']) == main(['benchmark', '--preset', 'x']) == 2; "
        "import sortal.exchange.export; "
        "print(*{'torch', 'timm', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light, *complaints, no_torch = done.stderr.splitlines()
    assert (light, no_torch) == ("", "")
    assert [line[:15] for line in complaints] == ["sortal: error: "] * 3
    done = subprocess.run([sys.executable, "-m", "sortal", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sortal.__version__}\n", "sortal runs as a module"


def test_progress_goes_to_the_terminal_and_only_the_result_to_stdout(
    stub: Stub, pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub("sortal.discovery.demo.run", RESULT)
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(Terminal()) as terminal, redirect_stdout(io.StringIO()) as out:
        assert app.main(["demo", "--json"]) == 0
    assert "[3/7] Working" in terminal.getvalue()
    assert NOTE in terminal.getvalue()
    assert json.loads(out.getvalue())["k"]["k"] == 6
    with redirect_stderr(Terminal()) as terminal, redirect_stdout(io.StringIO()):
        assert app.main(["check", str(pets)]) == 0
    assert "Checking images" in terminal.getvalue()
    assert "4/4" in terminal.getvalue()


def test_impossible_requests_exit_2_and_write_nothing(
    real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(real.images, tmp_path / "photos")
    (tmp_path / "file").touch()
    before, no_run = sorted(tmp_path.rglob("*")), "A run must be a folder that sortal discover wrote, got 'photos'"
    for words, message in (
        ("discover nowhere", "The image folder 'nowhere' does not exist."),
        ("discover photos nowhere", "Images must be one or more folders, got 'nowhere', which does not exist."),
        ("check photos file", "Images must be one or more folders, got 'file', which is a file."),
        ("discover photos --labels nowhere.csv", "The table 'nowhere.csv' does not exist."),
        ("discover photos --out photos/run", f"got 'photos/run'. Choose another folder (--out {tmp_path}/photos-run)."),
        ("discover photos --out file/run --backbone convnet", "The folder 'file/run' cannot be written"),
        ("predict photos photos", no_run),
        ("export photos --format csv --out x.csv", no_run),
        ("figures photos", no_run),
        ("benchmark", "Name a data set or a preset. List the presets with: sortal benchmark presets."),
        ("benchmark mnist", "The data set must be one of cifar10, cifar100, imagenet100, cub,"),
        ("benchmark cub", "root must be the folder that contains CUB-200-2011, got 'data', which does not exist."),
        (
            "benchmark cub --method gcd,x",
            "method must be gcd, kmeans, rankstats, simgcd, sortal, uno, or your own as FILE.py:CLASS",
        ),
        ("benchmark cub --seeds a", "seeds must be whole numbers, like 0 1 2 or 0,1,2, got 'a'."),
        ("benchmark table", "got no path. Name at least one."),
    ):
        assert message in refused(*words.split())
        assert sorted(tmp_path.rglob("*")) == before


def test_errors_print_one_line_and_bugs_keep_their_traceback(stub: Stub) -> None:
    by_library = RuntimeError("Error calling __set_name__")
    by_library.__cause__ = KeyboardInterrupt()
    denied = "error: Access to 'place' was denied: Read-only. Change that, or use another folder."
    nowhere = "error: There is no folder for temporary files. Set TMPDIR to one that can be written to."
    no_memory = "error: There is not enough memory. Close other programs, or use a machine with more."
    too_many = os.strerror(errno.EMFILE)
    refused_by_system = f"error: The system refused a request: {too_many}. Resolve that, then repeat the command."
    for error, code, message in (
        (InputError("k must be at least 5, got 2."), 2, "error: k must be at least 5, got 2."),
        (SortalError("A process could not start."), 1, "error: A process could not start."),
        (KeyboardInterrupt(), 130, "interrupted"),
        (by_library, 130, "interrupted"),
        (OSError(errno.EROFS, "Read-only", "place"), 2, denied),
        (PermissionError(errno.EACCES, "Read-only", b"place"), 2, denied),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), 2, nowhere),
        # As Python, torch, the loader of libraries and safetensors say it
        *((error, 1, no_memory) for error in (MemoryError(), RuntimeError("can't start new thread"))),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 1, no_memory),
        (ImportError("libgomp.so: cannot allocate memory in static TLS block"), 1, no_memory),
        (ImportError(f"libtorch.so: cannot open shared object file: {too_many}"), 1, refused_by_system),
        (RuntimeError(f"unable to open file <model> in read-only mode: {too_many} (24)"), 1, refused_by_system),
    ):
        stub("sortal.discovery.demo.run", error)
        assert invoke("demo") == Done(code, "", f"{NOTE}sortal: {message}\n")
        with redirect_stderr(None), redirect_stdout(io.StringIO()) as out:
            assert app.main(["demo"]) == code
        assert out.getvalue() == ""
    stub("sortal.discovery.job.prepare", KeyboardInterrupt())
    assert invoke("discover", "photos") == Done(130, "", NOTE + INTERRUPTED)
    for bug in (RuntimeError("a bug"), ImportError("a bug"), PermissionError(13, "a bug")):
        stub("sortal.discovery.demo.run", bug)
        with pytest.raises(type(bug), match="a bug"):
            app.main(["demo"])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_exits_130(how: signal.Signals, pets: Path) -> None:
    code = (
        "import sys, time; from sortal.images import check; from sortal.cli import app; "
        "check.check = lambda *_, **__: (print('on', flush=True), time.sleep(600)); sys.exit(app.main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "check", str(pets)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(how)
    assert process.communicate(timeout=120) == ("", f"{STOPPING}sortal: interrupted\n")
    assert process.returncode == 130


def test_ctrl_c_is_answered_while_python_cannot_be_interrupted_and_a_second_one_ends_the_command(pets: Path) -> None:
    """As in a long computation of PyTorch, the main thread is outside of Python for minutes, where no handler runs."""
    code = (
        "import hashlib, signal, sys; from sortal.images import check; from sortal.cli import app; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # where the parent ignores it
        "long = lambda *_, **__: (print('on', flush=True), hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)); "
        "check.check = long; sys.exit(app.main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "check", str(pets)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == STOPPING
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "sortal: interrupted\n")
    assert process.returncode == 130


def test_warnings_of_libraries_are_not_printed_but_those_of_this_package_are(pets: Path) -> None:
    code = (
        "import logging, sys, warnings; from sortal.images import check; from sortal.cli import app; "
        "from importlib import import_module; "
        "warn = lambda *_, **__: (warnings.warn('raw'), logging.getLogger('timm.models').warning('raw'), "
        "import_module('huggingface_hub.utils.logging').get_logger('huggingface_hub.x').warning('raw'), "
        "logging.getLogger('sortal.learning').warning('%d is slow.', 7), sys.exit(5)); "
        "check.check = warn; sys.exit(app.main())"
    )
    words = [sys.executable, "-c", code, "check", str(pets)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "sortal: 7 is slow.\n")


def test_an_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object, **__: object) -> DemoResult:
        os.kill(os.getpid(), signal.SIGTERM)
        return RESULT

    monkeypatch.setattr("sortal.discovery.demo.run", ended)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert invoke("demo").code == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert invoke("--version").code == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "the handler is restored"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_closed_pipe_ends_quietly_and_a_full_disk_is_reported() -> None:
    reader, gone = os.pipe()
    os.close(reader)
    no_space = f"sortal: error: {app.FULL_OUTPUT}\n"
    for place, message in ((gone, ""), ("/dev/full", no_space)) if os.path.exists("/dev/full") else ((gone, ""),):
        with open(place, "w") as out, redirect_stdout(out), redirect_stderr(io.StringIO()) as err:
            assert app.main(["benchmark", "presets", "--json"]) == 1
        assert err.getvalue() == message


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_is_refused_where_one_process_works(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several processes, the first says so."""
    for name, value in {"WORLD_SIZE": 2, "RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    for words in (["check", "."], ["demo"], ["discover", ".", "--dry-run"]):
        assert app.main(words) == (1 if rank else 2)
        said = capsys.readouterr().err
        wanted = "sortal: error: Only discover and benchmark run in several processes, got 2. Do without torchrun.\n"
        assert said == ("" if rank else wanted)
    assert app.main(["discover", "--what"]) == 2
    assert bool(capsys.readouterr().err) == (rank == 0)
