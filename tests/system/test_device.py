"""Device, precision and compilation: the choices, compilers that fail, and recognising out-of-memory errors."""

import io
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from sortal.config import AUTO
from sortal.errors import InputError
from sortal.system import device as device_module
from sortal.system.device import Compute, choose_compute, is_out_of_memory, quick_threads

CPU = torch.device("cpu")


def hardware(monkeypatch: pytest.MonkeyPatch, *, capability: tuple[int, int] = (9, 0), amx: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512" if amx else "AVX2")


@pytest.mark.parametrize(
    ("device", "precision", "bf16"),  # with hardware that has bfloat16, and without
    [
        ("cuda:3", "auto", (True, False)),
        ("cpu", "auto", (True, False)),
        ("mps", "auto", (False, False)),
        ("cuda", "float32", (False, False)),
        ("cpu", "float32", (False, False)),
        ("mps", "float32", (False, False)),
        ("cuda", "bf16", (True, True)),
        ("cpu", "bf16", (True, True)),
    ],
)
def test_bfloat16_is_chosen_if_the_hardware_supports_it_or_on_request(
    monkeypatch: pytest.MonkeyPatch, device: str, precision: Any, bf16: tuple[bool, bool]
) -> None:
    found = []
    for capability, amx in (((8, 0), True), ((7, 5), False)):
        hardware(monkeypatch, capability=capability, amx=amx)
        found.append(choose_compute(torch.device(device), precision=precision, worthwhile=True))
    assert [compute.device for compute in found] == [torch.device(device)] * 2
    assert tuple(compute.bf16 for compute in found) == bf16


def test_a_processor_that_may_not_use_all_it_has_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ATEN_CPU_CAPABILITY=avx2, PyTorch raises an error where it would use AMX."""
    hardware(monkeypatch, amx=True)
    assert choose_compute(CPU, worthwhile=False).bf16
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not choose_compute(CPU, worthwhile=False).bf16


def test_a_torch_that_cannot_detect_amx_uses_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    monkeypatch.setattr(device_module, "multiplies_int8", lambda: False)
    assert choose_compute(CPU, worthwhile=False) == Compute(CPU)


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("device", ["cuda", "cpu", "mps"])
def test_long_runs_on_gpus_are_compiled_by_default(monkeypatch: pytest.MonkeyPatch, device: str, long: bool) -> None:
    hardware(monkeypatch)
    for asked, expected in ((AUTO, device == "cuda" and long), (True, True), (False, False)):
        assert choose_compute(torch.device(device), compiled=asked, worthwhile=long).compiled == expected


@pytest.mark.parametrize(
    ("device", "options", "message"),
    [
        ("mps", {"precision": "bf16"}, "precision must be 'float32' or 'auto' on mps, got 'bf16'"),
        ("cpu", {"precision": "bfloat16"}, "precision must be one of .*, got 'bfloat16'"),
        ("cpu", {"precision": None}, "precision must be one of .*, got None"),
        ("cpu", {"compiled": "no"}, "compile must be True, False or 'auto', got 'no'"),
        ("cpu", {"compiled": 1}, "compile must be True, False or 'auto', got 1"),
    ],
)
def test_invalid_settings_are_refused(device: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose_compute(torch.device(device), worthwhile=False, **options)


def test_products_are_in_bfloat16_if_chosen() -> None:
    x = torch.ones(2, 2)
    with Compute(CPU, bf16=True).autocast():
        assert (x @ x).dtype == torch.bfloat16
    with Compute(CPU, bf16=False).autocast():
        assert (x @ x).dtype == torch.float32


# Compiled functions


def double(x: Tensor) -> Tensor:
    return 2 * x


def compiler(monkeypatch: pytest.MonkeyPatch, error: BaseException | None = None, at: int = 1) -> list[Any]:
    """Replace torch.compile, which raises at 0, else the compiled function at this call; list the calls."""
    calls: list[Any] = []

    def compile(function: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
        assert options == {"dynamic": False}
        if error and at == 0:
            raise error

        def compiled(*values: Any) -> Tensor:
            calls.append(values)
            if error and at == len(calls):
                raise error
            return function(*values)

        return compiled

    monkeypatch.setattr(torch, "compile", compile)
    return calls


def test_the_compiled_function_is_called_if_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = compiler(monkeypatch)
    assert Compute(CPU).maybe_compile(double) is double
    faster = Compute(CPU, compiled=True).maybe_compile(double)
    assert [faster(torch.tensor(n)).item() for n in (1, 2, 3)] == [2, 4, 6]
    assert len(calls) == 3


def test_a_compiled_module_need_not_have_a_length(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That of torch 2.11 has `__len__`, which raises unless its module has one."""

    class Compiled:
        def __call__(self, x: Tensor) -> Tensor:
            return double(x)

        def __len__(self) -> int:
            raise TypeError("Contrastive does not support len()")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: Compiled())
    faster = Compute(CPU, compiled=True).maybe_compile(double)
    assert [faster(torch.tensor(n)).item() for n in (1, 2, 3)] == [2, 4, 6]
    assert caplog.messages == []


