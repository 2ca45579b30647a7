"""Where and how to compute: the device, its precision, and what is compiled there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from sortal.config import AUTO, Auto, Precision
from sortal.errors import InputError, listing

logger = logging.getLogger(__name__)

# On an H200, compiling costs some 5 s. It saves 5 ms of 256 views of ViT-B/16 in the trunk, half a millisecond of a
# step on cached tokens.
VIEWS_THAT_PAY = 250_000  # through the trunk
STEPS_THAT_PAY = 20_000

# What errors without a type of their own say: of the CPU's allocator, of CUDA and MPS, of NVIDIA's libraries.
OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "_STATUS_ALLOC_FAILED")


@dataclass(frozen=True)
class Compute:
    """A device, whether products are in bfloat16 there, and whether functions are compiled for it."""

    device: torch.device
    bf16: bool = False
    compiled: bool = False

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    def faster(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The function, compiled where that was chosen; as it is where the compiler fails."""
        return _Compiled(function) if self.compiled else function


def choose(device: torch.device, *, precision: Precision = AUTO, compiled: bool | Auto = AUTO, pays: bool) -> Compute:
    """bfloat16 where the device has it in hardware; compiled on GPUs where that pays for the time it takes."""
    if precision not in get_args(Precision):
        raise InputError(f"precision must be one of {listing(get_args(Precision))}, got {precision!r}.")
    if compiled != AUTO and not isinstance(compiled, bool):
        raise InputError(f"compile must be True, False or {AUTO!r}, got {compiled!r}.")
    if precision == "bf16" and device.type == "mps":
        raise InputError("precision must be 'float32' or 'auto' on mps, got 'bf16'.")
    bf16 = precision == "bf16" or (precision == AUTO and _has_bf16(device))
    return Compute(device, bf16, device.type == "cuda" and pays if compiled == AUTO else bool(compiled))


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())


class _Compiled:
    """A compiled function; if compiling fails at the first call, the plain one from then on."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.plain = function
        self.run: Callable[..., Any] | None = None
        self.proven = False

    def __call__(self, *values: Any) -> Tensor:
        try:
            self.run = self.run or torch.compile(self.plain, dynamic=False)  # which some Pythons refuse
            result: Tensor = self.run(*values)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers fail in many ways, and none of them matters
            if self.proven:
                raise
            logger.warning("Not compiled, so slower: %s", [*str(error).strip().splitlines(), repr(error)][0])
            self.run = self.plain
            result = self.plain(*values)
        self.proven = True
        return result


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
