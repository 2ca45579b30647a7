"""Time, memory and quality of clustering: Sortal against plain torch, scikit-learn and faiss, with equal threads.

    python benchmarks/clustering.py speed --scale cub --n-init 1,10,100 --threads 2 --out speed.json

speed      seconds, inertia and ACC of everyone, and how many times longer than ours
memory     the peak beyond the features, each in a process of its own
starts     inertia from the same starting centres
equal      our time to reach the inertia of faiss
limit      against Lloyd's iterations at the matrix rate of this machine
growth     how time grows with n, k and d
estimate   both estimates of k
mixtures   both estimates of k where k is known
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

import torch
from peers import (
    MAX_ITER,
    SCALES,
    Peer,
    Problem,
    Run,
    Scale,
    Solution,
    Split,
    all_peers,
    block_rows,
    direct_nearest,
    generator,
    inertia,
    lloyd,
    make_problem,
    nearest,
    ours,
    plus_plus,
    synchronise,
)

from sortal import estimate_k
from sortal.clustering.cluster_sums import LabelledSums
from sortal.clustering.estimate_k import KMethod
from sortal.clustering.lloyd import LloydState, restarts, restarts_at_once
from sortal.clustering.lloyd import lloyd as our_lloyd
from sortal.clustering.points import Points
from sortal.metrics import Accuracy, accuracy
from sortal.runs.facts import TriedK

T = TypeVar("T")
Record = dict[str, Any]  # one row of a table: column -> value
CHEAP = 5.0  # seconds: shorter measurements are repeated, and the best counts
STARTS = 3  # starting points, or seeds
PATIENCE = 4.0  # times the time of faiss, after which reaching its inertia is given up


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    modes: list[str]
    scale: list[str]
    n_init: list[int]
    peers: list[str]
    device: str
    threads: int
    processor: bool
    seed: int
    budget: float
    published_restarts: int
    published_draws: int | None
    published_iterations: int | None
    out: Path | None
    child: str | None

    def problems(self) -> Iterator[Problem]:
        for name in self.scale:
            yield make_problem(name, SCALES[name], seed=self.seed, device=self.device)

    def solvers(self) -> list[Peer]:
        """Return the requested peers that can run here."""
        there = []
        for peer in all_peers(self.published_draws, self.published_iterations):
            if peer.group not in self.peers:
                continue
            if self.device == "cuda" and peer.needs != "torch":
                say(f"{peer.name}: skipped, it runs on the CPU only")
            elif find_spec(peer.needs) is None:
                say(f"{peer.name}: skipped, {peer.needs} is not installed")
            else:
                there.append(peer)
        return there


@dataclass(frozen=True)
class Table:
    """The tables of a mode."""

    title: str
    records: list[Record]

    def markdown(self) -> str:
        columns = list(dict.fromkeys(column for record in self.records for column in record))
        lines = [columns, ["---"] * len(columns)]
        lines += [[shown(record.get(column)) for column in columns] for record in self.records]
        return "\n".join([f"### {self.title}", "", *("| " + " | ".join(line) + " |" for line in lines), ""])


def shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


# Measuring


def clocked(action: Callable[[], T], options: Options) -> tuple[T, float]:
    clock = process_time if options.processor else perf_counter
    synchronise(torch.device(options.device))
    start = clock()
    result = action()
    synchronise(torch.device(options.device))
    return result, clock() - start


def best_time(action: Callable[[], T], options: Options) -> tuple[T, float]:
    """Return the result and the best time: of three cheap runs, or of five on a GPU after a warm-up."""
    again = 2
    if options.device == "cuda":
        action()
        again = 4
    result, least = clocked(action, options)
    if least < CHEAP:
        least = min(least, *(clocked(action, options)[1] for _ in range(again)))
    return result, least


@dataclass(frozen=True)
class Measured:
    """Solve a problem with a peer and a number of restarts."""

    restarts: int
    seconds: float
    inertia: float
    accuracy: Accuracy
    iterations: int
    note: str


def measure(peer: Peer, problem: Problem, n_init: int, options: Options) -> Measured:
    solution, seconds = best_time(partial(peer.solve, problem, n_init, options.seed), options)
    free = problem.labels < 0
    result = Measured(
        restarts=n_init,
        seconds=seconds if solution.seconds is None else solution.seconds,
        inertia=inertia(problem.x, solution),
        accuracy=accuracy(problem.truth[free], solution.labels[free], old=range(problem.old)),
        iterations=solution.iterations,
        note=solution.note,
    )
    say(f"{problem.name}: {peer.name}, {n_init} restarts: {result.seconds:.3f} s, inertia {result.inertia:.4f}")
    return result


class Stopwatches:
    """Measurements of one problem, cached, with fewer restarts where all would take too long."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem, self.options = problem, options
        self.taken: dict[tuple[str, int], Measured] = {}

    def take(self, peer: Peer, n_init: int) -> Measured:
        """Return the measurement for n_init restarts, extrapolated for peers only."""
        count = n_init
        if peer.group == "a":
            count = min(n_init, self.options.published_restarts)
        elif peer.group != "ours" and n_init > 1:
            count = max(1, min(n_init, int(self.options.budget / self._exactly(peer, 1).seconds)))
        return self._exactly(peer, count)

    def _exactly(self, peer: Peer, n_init: int) -> Measured:
        key = (peer.name, n_init)
        if key not in self.taken:
            self.taken[key] = measure(peer, self.problem, n_init, self.options)
        return self.taken[key]


