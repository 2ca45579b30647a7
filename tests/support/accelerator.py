"""A pretended accelerator: tensors that claim to be on it compute on the CPU, and say so wherever they are asked."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

NAME = "mps"  # which needs no libraries of its own, as CUDA would
PRODUCTS = ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "conv2d", "scaled_dot_product_attention")
MARK = "_on_accelerator"
_DEVICE_OF: Any = torch.Tensor.device.__get__
_HOME = ("cpu", "numpy", "tolist", "item", "__array__")  # whose results are in the memory of the host


class Accelerator(TorchFunctionMode):
    """Marks tensors that were moved to it or made on it, and all that is computed from them; counts products."""

    def __init__(self) -> None:
        super().__init__()
        self.products = Counter[str]()  # by where their operands were: "here", "elsewhere"

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        here = any(hasattr(each, MARK) for each in tensors)
        if func == _DEVICE_OF:
            return torch.device(NAME) if here else func(*args)
        name = getattr(func, "__name__", "")
        if func is torch.device or name == "_parse_to":  # names alone; the latter is how Module.to reads them
            return func(*args, **kwargs)
        if name in PRODUCTS and tensors and tensors[0].dtype != torch.float64:  # which such a device lacks
            self.products["here" if here else "elsewhere"] += 1
        asked = _asked(name, args, kwargs)
        result = func(*map(_at_home, args), **{key: _at_home(value) for key, value in kwargs.items()})
        if name == "__set__":
            if getattr(func, "__self__", None) is torch.Tensor.data:  # as Module.to sets those of parameters
                _mark(args[:1], here=hasattr(args[1], MARK))
            return result
        stays = asked == NAME or (asked is None and here and name not in _HOME)
        if isinstance(result, Tensor) and any(result is each for each in tensors) and hasattr(result, MARK) != stays:
            result = result.detach().clone().requires_grad_(result.requires_grad)  # another device, another tensor
        _mark(tree_leaves(result), here=stays)
        return result

    @property
    def used(self) -> bool:
        """Whether products were computed, and all of them here."""
        return self.products["here"] > 0 and not self.products["elsewhere"]


def _asked(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the kind of device that a call asks for, if any."""
    asked = [kwargs.get("device"), *(args[1:2] if name == "to" else [])]
    found = [each for each in asked if isinstance(each, torch.device | str)]
    if name == "to" and len(args) > 1 and isinstance(args[1], Tensor):
        return NAME if hasattr(args[1], MARK) else "cpu"
    return torch.device(found[0]).type if found else None


def _at_home(value: Any) -> Any:
    is_here = isinstance(value, torch.device | str) and str(value).partition(":")[0] == NAME
    return "cpu" if is_here else value


def _mark(values: Iterable[Any], *, here: bool) -> None:
    for each in values:
        if isinstance(each, Tensor):
            if here:
                setattr(each, MARK, True)
            elif hasattr(each, MARK):
                delattr(each, MARK)


@contextmanager
def pretended() -> Iterator[Accelerator]:
    """Pretend that there is an accelerator, in this thread and all that it starts."""
    found, run = Accelerator(), threading.Thread.run

    def run_there(thread: threading.Thread) -> None:
        with found:
            run(thread)

    there = patch("torch.backends.mps.is_available", lambda: True)
    with there, patch.object(threading.Thread, "run", run_there), found:
        yield found