@pytest.mark.parametrize("home", ["ours", "none"])
def test_compiled_code_is_kept_where_only_its_user_can_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str
) -> None:
    """The default of torch is a folder in /tmp whose name everybody knows."""
    (tmp_path / "none").write_text("a file, below which there is no folder")
    monkeypatch.setenv(device_module.INDUCTOR_CACHE, "")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / home))
    device_module.compiler_cache.cache_clear()
    compiler(monkeypatch)
    Compute(CPU, compiled=True).maybe_compile(double)(torch.ones(1))
    place = Path(os.environ[device_module.INDUCTOR_CACHE])
    assert place.is_relative_to(tmp_path) == (home == "ours")
    assert place.stat().st_mode & 0o077 == 0
    assert place.stat().st_uid == os.geteuid()
    monkeypatch.setenv(device_module.INDUCTOR_CACHE, "/elsewhere")
    Compute(CPU, compiled=True).maybe_compile(double)(torch.ones(1))
    assert os.environ[device_module.INDUCTOR_CACHE] == "/elsewhere"
    device_module.compiler_cache.cache_clear()


@pytest.mark.parametrize(
    ("error", "at", "message"),  # at 0, torch.compile itself fails, as some Pythons have no compiler
    [
        (RuntimeError("not supported on Python 3.99+"), 0, "Compilation failed: not supported on Python 3.99+"),
        (RuntimeError("no compiler here\nlong story"), 1, "Compilation failed: no compiler here"),
        (NotImplementedError("\n  first of all\nand so on\n"), 1, "Compilation failed: first of all"),
        (ValueError(" \n"), 1, r"Compilation failed: ValueError(' \n')"),
    ],
)
def test_if_the_compiler_fails_the_plain_function_runs_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, at: int, message: str
) -> None:
    calls = compiler(monkeypatch, error, at)
    faster = Compute(CPU, compiled=True).maybe_compile(double)
    assert [faster(torch.tensor(n)).item() for n in (1, 2, 3)] == [2, 4, 6]
    assert len(calls) == at
    assert caplog.messages == [message]
    assert caplog.records[0].levelno == logging.WARNING