# The modes


def speed(options: Options) -> Iterator[Table]:
    solvers = options.solvers()
    for problem in options.problems():
        watches = Stopwatches(problem, options)
        records = [
            speed_record(peer, n_init, watches.take(peer, n_init))
            for n_init in options.n_init
            for peer in solvers
            if n_init <= (peer.most or n_init)
        ]
        yield Table(f"speed: {describe(problem)}", records)
        yield Table(f"times longer than ours: {describe(problem)}", ratios(records, solvers))


def describe(problem: Problem) -> str:
    n, d = problem.x.shape
    labelled = int((problem.labels >= 0).sum())
    return f"{problem.name}, {n:,} × {d}, k = {problem.k}, {problem.old} old classes, {labelled:,} labelled"


def speed_record(peer: Peer, n_init: int, measured: Measured) -> Record:
    notes = [measured.note] if measured.note else []
    if measured.restarts < n_init:
        notes.append(f"extrapolated from {measured.restarts} of {n_init} restarts, and the best of those")
    return {
        "n_init": n_init,
        "method": peer.name,
        "seconds": measured.seconds * n_init / measured.restarts,
        "a restart": measured.seconds / measured.restarts,
        "inertia": f"{measured.inertia:.3f}",
        "iterations": measured.iterations,
        **{f"ACC {part}": value for part, value in asdict(measured.accuracy).items()},
        "note": "; ".join(notes),
    }


def ratios(records: list[Record], solvers: list[Peer]) -> list[Record]:
    """Compare all peers on a problem: with labels and the paper's seeding, or without labels."""
    seconds = {(record["method"], record["n_init"]): record["seconds"] for record in records}
    rows = []
    for peer in solvers:
        mine = "ours, paper's starts" if peer.semi else "ours, plain"
        if peer.group != "ours":
            rows.append({"method": peer.name, "against": mine})
            for n_init in dict.fromkeys(record["n_init"] for record in records):
                theirs, own = seconds.get((peer.name, n_init)), seconds.get((mine, n_init))
                rows[-1][f"n_init {n_init}"] = f"{theirs / own:.3g}×" if theirs and own else "–"
    return rows


def memory(options: Options) -> Iterator[Table]:
    """Compare peak memory: Sortal with as many restarts as it runs at once, the sequential others with one."""
    for name in options.scale:
        records = []
        for peer in options.solvers():
            command = [sys.executable, __file__, "memory", "--scale", name, "--child", peer.name]
            command += ["--device", options.device, "--threads", str(options.threads), "--seed", str(options.seed)]
            command += ["--n-init", ",".join(map(str, options.n_init))]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            answer = json.loads(done.stdout) if done.returncode == 0 else {"note": f"exit status {done.returncode}"}
            records.append({"method": peer.name, **answer})
            say(f"{name}: {records[-1]}")
        yield Table(f"memory: {name}", records)


def memory_child(options: Options) -> Record:
    """Measure the peak of one peer beyond the features, after a warm-up run."""
    problem = next(options.problems())
    peer = next(peer for peer in all_peers(1, 1) if peer.name == options.child)  # one timed draw of (a) suffices
    peer.solve(make_problem("warm-up", SCALES["tiny"], seed=0, device=options.device), 1, 0)
    size = 1
    if peer.group == "ours":
        split = Split.of(problem, semi=peer.semi)
        size = restarts_at_once(Points(problem.x, split.where if peer.semi else None), problem.k)
        del split
    n_init = min(size, max(options.n_init))
    level = reset_peak(options.device)
    solution = peer.solve(problem, n_init, options.seed)
    peak = peak_bytes(options.device) - level
    return {"restarts": n_init, "peak MB": peak / 1e6, "features MB": problem.x.nbytes / 1e6, "note": solution.note}


