"""The server that forks children for other tests."""

import sys
from pathlib import Path

import pytest
from support.fork_server import KILLED, ForkServer, count_operations, die, say


def tell(count: int, code: int) -> int:
    sys.stdout.write("not for the test\n")
    for number in range(count):
        say("at", number)
    say("sum", count, code)
    return code


def tell_for_ever() -> None:
    while True:
        say("at", 0)


def fail() -> None:
    raise ValueError("a bug")


def make_folders(folder: str, fatal: int | None) -> None:
    made = count_operations(["mkdir"], fatal, lambda values, _: "uncounted" not in str(values[0]))
    for name in ("a", "uncounted", "b", "c"):
        (Path(folder) / name).mkdir()
    say("made", made())


def test_a_child_says_what_it_has_to_and_ends_with_its_code(fork_server: ForkServer) -> None:
    ended = fork_server.run(tell, 2, 130, codes=[130])
    assert (ended.code, ended.said) == (130, [["at", 0], ["at", 1], ["sum", 2, 130]])
    assert (ended.each("at"), ended.each("sum")) == ([0, 1], [[2, 130]])


def test_children_are_killed_from_outside_and_inside(fork_server: ForkServer) -> None:
    assert fork_server.run(tell_for_ever, kill=lambda words: words == ["at", 0]).code == KILLED
    assert fork_server.run(die).code == KILLED


def test_a_child_that_fails_fails_the_test(fork_server: ForkServer) -> None:
    with pytest.raises(AssertionError, match="ValueError: a bug"):
        fork_server.run(fail)
    assert fork_server.run(tell, 0, 0).code == 0


def test_operations_are_counted_and_the_fatal_one_is_not_done(fork_server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    assert fork_server.run(make_folders, str(tmp_path), None).each("made") == [3]
    assert fork_server.run(make_folders, str(tmp_path / "killed"), 2).code == KILLED
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["a", "uncounted"]
