"""Names that only POSIX systems have are used under a guard."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sortal

SOURCE = Path(sortal.__file__).parent
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
NAMES = {
    "os": {
        "O_CLOEXEC",
        "O_DIRECTORY",
        "O_NOFOLLOW",
        "O_NONBLOCK",
        "O_TMPFILE",
        "chown",
        "chroot",
        "confstr",
        "ctermid",
        "fchmod",
        "fchown",
        "fork",
        "forkpty",
        "getegid",
        "geteuid",
        "getgid",
        "getgroups",
        "getloadavg",
        "getpgid",
        "getpgrp",
        "getpriority",
        "getsid",
        "getuid",
        "initgroups",
        "killpg",
        "lchown",
        "lockf",
        "major",
        "makedev",
        "memfd_create",
        "minor",
        "mkfifo",
        "mknod",
        "mlockall",
        "nice",
        "openpty",
        "pathconf",
        "pidfd_open",
        "posix_fadvise",
        "posix_fallocate",
        "posix_spawn",
        "pread",
        "preadv",
        "pwrite",
        "pwritev",
        "readv",
        "register_at_fork",
        "sched_getaffinity",
        "sched_setaffinity",
        "sched_yield",
        "sendfile",
        "setgid",
        "setpgid",
        "setpgrp",
        "setpriority",
        "setsid",
        "setuid",
        "statvfs",
        "sync",
        "sysconf",
        "tcgetpgrp",
        "tcsetpgrp",
        "uname",
        "wait",
        "wait3",
        "wait4",
        "waitid",
        "writev",
    },
    "signal": {
        "SIGALRM",
        "SIGBUS",
        "SIGCHLD",
        "SIGCONT",
        "SIGHUP",
        "SIGKILL",
        "SIGPIPE",
        "SIGQUIT",
        "SIGSTOP",
        "SIGUSR1",
        "SIGUSR2",
        "SIGWINCH",
        "SIGXCPU",
        "alarm",
        "getitimer",
        "pause",
        "pthread_kill",
        "pthread_sigmask",
        "setitimer",
        "siginterrupt",
        "sigpending",
        "sigwait",
    },
    "time": {"tzset", "clock_gettime", "clock_settime", "pthread_getcpuclockid"},
    "mmap": {"MAP_SHARED", "MAP_PRIVATE", "PROT_READ", "PROT_WRITE", "MADV_DONTNEED"},
}


def unguarded(tree: ast.AST) -> Iterator[str]:
    """Yield what is of POSIX only, unless the function around it asks for the platform or for the name."""
    nodes = [*ast.walk(tree)]
    for node in nodes:
        for name in _posix_only(node):
            inside = (each for each in nodes if isinstance(each, ast.FunctionDef) and node in ast.walk(each))
            scopes: list[ast.AST] = [*inside] or [tree]
            if not any(_asks(each, name) for scope in scopes for each in ast.walk(scope)):
                yield f"line {getattr(node, 'lineno', 0)}: {name}"


def _posix_only(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [each.name for each in names if each.name.partition(".")[0] in MODULES]
        case ast.ImportFrom(module=str(module), names=names):
            listed = [each.name for each in names if each.name in NAMES.get(module, ())]
            return [module, *listed] if module in MODULES else listed
        case ast.Attribute(value=ast.Name(id=module), attr=name) if name in NAMES.get(module, ()):
            return [name]
    return []


def _asks(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=asked)]):
            return asked == name
        case ast.Compare(left=ast.Attribute(value=ast.Name(id="sys"), attr="platform")):
            return True
    return False


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import fcntl", ["fcntl"]),
        ("from os import fork", ["fork"]),
        ("def f(): os.sysconf('x')", ["sysconf"]),
        ("def f():\n if hasattr(os, 'nice'): os.nice(1); os.fork()", ["fork"]),
        ("def f():\n if sys.platform == 'win32': return\n import resource", []),
        ("os.open(file, os.O_RDONLY)", []),
    ],
)
def test_what_only_posix_has_is_recognised(code: str, found: list[str]) -> None:
    assert [each.partition(": ")[2] for each in unguarded(ast.parse(code))] == found


def test_what_only_posix_has_is_guarded() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 100
    found = {file.name: [*unguarded(ast.parse(file.read_text(encoding="utf-8")))] for file in files}
    assert {name: each for name, each in found.items() if each} == {}