def reset_peak(device: str) -> int:
    """Reset the peak and return the bytes in use, as Linux counts them: ru_maxrss would include the parent's peak."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes(device)


def peak_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def starts(options: Options) -> Iterator[Table]:
    for problem in options.problems():
        records = []
        for semi in (True, False):
            split = Split.of(problem, semi=semi)
            other = "(a) published" if semi else "(c) scikit-learn"
            if semi and block_rows(split, problem.k) < len(split.rows):
                say(f"{problem.name}: {other} skipped, its (m, k, d) array does not fit in memory")
                continue
            if not semi and options.device == "cuda":
                say(f"{other}: skipped, it runs on the CPU only")
                continue
            running = nearest(split, split.sums / split.counts[:, None])[0] if semi else None
            for seed in range(options.seed, options.seed + STARTS):
                centres = plus_plus(split, problem.k, generator(split, seed), running)
                mine = from_start(problem, split, centres)
                theirs = split.solution(lloyd(split, centres, direct_nearest)) if semi else learn(problem, centres)
                records.append(start_record(problem, other, seed, mine, theirs))
        if records:
            yield Table(f"same starts: {describe(problem)}", records)


def from_start(problem: Problem, split: Split, centres: torch.Tensor) -> Solution:
    """Run our iterations from given centres (k, d)."""
    points = Points(problem.x, split.where if len(split.sums) else None)
    fixed = LabelledSums.of(problem.x, split.known, len(split.sums), points)
    state = LloydState.at(points, (centres.to(points.wide) - points.mean).to(centres.dtype)[None])
    (ended,) = our_lloyd(points, fixed, state, max_iter=MAX_ITER, tol=0)
    placed = (ended.centres + points.mean).to(centres.dtype)
    return split.solution(Run(ended.spread, placed, ended.assigned, ended.n_iter))


def learn(problem: Problem, centres: torch.Tensor) -> Solution:
    """Run scikit-learn's iterations from given centres (k, d)."""
    from sklearn.cluster import KMeans

    model = KMeans(problem.k, init=centres.numpy(), n_init=1, max_iter=MAX_ITER, tol=0).fit(problem.x.numpy())
    return Solution(model.labels_.astype("int64"), torch.from_numpy(model.cluster_centers_), model.n_iter_)


def start_record(problem: Problem, other: str, seed: int, mine: Solution, theirs: Solution) -> Record:
    a, b = inertia(problem.x, mine), inertia(problem.x, theirs)
    say(f"{problem.name}: start {seed}: ours {a:.6f}, {other} {b:.6f}")
    return {
        "against": other,
        "start": seed,
        "ours": f"{a:.6f}",
        "theirs": f"{b:.6f}",
        "ours / theirs − 1": f"{a / b - 1:+.1e}",
        "rows in another cluster": int((mine.labels != theirs.labels).sum()),
        "iterations": f"{mine.iterations} / {theirs.iterations}",
    }


def equal(options: Options) -> Iterator[Table]:
    """Run 1, 2, 4, … restarts until the inertia is that of faiss or less, for a few seeds."""
    solvers = [peer for peer in options.solvers() if peer.group == "faiss"]
    for problem in options.problems() if solvers else ():
        records = []
        for seed in range(options.seed, options.seed + STARTS):
            watches = Stopwatches(problem, replace(options, seed=seed))
            records += [equal_record(peer, n_init, watches) for n_init in options.n_init for peer in solvers]
        yield Table(f"at the inertia of faiss: {describe(problem)}", records)


def equal_record(peer: Peer, n_init: int, watches: Stopwatches) -> Record:
    """Time the last fit only, not the search for its number of restarts."""
    plain = next(peer for peer in all_peers() if peer.group == "ours" and not peer.semi)
    theirs, mine = watches.take(peer, n_init), watches.take(plain, 1)
    while mine.inertia > theirs.inertia and mine.seconds < PATIENCE * theirs.seconds:
        mine = watches.take(plain, 2 * mine.restarts)
    return {
        "peer": peer.name,
        "seed": watches.options.seed,
        "its restarts": theirs.restarts,
        "its seconds": theirs.seconds,
        "its inertia": f"{theirs.inertia:.3f}",
        "our restarts": mine.restarts,
        "our seconds": mine.seconds,
        "our inertia": f"{mine.inertia:.3f}",
        "times longer than ours": theirs.seconds / mine.seconds,
        "note": "" if mine.inertia <= theirs.inertia else "not reached",
    }


