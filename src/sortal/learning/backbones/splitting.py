"""Any network in two: what it computes before one of its modules, and the rest, from a trace of its forward pass."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import torch.fx
from torch import Tensor, nn

Half = Callable[[nn.Module, Tensor], Tensor]  # of a network, and its input or what enters the module


class CannotSplitError(Exception):
    """A network that cannot be cut at a module."""


def stages_of(net: nn.Module) -> list[str]:
    """Return the names of the consecutive parts of a network, of which the last can be trained alone; maybe none.

    Those are the stages that timm states, with what lies between them, or else the parts of the largest sequence.
    """
    modules = dict(net.named_modules())
    for place, module in modules.items():
        info = getattr(module, "feature_info", None)
        stated = [each["module"] for each in (info if isinstance(info, list) else getattr(info, "info", []))]
        found = [name for name in (f"{place}.{each}".strip(".") for each in stated) if _weighs(modules.get(name))]
        if found:
            parent = found[-1].rpartition(".")[0]
            if isinstance(modules[parent], nn.Sequential | nn.ModuleList):
                parts = _parts(modules[parent], parent)
                return parts[: parts.index(found[-1]) + 1]
            return [name for name in found if name.rpartition(".")[0] == parent]
    sequences = [
        (name, module)
        for name, module in modules.items()
        if isinstance(module, nn.Sequential | nn.ModuleList) and len(_parts(module, name)) > 1
    ]
    if not sequences:
        return []
    name, largest = max(sequences, key=lambda each: _weighs(each[1]))  # the outermost of equals
    return _parts(largest, name)


def split_before(net: nn.Module, name: str) -> tuple[Half, Half]:
    """Return the two halves of a network, which is cut before the module of this name; they share its weights.

    Raise CannotSplitError if the network cannot be traced, or if the second half needs more than enters that module.
    """
    try:
        graph = _Tracer(name).trace(net, concrete_args=_defaults(net))
        calls = [node for node in graph.nodes if node.op == "call_module" and node.target == name]
        cut = calls[0] if len(calls) == 1 else None
        if cut is None or not cut.args or not isinstance(cut.args[0], torch.fx.Node):
            raise CannotSplitError(f"{name} is not called once, with a tensor")
        return _function(net, _first_half(graph, cut.args[0])), _function(net, _second_half(graph, cut.args[0]))
    except CannotSplitError:
        raise
    except Exception as error:  # any code can be in a forward pass
        raise CannotSplitError(str(error)) from error


class _Tracer(torch.fx.Tracer):
    """Follow calls only into the modules that contain the one to cut at."""

    def __init__(self, name: str) -> None:
        from timm.models import _features_fx

        whole: Any = _features_fx  # functions that cannot be followed
        super().__init__(autowrap_functions=tuple(whole.get_notrace_functions()))
        self.inner = name

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not self.inner.startswith(f"{module_qualified_name}.")


def _first_half(graph: torch.fx.Graph, end: torch.fx.Node) -> torch.fx.Graph:
    half, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    needed = _ancestors(end)
    for node in graph.nodes:
        if node in needed or node.op == "placeholder":
            copies[node] = half.node_copy(node, copies.__getitem__)
    half.output(copies[end])
    return half


def _second_half(graph: torch.fx.Graph, start: torch.fx.Node) -> torch.fx.Graph:
    half = torch.fx.Graph()
    copies = {start: half.placeholder("inputs")}
    needed = _ancestors(next(node for node in graph.nodes if node.op == "output"), before=start)
    for node in graph.nodes:
        if node in needed and node is not start:
            if node.op == "placeholder":
                raise CannotSplitError("something of the image bypasses the cut")
            if node.op == "output":
                result = node.args[0]
                if not isinstance(result, torch.fx.Node):
                    raise CannotSplitError("there are several outputs")
                half.output(copies[result])
                break
            copies[node] = half.node_copy(node, copies.__getitem__)
    return half


def _ancestors(node: torch.fx.Node, before: torch.fx.Node | None = None) -> set[torch.fx.Node]:
    """Return a node and all that it is computed from, up to and including the node `before`."""
    found, waiting = set[torch.fx.Node](), [node]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += [] if each is before else each.all_input_nodes
    return found


def _function(net: nn.Module, graph: torch.fx.Graph) -> Half:
    """Return the code of a graph as a function of a network and its input."""
    if any(node.op == "get_attr" and str(node.target).startswith("_tensor_constant") for node in graph.nodes):
        raise CannotSplitError("it makes tensors that would stay on one device")
    made: Any = type(torch.fx.GraphModule(net, graph))
    return made.forward


def _defaults(net: nn.Module) -> dict[str, Any]:
    """Return the default values of what a forward pass takes beside images."""
    _, *others = signature(net.forward).parameters.values()
    return {each.name: each.default for each in others if each.default is not Parameter.empty}


def _parts(module: nn.Module, name: str) -> list[str]:
    return [f"{name}.{own}".strip(".") for own, child in module.named_children() if _weighs(child)]


def _weighs(module: nn.Module | None) -> int:
    return 0 if module is None else sum(weight.numel() for weight in module.parameters())
