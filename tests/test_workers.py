"""Processes that read images: all results come, what dies is named, and nothing is left running."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import worker_tasks
from numpy.typing import NDArray

from sortal import workers
from sortal.errors import InputError, SortalError
from sortal.images import Source
from sortal.pixels import digest
from sortal.workers import Job, Task, Values, count, run

NAMES = [
    "plain.jpg",
    "two\nlines.jpg",
    "quote\" and 'quote' \\ and {json: 1}.jpg",
    "not UTF-8 \udce9\udcff.jpg",
    "图像 🌿 \u2028.jpg",
    "null \0.jpg",
    "",
    " ",
    "x" * 5000,
]


def jobs(*names: str) -> list[Job]:
    return [Job(row, name) for row, name in enumerate(names)]


def all_of(task: Task, todo: list[Job], n: int = 1) -> dict[int, Values]:
    """The results by row, each of which came once."""
    found = list(run(task, todo, workers=n))
    assert len({row for row, _ in found}) == len(found)
    return dict(found)


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only waiting for somebody to ask how it ended."""
    try:
        os.kill(pid, 0)
        if not Path("/proc/self/stat").exists():
            return True
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_until_gone(pids: list[int], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"still there: {pids}"
        time.sleep(0.02)


# Results


@pytest.mark.parametrize("n", [1, 3])
def test_every_row_has_its_result(n: int) -> None:
    rows = [7, 3, 99, *range(200, 240)]
    found = dict(run(worker_tasks.echo, [Job(row, f"{row}.jpg") for row in rows], workers=n))
    assert {row: result["path"] for row, result in found.items()} == {row: f"{row}.jpg" for row in rows}
    assert len({result["pid"] for result in found.values()}) <= n
    assert os.getpid() not in {result["pid"] for result in found.values()}


def test_several_workers_share_the_work(tmp_path: Path) -> None:
    """Nobody is ready before a second one has come, and one alone takes no more than it can hold."""
    todo = [Job(row, str(tmp_path)) for row in range(2 * workers.AHEAD)]
    found = list(run(worker_tasks.meet, todo, workers=2))
    assert len({result["pid"] for _, result in found}) == 2


def test_names_come_through_whatever_is_in_them() -> None:
    found = all_of(worker_tasks.echo, jobs(*NAMES))
    assert [found[row]["path"] for row in range(len(NAMES))] == NAMES


def test_options_of_the_job_win() -> None:
    todo = [Job(0, "a"), Job(1, "b", {"side": 8, "extra": [1, None, "ü"]})]
    found = dict(run(worker_tasks.echo, todo, options={"side": 4, "draft": True}, workers=1))
    assert found[0]["options"] == {"side": 4, "draft": True}
    assert found[1]["options"] == {"side": 8, "draft": True, "extra": [1, None, "ü"]}


def test_pixels_arrive_as_they_were() -> None:
    generator = np.random.default_rng(0)
    shapes = [(1, 1, 3), (300, 400, 3), (7, 5, 3), (1000, 900, 3), (2, 2, 3), (64, 64, 3)]
    sent: list[NDArray[np.uint8]] = [generator.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    sent += [sent[1][::2, ::-3], np.asfortranarray(sent[2]), np.full((9, 10, 3), 10, dtype=np.uint8)]  # 10 ends lines
    todo: list[Job] = [Job(row, array) for row, array in enumerate(sent)]
    todo.insert(3, Job(100, "a path between.jpg"))
    for n in (1, 2):
        found = all_of(worker_tasks.echo, todo, n)
        assert found.pop(100)["path"] == "a path between.jpg"
        assert [found[row]["digest"] for row in range(len(sent))] == [digest(array) for array in sent]
        assert [tuple(found[row]["shape"]) for row in range(len(sent))] == [array.shape for array in sent]


def test_long_results_do_not_block_pixels_on_their_way() -> None:
    """Both pipes are full at once if nobody reads while writing."""
    todo = [Job(row, np.zeros((400, 400, 3), dtype=np.uint8)) for row in range(6)]
    found: list[tuple[int, Values]] = []
    work = partial(run, worker_tasks.answer_at_length, todo, workers=1)
    thread = threading.Thread(target=lambda: found.extend(work()), daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert [len(result["text"]) for _, result in found] == [1_000_000] * 6


def test_prints_are_not_taken_for_results() -> None:
    found = all_of(worker_tasks.chatter, jobs("a", "b", "c"))
    assert found == {0: {"path": "a"}, 1: {"path": "b"}, 2: {"path": "c"}}


def test_nothing_to_do_starts_nothing() -> None:
    assert list(run(homeless("no_such_module"), [], workers=2)) == []


def test_jobs_are_taken_as_they_are_needed() -> None:
    """A list of them is never made, which here would never end."""
    endless = (Job(row, str(row)) for row in itertools.count())
    results = run(worker_tasks.echo, endless, workers=2)
    first = list(itertools.islice(results, 50))
    results.close()
    assert {row for row, _ in first} <= set(range(50 + 2 * workers.AHEAD))
    assert all(result["path"] == str(row) for row, result in first)


def test_one_worker_gives_results_in_order() -> None:
    assert [row for row, _ in run(worker_tasks.echo, jobs(*"abcdefghij"), workers=1)] == list(range(10))


# Files that cannot be read, files that kill, mistakes


def test_unreadable_files_say_why() -> None:
    found = all_of(worker_tasks.refuse, jobs("a", "bad", "c"))
    assert found == {
        0: {"path": "a"},
        1: {"reason": "truncated", "detail": "half of it is missing"},
        2: {"path": "c"},
    }


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exit", "exit code 3: the last words"),
        (f"signal {int(signal.SIGSEGV)}", "signal SIGSEGV"),
        (f"signal {int(signal.SIGKILL)}", "signal SIGKILL"),  # as when memory runs out
        ("signal 40", "signal 40"),  # one without a name
    ],
)
def test_a_file_that_kills_is_named_and_nothing_else_is_lost(name: str, words: str, n: int) -> None:
    names = [f"{i}.jpg" for i in range(12)]
    names[5] = name
    found = all_of(worker_tasks.die, jobs(*names), n)
    killer = found.pop(5)
    assert killer["reason"] == "crashed"
    assert words in killer["detail"]
    assert found == {row: {"path": name} for row, name in enumerate(names) if row != 5}


@pytest.mark.parametrize("n", [1, 3])
def test_every_file_may_kill(n: int) -> None:
    found = all_of(worker_tasks.die, jobs(*["exit"] * 6), n)
    assert sorted(found) == list(range(6))
    assert {result["reason"] for result in found.values()} == {"crashed"}


def test_the_first_and_the_last_file_may_kill() -> None:
    found = all_of(worker_tasks.die, jobs("exit", "a", "b", "exit"))
    assert [found[row].get("reason") for row in range(4)] == ["crashed", None, None, "crashed"]


def test_pixels_that_kill_are_named_and_those_behind_them_arrive() -> None:
    arrays = [np.full((300, 300, 3), value, dtype=np.uint8) for value in (1, 0, 2, 3, 4, 5)]
    found = all_of(worker_tasks.die_of_black, [Job(row, array) for row, array in enumerate(arrays)])
    assert found.pop(1)["reason"] == "crashed"
    assert found == {row: {"digest": digest(arrays[row])} for row in (0, 2, 3, 4, 5)}


@pytest.mark.parametrize("n", [1, 3])
def test_an_error_of_ours_stops_the_run(n: int) -> None:
    with pytest.raises(SortalError, match=r"^shorter_side must be at least 1, got 0\.$"):
        all_of(worker_tasks.give_up, jobs("a", "b", "bad", "d", "e"), n)


@pytest.mark.parametrize("n", [1, 3])
def test_a_mistake_in_a_task_shows_where_it_is(n: int) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)failed:.*worker_tasks.py.*in stumble.*ZeroDivisionError") as caught:
        all_of(worker_tasks.stumble, jobs("1", "1", "0", "1"), n)
    assert not isinstance(caught.value, SortalError)