def limit(options: Options) -> Iterator[Table]:
    records = []
    for problem in options.problems():
        for semi in (True, False):
            rows = Split.of(problem, semi=semi).rows
            centres = rows[: problem.k].T.contiguous()
            _, assignment = best_time(partial(torch.mm, rows, centres), options)
            work = 2 * len(rows) * problem.k * rows.shape[1]
            iterations = mean_iterations(problem, semi, options.seed)
            for n_init in options.n_init:
                _, seconds = best_time(partial(ours, problem, n_init, options.seed, semi=semi, candidates=1), options)
                floor = assignment * iterations * n_init
                records.append(
                    {
                        "problem": problem.name + ("" if semi else ", plain"),
                        "rows × k × d": f"{len(rows):,} × {problem.k} × {rows.shape[1]}",
                        "GFLOP/s": work / assignment / 1e9,
                        "one assignment, s": assignment,
                        "iterations": iterations,
                        "n_init": n_init,
                        "unpruned floor, s": floor,
                        "ours, s": seconds,
                        "ours / floor": seconds / floor,
                    }
                )
                say(f"{records[-1]}")
    yield Table("against 2·n·k·d operations an iteration at the measured matrix rate", records)


def mean_iterations(problem: Problem, semi: bool, seed: int) -> float:
    """Count the iterations of ten restarts."""
    split = Split.of(problem, semi=semi)
    points = Points(problem.x, split.where if semi else None)
    fixed = LabelledSums.of(problem.x, split.known, len(split.sums), points)
    ended = list(restarts(points, fixed, problem.k, 10, seed, candidates=1, max_iter=MAX_ITER, tol=0))
    return sum(one.n_iter for one in ended) / len(ended)


