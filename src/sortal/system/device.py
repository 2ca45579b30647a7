"""Choice of device, precision and compilation."""

import atexit
import functools
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter
from typing import Any, get_args

import torch
from torch import Tensor

from sortal.config import AUTO, Auto, Precision
from sortal.errors import InputError, Remedy, listing
from sortal.system import cache
from sortal.system.resources import cores
from sortal.system.text import plural

logger = logging.getLogger(__name__)

# On an H200, compilation takes about 5 s. It saves 5 ms per 256 views of ViT-B/16 in the trunk, and 0.5 ms per step on
# cached tokens.
MIN_VIEWS_TO_COMPILE = 250_000  # through the trunk
MIN_STEPS_TO_COMPILE = 20_000
THREAD_TRIALS, TRIAL_SECONDS = 5, 0.05  # of each number of threads, and how long a trial takes, at least
CLEARLY = 1.3  # how much quicker fewer threads must be
INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
COMPILERS = 4  # processes; by default one per core, each of which keeps its memory

# Messages of out-of-memory errors without their own type: of the CPU allocator, CUDA, MPS and NVIDIA's libraries.
OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "_STATUS_ALLOC_FAILED")


@dataclass(frozen=True)
class Compute:
    """A device, whether to use bfloat16 autocast, whether to compile functions, and whether frozen layers use int8."""

    device: torch.device
    bf16: bool = False
    compiled: bool = False
    int8: bool = False

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    def maybe_compile(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Compile a function if chosen; the plain one takes over if its first call fails to compile."""
        if not self.compiled:
            return function
        run: Callable[..., Any] | None = None
        proven = False

        def call(*values: Any) -> Tensor:
            nonlocal run, proven
            try:
                os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(COMPILERS))  # read when first imported
                os.environ[INDUCTOR_CACHE] = os.environ.get(INDUCTOR_CACHE) or compiler_cache()
                if run is None:  # a compiled module without a length has no truth value
                    run = torch.compile(function, dynamic=False)  # raises on some Python versions
                result: Tensor = run(*values)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # compilers fail in many ways, none of them fatal
                if proven:
                    raise
                logger.warning("Compilation failed: %s", [*str(error).strip().splitlines(), repr(error)][0])
                run = function
                result = function(*values)
            proven = True
            return result

        return call


@functools.cache
def compiler_cache() -> str:
    """Return a folder for compiled code that only this user can write to; torch's own, in /tmp, is open to everyone."""
    place = os.path.join(os.path.dirname(torch.hub.get_dir()), "inductor")
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        if not hasattr(os, "geteuid") or (os.stat(place).st_uid == os.geteuid() and os.access(place, os.W_OK)):
            return place
    except OSError:
        pass
    own = tempfile.mkdtemp(prefix="sortal-inductor-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def choose_device(device: str, x: object) -> torch.device:
    """Return the device by name; "auto" is the device of the tensor x, else a GPU if available, else the CPU."""
    if device == "auto":
        return x.device if isinstance(x, Tensor) else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = re.fullmatch(r"(cpu|cuda|mps)(?::(0|[1-9][0-9]*))?", str(device))
    if name is None:
        raise InputError(f"device must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps', got {device!r}.")
    have = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[name[1]]
    if int(name[2] or 0) >= have:
        remedy = Remedy("let Sortal choose", device=AUTO)
        raise InputError(f"device must be on this machine, got {device!r} ({have} available).", remedy)
    return torch.device(device)


def name_of(device: torch.device) -> str:
    """Name a device as records do, a GPU with its model: "cpu", "cuda:0 (NVIDIA H200)"."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def start(device: torch.device) -> None:
    """Start a GPU in another thread: its context and libraries take about a second, during which files can be read."""

    def work() -> None:
        with suppress(RuntimeError):  # reported where the GPU is used
            square = torch.zeros((8, 8), device=device)
            (square @ square).sum().item()

    if device.type == "cuda":
        Thread(target=work, name="start-gpu").start()  # not a daemon, which could abort the process at its end


def choose_compute(
    device: torch.device, *, precision: Precision = AUTO, compiled: bool | Auto = AUTO, worthwhile: bool
) -> Compute:
    """Choose what the hardware supports: bfloat16, or else int8 on a CPU, and compilation on GPUs if worthwhile."""
    if precision not in get_args(Precision):
        raise InputError(f"precision must be one of {listing(get_args(Precision))}, got {precision!r}.")
    if compiled != AUTO and not isinstance(compiled, bool):
        raise InputError(f"compile must be True, False or {AUTO!r}, got {compiled!r}.")
    if precision == "bf16" and device.type == "mps":
        raise InputError("precision must be 'float32' or 'auto' on mps, got 'bf16'.")
    bf16 = precision == "bf16"
    if precision == AUTO and device.type == "cuda":
        bf16 = torch.cuda.get_device_capability(device) >= (8, 0)
    elif precision == AUTO and device.type == "cpu":
        # If ATEN_CPU_CAPABILITY limits PyTorch to less than the processor has, it has no attention in bfloat16.
        whole = torch.backends.cpu.get_cpu_capability() == "AVX512"
        bf16 = whole and bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())
    int8 = precision == AUTO and device.type == "cpu" and not bf16 and multiplies_int8()
    return Compute(device, bf16, device.type == "cuda" and worthwhile if compiled == AUTO else bool(compiled), int8)


@functools.cache
def multiplies_int8() -> bool:
    """Tell whether the processor has products of 8-bit integers, and PyTorch the library that uses them."""
    if "onednn" not in torch.backends.quantized.supported_engines:
        return False
    if getattr(torch.cpu, "_is_vnni_supported", bool)():
        return torch.backends.cpu.get_cpu_capability() == "AVX512"
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return any("asimddp" in line.split() for line in file if line.startswith("Features"))
    except OSError:
        return False


@contextmanager
def quick_threads(wanted: bool, kept: Path | None = None) -> Iterator[str | None]:
    """Let PyTorch compute with as many threads as are quickest now, if wanted; say so if that is not one for each core.

    Threads wait for each other after every operation, so with one whose core is busy all of them are slow. Nothing is
    changed where a person has set OMP_NUM_THREADS, and afterwards the caller has as many threads as before. The number
    is `kept` in a file: a run that is resumed under another load has the same, and so the same result.
    """
    before = torch.get_num_threads()
    try:
        yield None if not wanted or os.environ.get("OMP_NUM_THREADS") else _settle_threads(min(cores(), before), kept)
    finally:
        torch.set_num_threads(before)


def _settle_threads(most: int, kept: Path | None) -> str | None:
    held = None if kept is None else cache.load(kept)
    before = held[1] if isinstance(held, list) and len(held) == 2 and held[0] == most else None
    best = before if type(before) is int and 1 <= before <= most else _quickest_now(most)
    torch.set_num_threads(best)
    if kept is not None and best != before:
        cache.save(kept, [most, best])
    if best == most:
        return None
    why = "as before" if best == before else "as other programs keep the processor busy"
    return f"Computing with {plural(best, 'thread')} instead of {most}, {why}."


@functools.cache
def _quickest_now(most: int) -> int:
    return quickest(sorted({most, *(2**i for i in range(most.bit_length() - 1))}), _seconds_with)


def quickest(counts: list[int], seconds: Callable[[int], float]) -> int:
    """Return the count with the least median time, or the last unless another is clearly quicker."""
    trials = [[seconds(count) for count in counts] for _ in range(THREAD_TRIALS)]  # in turn, as the load changes
    times = dict(zip(counts, map(median, zip(*trials, strict=True)), strict=True))
    best = min(counts, key=times.__getitem__)
    return best if times[best] * CLEARLY < times[counts[-1]] else counts[-1]


def _seconds_with(threads: int) -> float:
    """Time an operation as those of a network."""
    torch.set_num_threads(threads)
    rows, weights = torch.ones((514, 384)), torch.ones((384, 1536))
    torch.nn.functional.gelu(rows @ weights)  # starts the threads
    started, count = perf_counter(), 0
    while (took := perf_counter() - started) < TRIAL_SECONDS:
        torch.nn.functional.gelu(rows @ weights)
        count += 1
    return took / count


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out, on a GPU or on the CPU."""
    text = str(error) if isinstance(error, RuntimeError) else ""
    return isinstance(error, torch.OutOfMemoryError) or any(words in text for words in OUT_OF_MEMORY)