def test_a_result_that_cannot_be_sent_is_a_mistake_and_no_crash() -> None:
    """The file is not to blame."""
    with pytest.raises(RuntimeError, match="int64 is not JSON serializable"):
        all_of(worker_tasks.answer_nonsense, jobs("a"))


def test_an_error_while_jobs_are_made_is_raised() -> None:
    def broken() -> Iterator[Job]:
        yield Job(0, "a")
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        list(run(worker_tasks.echo, broken(), workers=2))


# Starting


def homeless(module: str) -> Task:
    """A task that no other process can find."""

    def task(source: Source, options: Values) -> Values:
        raise AssertionError

    task.__module__, task.__qualname__ = module, "task"
    return task


@pytest.mark.parametrize(("module", "words"), [("no_such_module", "No module named"), ("json", "has no attribute")])
@pytest.mark.parametrize("n", [1, 3])
def test_a_worker_that_cannot_find_its_task(module: str, words: str, n: int) -> None:
    with pytest.raises(SortalError, match=f"could not start: .*{words}"):
        list(run(homeless(module), jobs("a", "b"), workers=n))


def test_a_worker_without_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SortalError, match=r"could not start: .*No such file"):
        list(run(worker_tasks.echo, jobs("a"), workers=1))


def test_files_beside_the_images_are_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of images may hold a json.py, and be where the command is started."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported a stranger')")
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported a stranger')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert all_of(worker_tasks.echo, jobs("a"))[0]["path"] == "a"


def test_count_is_that_of_the_cores_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0, 2, 5}, raising=False)
    assert count(None) == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert count(None) == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count(None) == 1


