"""Several processes and hosts: the same collection sorted by one process, by two, and by two hosts.

    python benchmarks/hosts.py IMAGES [--table LABELS] -- --backbone convnet --epochs 4

The hosts are two network namespaces on this machine, joined by a virtual cable, with a file system in common; making
them needs root and the program `ip`. Runs `sortal discover` with the options after `--` in each way, and prints a row
for each: seconds in all and of each stage, how many images are in the category they have with one process (categories
are matched), and the megabytes that crossed the cable. With one thread per process, so that two hosts have twice the
processors of one. `--ways` leaves some out, for example to do without root.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortal import load_run, metrics

NAMES, ADDRESSES, CABLE, PORT = ("sortal-a", "sortal-b"), ("10.77.0.1", "10.77.0.2"), ("sortal0", "sortal1"), "29511"
WAYS = ("one process", "two processes", "two hosts")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def hosts() -> Iterator[None]:
    """Make two network namespaces with a cable between them."""
    try:
        for name in NAMES:
            ip("netns", "add", name)
        ip("link", "add", CABLE[0], "netns", NAMES[0], "type", "veth", "peer", "name", CABLE[1], "netns", NAMES[1])
        for name, address, end in zip(NAMES, ADDRESSES, CABLE, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            for device in (end, "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], check=False)


def sent() -> int:
    """Return the bytes that the first host has sent and received."""
    shown = subprocess.run(
        ["ip", "-n", NAMES[0], "-s", "-j", "link", "show", CABLE[0]], check=True, capture_output=True, text=True
    )
    stats = json.loads(shown.stdout)[0]["stats64"]
    return int(stats["rx"]["bytes"] + stats["tx"]["bytes"])


def run(commands: list[list[str]], interfaces: list[str | None]) -> float:
    """Start commands at the same time, and wait for all; return the seconds."""
    start = time.perf_counter()
    started = []
    for command, interface in zip(commands, interfaces, strict=True):
        network = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **network}
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    codes = [each.wait() for each in started]
    if not set(codes) <= {0, 3}:
        sys.exit("A process failed; see above.")
    return time.perf_counter() - start


def categories(folder: Path) -> NDArray[np.int64]:
    return load_run(folder).assignments.category_id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images")
    parser.add_argument("--table")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, metavar="WAY", help=", ".join(WAYS))
    here = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:here]), sys.argv[here + 1 :]
    with tempfile.TemporaryDirectory() as scratch:
        compare(arguments, options, Path(scratch))


def compare(arguments: argparse.Namespace, options: list[str], scratch: Path) -> None:
    """Sort in each way, and print the table."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]

    def discover(name: str) -> list[str]:
        table = ["--labels", arguments.table] if arguments.table else []
        return ["-m", "sortal", "discover", arguments.images, *table, "--out", str(scratch / name), *options]

    def by_hosts() -> tuple[float, int]:
        meet = ["--nnodes=2", "--nproc-per-node=1", f"--master-addr={ADDRESSES[0]}", f"--master-port={PORT}"]
        each = [
            ["ip", "netns", "exec", name, *torchrun, *meet, f"--node-rank={rank}", *discover("two hosts")]
            for rank, name in enumerate(NAMES)
        ]
        with hosts():
            return run(each, list(CABLE)), sent()

    two = [*torchrun, "--standalone", "--nproc-per-node=2", *discover("two processes")]
    ways: dict[str, Callable[[], tuple[float, int]]] = {
        "one process": lambda: (run([[sys.executable, *discover("one process")]], [None]), 0),
        "two processes": lambda: (run([two], [None]), 0),
        "two hosts": by_hosts,
    }
    rows = {name: way() for name, way in ways.items() if name in arguments.ways}
    first = categories(scratch / next(iter(rows)))
    stages: list[str] = []
    for name, (seconds, n_bytes) in rows.items():
        timings = json.loads((scratch / name / "run.json").read_text())["timings"]
        if not stages:
            stages = list(timings)
            head = ["", "seconds", *stages, f"as with {name}", "MB sent"]
            print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
        found = categories(scratch / name)
        match = metrics.match(first, found)
        same = sum(match.get(int(category), -1) == before for category, before in zip(found, first, strict=True))
        cells = [name, f"{seconds:.1f}", *(f"{timings[stage]:.1f}" for stage in stages)]
        print(f"| {' | '.join([*cells, f'{same:,} of {len(first):,}', f'{n_bytes / 1e6:.0f}'])} |")


if __name__ == "__main__":
    main()