def growth(options: Options) -> Iterator[Table]:
    middle = Scale(n=10_000, k=50, d=192, old=25, separation=1.0)
    if options.scale == ["tiny"]:
        middle = replace(middle, n=200, k=4, d=8, old=2)
    solvers = [peer for peer in options.solvers() if peer.semi and peer.group in ("ours", "b")]
    for what in ("n", "k", "d"):
        records = []
        for times in (1, 2, 4, 8):
            scale = replace(middle, **{what: times * getattr(middle, what)})
            scale = replace(scale, old=scale.k // 2)
            problem = make_problem(f"{what} × {times}", scale, seed=options.seed, device=options.device)
            watches = Stopwatches(problem, options)
            for n_init in (n for n in options.n_init if n <= 10):
                record: Record = {"n": scale.n, "k": scale.k, "d": scale.d, "n_init": n_init}
                for peer in solvers:
                    taken = watches.take(peer, n_init)
                    record[f"{peer.name}, s"] = taken.seconds * n_init / taken.restarts
                    record[f"{peer.name}, iterations"] = taken.iterations
                records.append(record)
        yield Table(f"growth with {what}", sorted(records, key=lambda record: record["n_init"]))


def estimate(options: Options) -> Iterator[Table]:
    def progress(tried: TriedK) -> None:
        say(f"k = {tried.k}: {tried.score:.4f}")

    for problem in options.problems():
        records: list[Record] = []
        for method in METHODS:
            found, seconds = clocked(
                partial(
                    estimate_k,
                    problem.x,
                    problem.labels,
                    k_max=SCALES[problem.name].k_max,
                    method=method,
                    random_state=options.seed,
                    callback=progress,
                ),
                options,
            )
            records.append(
                {
                    "method": method,
                    "seconds": seconds,
                    "k": found.k,
                    "interval": "{}–{}".format(*found.interval),
                    "true k": problem.k,
                    "evaluations": len(found.curve),
                }
            )
        yield Table(f"estimate of k: {describe(problem)}", records)


METHODS: tuple[KMethod, ...] = ("brent", "separation")


def mixtures(options: Options) -> Iterator[Table]:
    """Estimate k on problems from hard to easy (by the ACC of plain k-means), up to ten times the true k."""
    records: list[Record] = []
    sizes = (5,) if options.scale == ["tiny"] else (20, 100)
    for k in sizes:
        for tail in (0.0, 0.7):
            for separation in (2.0,) if options.scale == ["tiny"] else (0.8, 1.2, 2.0):
                scale = Scale(n=50 * k, k=k, d=64, old=k // 2, separation=separation, tail=tail, k_max=10 * k)
                say(f"{scale}")
                records.append(mixture_record(scale, options))
    yield Table(f"estimates of k on planted mixtures, seeds {options.seed} to {options.seed + STARTS - 1}", records)


def mixture_record(scale: Scale, options: Options) -> Record:
    """Return both estimates over the seeds: every k, the hull of the intervals, the mean error."""
    seeds = range(options.seed, options.seed + STARTS)
    problems = [make_problem("mixture", scale, seed=seed, device=options.device) for seed in seeds]
    record: Record = {
        "true k": scale.k,
        "sizes": f"rank^−{scale.tail}" if scale.tail else "equal",
        "separation": scale.separation,
    }
    right = [accuracy(p.truth, ours(p, 10, options.seed, semi=False).labels, old=()).all or 0.0 for p in problems]
    record["ACC, true k"] = sum(right) / len(right)
    for method in METHODS:
        found = [
            estimate_k(p.x, p.labels, k_max=scale.k_max, method=method, random_state=seed)
            for p, seed in zip(problems, seeds, strict=True)
        ]
        record[f"{method}: k"] = ", ".join(str(one.k) for one in found)
        record[f"{method}: interval"] = (
            f"{min(one.interval[0] for one in found)}–{max(one.interval[1] for one in found)}"
        )
        error = sum(abs(one.k - scale.k) for one in found) / len(found) / scale.k
        record[f"{method}: error"] = f"{error:.0%}"
    return record


MODES: dict[str, Callable[[Options], Iterator[Table]]] = {
    "speed": speed,
    "memory": memory,
    "starts": starts,
    "equal": equal,
    "limit": limit,
    "growth": growth,
    "estimate": estimate,
    "mixtures": mixtures,
}


# The command


def machine(options: Options) -> Record:
    """Describe the machine and the versions."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    return {
        "CPU": models[0].split(":")[1].strip() if models else platform.processor(),
        "cores": os.cpu_count(),
        "threads": options.threads,
        "time": "processor" if options.processor else "wall",
        "load before": round(os.getloadavg()[0], 2),  # other processes distort the times
        "GPU": torch.cuda.get_device_name() if options.device == "cuda" else None,
        "python": platform.python_version(),
        **{name: installed(name) for name in ("torch", "numpy", "scikit-learn", "faiss-cpu")},
        "seed": options.seed,
    }


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def limit_threads(count: int) -> None:
    """Set the same number of threads for every peer."""
    torch.set_num_threads(count)
    if find_spec("faiss"):
        import faiss

        faiss.omp_set_num_threads(count)
    if find_spec("threadpoolctl"):
        from threadpoolctl import threadpool_limits

        threadpool_limits(count)


def parse(arguments: Iterable[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("modes", nargs="+", choices=list(MODES), metavar="mode", help=", ".join(MODES))
    add("--scale", type=names(SCALES), default=["cub"], help=f"some of {','.join(SCALES)}")
    add("--n-init", type=lambda text: sorted(map(int, text.split(","))), default=[1, 10, 100])
    groups = list(dict.fromkeys(peer.group for peer in all_peers()))
    add("--peers", type=names(groups), default=groups, help=f"some of {','.join(groups)}")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--threads", type=int, default=os.cpu_count())
    add("--processor", action="store_true", help="processor time of all threads, for a machine that is not idle")
    add("--seed", type=int, default=0)
    add("--budget", type=float, default=60, help="seconds for one measurement of a peer; beyond, extrapolated")
    add("--published-restarts", type=int, default=1, help="restarts of (a) to measure")
    add("--published-draws", type=int, help="draws of a seeding of (a) to time, 0 for all")
    add("--published-iterations", type=int, help="assignments of a restart of (a) to time, 0 for all")
    add("--out", type=Path, help="also write the tables to this JSON file")
    add("--child", help=argparse.SUPPRESS)
    return Options(**vars(parser.parse_args(None if arguments is None else list(arguments))))


def names(allowed: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of comma-separated lists of allowed names."""

    def read(text: str) -> list[str]:
        wrong = set(text.split(",")) - set(allowed)
        if wrong:
            raise argparse.ArgumentTypeError(f"must be some of {','.join(allowed)}, got {','.join(sorted(wrong))}")
        return text.split(",")

    return read


def main() -> None:
    options = parse()
    limit_threads(options.threads)
    if options.child:
        print(json.dumps(memory_child(options)))
        return
    header = machine(options)
    print(", ".join(f"{name} {value}" for name, value in header.items() if value is not None), end="\n\n")
    tables = []
    for mode in options.modes:
        for table in MODES[mode](options):
            print(table.markdown(), flush=True)
            tables.append({"mode": mode, **asdict(table)})
            if options.out:
                options.out.write_text(json.dumps({"machine": header, "tables": tables}, indent=1) + "\n")


if __name__ == "__main__":
    main()