def test_count_is_as_told() -> None:
    assert count(1) == 1
    assert count(17) == 17


@pytest.mark.parametrize("wrong", [0, -1])
def test_count_must_be_positive(wrong: int) -> None:
    with pytest.raises(InputError, match=rf"^workers must be at least 1, got {wrong}\.$"):
        count(wrong)
    with pytest.raises(InputError):
        list(run(worker_tasks.echo, jobs("a"), workers=wrong))


# Ending


def test_no_process_is_left_when_all_is_done() -> None:
    pids = {result["pid"] for result in all_of(worker_tasks.echo, jobs(*"abcdef"), 2).values()}
    assert not any(map(is_alive, pids))


def test_no_process_is_left_when_nobody_asks_for_the_rest(tmp_path: Path) -> None:
    """One worker is in the middle of a task that does not end, the others wait for work."""
    todo = [*jobs(*"abc"), Job(3, str(tmp_path / "pid"))]
    results = run(worker_tasks.wait_for_a_path, itertools.chain(todo, jobs(*"efg")), workers=2)
    pids = {next(results)[1]["pid"] for _ in range(2)}
    while not (tmp_path / "pid").exists():
        time.sleep(0.01)
    results.close()
    assert not any(map(is_alive, pids | {int((tmp_path / "pid").read_text())}))


def test_no_process_is_left_after_an_error(tmp_path: Path) -> None:
    """The one that waits keeps less than AHEAD others from being done."""
    todo = [Job(0, str(tmp_path / "pid")), *jobs(*["bad"] * workers.AHEAD)]
    with pytest.raises(SortalError, match="enough"):
        list(run(worker_tasks.wait_for_a_path, todo, options={"after": str(tmp_path / "pid")}, workers=2))
    assert not is_alive(int((tmp_path / "pid").read_text()))


PARENT = """
import itertools
import worker_tasks
from sortal.workers import Job, run

endless = (Job(row, str(row)) for row in itertools.count())
pids = set()
for row, result in run(worker_tasks.echo, endless, workers=2):
    if len(pids) < 2:
        pids.add(result["pid"])
        if len(pids) == 2:
            print(*pids, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_its_parent(number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        parent.send_signal(number)
        parent.stdout.close()
        assert parent.wait(timeout=20) != 0
        wait_until_gone(pids)
    finally:
        parent.kill()
        parent.wait()


def test_an_image_that_takes_for_ever_is_given_up_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 2.0)
    found = dict(run(worker_tasks.hang, jobs("a", "stuck", "b", "c"), workers=1))
    assert found[1] == {"reason": "timed out", "detail": "not decoded within 2 seconds"}
    assert [found[row] for row in (0, 2, 3)] == [{"source": name} for name in ("a", "b", "c")]


def test_a_death_is_told_without_what_was_said_of_others() -> None:
    found = dict(run(worker_tasks.complain_then_die, jobs("noisy", "deadly"), workers=1))
    assert found[1] == {"reason": "crashed", "detail": "the decoder died by signal SIGKILL"}


def test_a_worker_that_cannot_be_replaced_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = subprocess.Popen, itertools.count()

    def popen(*args: Any, **options: Any) -> Any:
        if next(started):
            raise OSError(11, "no process to be had")
        return real(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(SortalError, match=r"could not start: .*no process to be had"):
        list(run(worker_tasks.complain_then_die, jobs("a", "deadly", "b"), workers=1))


def test_a_process_that_is_just_starting_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen
    started = threading.Event()

    def popen(*args: Any, **options: Any) -> Any:
        started.set()
        time.sleep(0.5)
        return real(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    ended = threading.Thread(target=lambda: interrupted(started), daemon=True)
    ended.start()
    ended.join(30)  # the file "stuck" takes for ever
    assert not ended.is_alive()


def interrupted(started: threading.Event) -> None:
    """Stop waiting for results while the first process is being started."""
    results = run(worker_tasks.hang, itertools.chain(jobs("stuck"), stop_when(started)), workers=2)
    with pytest.raises(KeyboardInterrupt):
        next(results)


def stop_when(started: threading.Event) -> Iterator[Job]:
    started.wait()
    raise KeyboardInterrupt
    yield


def test_an_error_does_not_wait_for_the_next_image() -> None:
    failing = [Job(0, "fail"), Job(1, "stuck")]
    done = threading.Thread(target=lambda: expect_failure(failing), daemon=True)
    done.start()
    done.join(30)
    assert not done.is_alive()


def expect_failure(failing: list[Job]) -> None:
    with pytest.raises(SortalError, match="no more"):
        list(run(worker_tasks.fail_or_hang, failing, workers=1))


def test_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(SortalError, match=r"could not start: .*No usable temporary directory"):
        list(run(worker_tasks.echo, jobs("a"), workers=1))