def test_errors_of_the_function_are_raised(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Those of the function itself, and those after a successful call."""
    compiler(monkeypatch)
    with pytest.raises(ZeroDivisionError, match="mine"):
        Compute(CPU, compiled=True).maybe_compile(Mock(side_effect=ZeroDivisionError("mine")))(torch.ones(1))
    compiler(monkeypatch, RuntimeError("later"), at=2)
    caplog.clear()
    faster = Compute(CPU, compiled=True).maybe_compile(double)
    faster(torch.ones(1))
    with pytest.raises(RuntimeError, match="later"):
        faster(torch.ones(1))
    assert caplog.messages == []


def test_running_out_of_memory_does_not_disable_the_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = compiler(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    faster = Compute(CPU, compiled=True).maybe_compile(double)
    with pytest.raises(torch.OutOfMemoryError):
        faster(torch.ones(1))
    assert faster(torch.tensor(4)).item() == 8
    assert len(calls) == 2  # still compiled
    assert caplog.messages == []


# Out-of-memory errors


def test_running_out_of_memory_on_this_machine_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8."), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("not enough memory"), False),
        (InputError("The folder 'can't allocate memory' is not there."), False),
        (KeyboardInterrupt("can't allocate memory"), False),
    ],
)
def test_out_of_memory_errors_are_recognised(error: BaseException, ran_out: bool) -> None:
    assert is_out_of_memory(error) is ran_out


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({1: 4.0, 2: 2.0, 4: 1.0}, 4),
        ({1: 1.0, 2: 8.0, 4: 9.0}, 1),
        ({1: 0.8, 2: 0.9, 4: 1.0}, 4),  # not clearly quicker
    ],
)
def test_fewer_threads_are_chosen_where_they_are_clearly_quicker(seconds: dict[int, float], best: int) -> None:
    assert device_module.quickest([1, 2, 4], seconds.__getitem__) == best


def test_a_moment_of_load_decides_nothing_about_threads() -> None:
    times = {1: iter([1.0, 1.0, 1.0, 1.0, 1.0]), 4: iter([9.0, 0.5, 0.5, 0.5, 9.0])}
    assert device_module.quickest([1, 4], lambda count: next(times[count])) == 4
    times = {1: iter([1.0, 1.0, 1.0, 1.0, 1.0]), 4: iter([9.0, 0.5, 0.5, 9.0, 9.0])}
    assert device_module.quickest([1, 4], lambda count: next(times[count])) == 1


def test_threads_are_settled_once_for_a_run_and_never_where_a_person_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked, quick, before, kept = list[int](), [1], torch.get_num_threads(), tmp_path / "threads.json"
    monkeypatch.setattr(device_module, "cores", lambda: 4)

    def seconds(threads: int) -> float:
        asked.append(threads)
        return 1.0 if threads in quick else 2.0

    def settled(*, new: bool, wanted: bool = True, kept: Path | None = kept) -> tuple[int, str | None]:
        if new:  # as in a process that resumes the run
            device_module._quickest_now.cache_clear()
        try:
            with quick_threads(wanted, kept) as said:
                return torch.get_num_threads(), said
        finally:
            assert torch.get_num_threads() == 6, "as many as the caller had"

    monkeypatch.setattr(device_module, "_seconds_with", seconds)
    try:
        torch.set_num_threads(6)
        assert settled(new=True) == (6, None), "OMP_NUM_THREADS is set in tests"
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert settled(new=True, wanted=False) == (6, None)
        assert not asked
        assert not kept.exists()
        said = "Computing with 1 thread instead of 4, as other programs keep the processor busy."
        assert settled(new=True) == (1, said)
        assert asked == [1, 2, 4] * 5
        quick[:] = [4]  # when nobody else computes
        assert settled(new=True) == (1, "Computing with 1 thread instead of 4, as before.")
        assert len(asked) == 15
        assert settled(new=False, kept=None) == (4, None), "of another run"
        monkeypatch.setattr(device_module, "cores", lambda: 2)
        quick[:] = [2]
        assert settled(new=True) == (2, None), "on another machine"
        with pytest.raises(KeyError), quick_threads(True, kept):
            raise KeyError
        assert torch.get_num_threads() == 6, "after an error, too"
    finally:
        device_module._quickest_now.cache_clear()
        torch.set_num_threads(before)


def test_frozen_layers_use_int8_where_the_processor_multiplies_it_and_nothing_else_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_module, "multiplies_int8", lambda: True)
    hardware(monkeypatch, amx=False)
    asked: tuple[Any, ...] = (AUTO, "float32", "bf16")
    assert [choose_compute(CPU, precision=each, worthwhile=False).int8 for each in asked] == [True, False, False]
    assert not choose_compute(torch.device("cuda"), worthwhile=False).int8
    hardware(monkeypatch, amx=True)
    assert not choose_compute(CPU, worthwhile=False).int8, "bfloat16 is quicker"


@pytest.mark.parametrize(
    ("engines", "vnni", "capability", "cpuinfo", "found"),
    [
        (["onednn"], True, "AVX512", "", True),
        (["onednn"], True, "AVX2", "", False),
        (["onednn"], False, "DEFAULT", "Features\t: fp asimd asimddp\n", True),
        (["onednn"], False, "DEFAULT", "Features\t: fp asimd\n", False),
        (["qnnpack"], True, "AVX512", "Features\t: asimddp\n", False),
    ],
)
def test_int8_needs_products_and_a_library(
    engines: list[str], vnni: bool, capability: str, cpuinfo: str, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends, "quantized", SimpleNamespace(supported_engines=engines))
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: vnni, raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(device_module, "open", lambda *_, **__: io.StringIO(cpuinfo), raising=False)
    assert device_module.multiplies_int8.__wrapped__() == found
