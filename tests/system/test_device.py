"""Where and how to compute: tables of what is chosen, compilers that fail, and errors that say memory ran out."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sortal.config import AUTO
from sortal.errors import InputError
from sortal.system.device import Compute, choose_compute, is_out_of_memory

CPU = torch.device("cpu")


def hardware(monkeypatch: pytest.MonkeyPatch, *, capability: tuple[int, int] = (9, 0), amx: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)


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
def test_bfloat16_is_chosen_where_the_hardware_has_it_or_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, device: str, precision: Any, bf16: tuple[bool, bool]
) -> None:
    found = []
    for capability, amx in (((8, 0), True), ((7, 5), False)):
        hardware(monkeypatch, capability=capability, amx=amx)
        found.append(choose_compute(torch.device(device), precision=precision, worthwhile=True))
    assert [compute.device for compute in found] == [torch.device(device)] * 2
    assert tuple(compute.bf16 for compute in found) == bf16


def test_a_torch_that_cannot_tell_has_no_bfloat16_in_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert choose_compute(CPU, worthwhile=False) == Compute(CPU)


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("device", ["cuda", "cpu", "mps"])
def test_compiled_on_gpus_in_long_runs_by_default(monkeypatch: pytest.MonkeyPatch, device: str, long: bool) -> None:
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


def test_products_are_in_bfloat16_where_that_was_chosen() -> None:
    x = torch.ones(2, 2)
    with Compute(CPU, bf16=True).autocast():
        assert (x @ x).dtype == torch.bfloat16
    with Compute(CPU, bf16=False).autocast():
        assert (x @ x).dtype == torch.float32


# Compiled functions


def double(x: Tensor) -> Tensor:
    return 2 * x


class Compiler:
    """In place of torch.compile: what comes out does `behave` first."""

    def __init__(self, behave: Callable[[int], None]) -> None:
        self.behave = behave
        self.calls = 0
        self.options: dict[str, Any] = {}

    def __call__(self, function: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
        self.options = options
        self.behave(0)

        def compiled(*values: Any) -> Tensor:
            self.calls += 1
            self.behave(self.calls)
            return function(*values)

        return compiled


def compiler(monkeypatch: pytest.MonkeyPatch, behave: Callable[[int], None]) -> Compiler:
    found = Compiler(behave)
    monkeypatch.setattr(torch, "compile", found)
    return found


def failing(error: BaseException, at: int = 1) -> Callable[[int], None]:
    def behave(call: int) -> None:
        if call == at:
            raise error

    return behave


def test_the_compiled_function_is_called_where_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    used = compiler(monkeypatch, lambda _: None)
    assert Compute(CPU).maybe_compile(double) is double
    faster = Compute(CPU, compiled=True).maybe_compile(double)
    assert [faster(torch.tensor(n)).item() for n in (1, 2, 3)] == [2, 4, 6]
    assert used.calls == 3
    assert used.options == {"dynamic": False}


@pytest.mark.parametrize(
    ("error", "at", "said"),  # at 0, torch.compile itself fails, as some Pythons have no compiler
    [
        (RuntimeError("not supported on Python 3.99+"), 0, "Compilation failed: not supported on Python 3.99+"),
        (RuntimeError("no compiler here\nlong story"), 1, "Compilation failed: no compiler here"),
        (NotImplementedError("\n  first of all\nand so on\n"), 1, "Compilation failed: first of all"),
        (ValueError(" \n"), 1, r"Compilation failed: ValueError(' \n')"),
    ],
)
def test_where_the_compiler_fails_the_plain_function_runs_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, at: int, said: str
) -> None:
    used = compiler(monkeypatch, failing(error, at))
    faster = Compute(CPU, compiled=True).maybe_compile(double)
    assert [faster(torch.tensor(n)).item() for n in (1, 2, 3)] == [2, 4, 6]
    assert used.calls == at
    assert caplog.messages == [said]
    assert caplog.records[0].levelno == logging.WARNING


def test_errors_that_are_not_the_compilers_are_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of the function itself, and those that come after a call that went well."""

    def wrong(_: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    compiler(monkeypatch, failing(RuntimeError("later"), at=2))
    with pytest.raises(ZeroDivisionError, match="mine"):
        Compute(CPU, compiled=True).maybe_compile(wrong)(torch.ones(1))
    compiler(monkeypatch, failing(RuntimeError("later"), at=2))
    caplog.clear()
    faster = Compute(CPU, compiled=True).maybe_compile(double)
    faster(torch.ones(1))
    with pytest.raises(RuntimeError, match="later"):
        faster(torch.ones(1))
    assert caplog.messages == []


def test_lack_of_memory_is_no_fault_of_the_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used = compiler(monkeypatch, failing(torch.OutOfMemoryError("CUDA out of memory")))
    faster = Compute(CPU, compiled=True).maybe_compile(double)
    with pytest.raises(torch.OutOfMemoryError):
        faster(torch.ones(1))
    assert faster(torch.tensor(4)).item() == 8
    assert used.calls == 2  # still the compiled one
    assert caplog.messages == []


# Memory that ran out


def test_lack_of_memory_on_this_machine_is_recognised() -> None:
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
def test_errors_that_say_memory_ran_out(error: BaseException, ran_out: bool) -> None:
    assert is_out_of_memory(error) is ran_out
