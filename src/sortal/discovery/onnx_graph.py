"""ONNX: a run as one graph, from the pixels of an image to its category, confidence and status, as in `predict`."""

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sortal import __version__
from sortal.discovery.grouping.outliers import FEWEST_IMAGES, Collection, apartness, collected
from sortal.errors import InputError, SortalError
from sortal.exchange.format import LeftOut, Request
from sortal.exchange.naming import last_part
from sortal.images.exported import utf8
from sortal.images.image_set import image_set
from sortal.images.store.packing import Settings, pack, select_readable
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.frozen import load_crops
from sortal.learning.views import centre_crop_batches
from sortal.runs.building import assess, unassigned
from sortal.runs.confidence import BELONGS, BELONGS_LESS, FAR, SURE, costs_of
from sortal.runs.reference import reference_of
from sortal.runs.run import KNOWN, MODEL, NEW, OTHER, UNSURE, Run
from sortal.system.distributed import alone
from sortal.system.progress import Runtime
from sortal.system.text import plural

GRAPH_STATUSES = (KNOWN, NEW, UNSURE, OTHER)  # by their numbers in the output
GRAPH_OUTPUTS = ("category_id", "confidence", "status", "features")
GRAPH_FORMAT = "sortal onnx 1"
LARGEST_GRAPH = 2**31 - 2**26  # bytes of weights and features: a file of ONNX has less than 2 GiB
MOST_DIFFERENT = 1e-3  # by which the confidence of the graph may differ from that of `predict`
CHECKED_IMAGES, CHECKED_NOISE = 12, 4  # images of the run, and of nothing, on which both are compared


class SortingGraph(nn.Module):
    """What `predict` does with images that are not in the run, in single precision."""

    def __init__(self, run: Run, backbone: Backbone) -> None:
        super().__init__()
        self.backbone, self.c = backbone, run.confidence
        self.takes_vectors = run.facts.features is not None
        reference = torch.from_numpy(np.array(reference_of(run), dtype=np.float32))
        self.has_usual = len(reference) >= FEWEST_IMAGES
        kept: dict[str, Any] = collected(reference)[0]._asdict() if self.has_usual else {}
        head = None if run.head is None else run.head.T
        kept |= {"head": head, "centres": run.centres, "ids": np.array([each.id for each in run.categories])}
        kept["new"] = np.array([each.kind == NEW for each in run.categories])
        kept |= {name: getattr(self.c, name) for name in ("usual", "deviation", "stability", "exponent")}
        kept |= {name: getattr(self.c, name) for name in ("usual_apart", "deviation_apart")}
        for name, values in kept.items():
            each = None if values is None else torch.as_tensor(values)
            self.register_buffer(name, each.float() if each is not None and each.is_floating_point() else each)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return ids of categories, confidences and numbers of statuses (n,), and features (n, d), of images.

        These are uint8 (n, size, size, 3), or vectors (n, d).
        """
        raw = self.backbone(self.backbone.normalise(images)).float()
        x = raw / torch.linalg.vector_norm(raw, dim=1, keepdim=True).clamp(min=1e-12)
        b: Any = self  # whose buffers have any type
        squared = ((x * x).sum(1, keepdim=True) - 2 * x @ b.centres.T + (b.centres * b.centres).sum(1)).clamp(min=0)
        costs = squared if b.head is None else -(x @ b.head[:-1] + b.head[-1])
        chance, row = torch.softmax(-costs / self.c.temperature, dim=1).max(1)
        distance = squared.gather(1, row[:, None])[:, 0].sqrt()
        beyond = (distance - b.usual[row]) / b.deviation[row]
        if b.exponent is not None:
            power = b.exponent[row]
            chance = torch.where(power > 1, chance.clamp(max=SURE) ** power, chance)
        if b.stability is not None:
            chance = chance * b.stability[row]
        sure = chance * torch.exp((FAR**2 - beyond.clamp(min=FAR) ** 2) / 2)
        apart = torch.zeros_like(sure)
        if collection := self.collection():
            apart = collection.compared(collection.gaps_of(x))
        if b.usual_apart is not None:
            strange = (apart - b.usual_apart[row]) / b.deviation_apart[row]
            sure = sure * torch.sigmoid(BELONGS - BELONGS_LESS * strange)
        nowhere = torch.zeros_like(sure) > 1 if self.c.other_above is None else apart > self.c.other_above
        sure = torch.where(nowhere, self.c.unsure_below * sure, sure)
        status = torch.where(sure >= self.c.unsure_below, b.new[row].long(), 2)
        return b.ids[row], sure, torch.where(nowhere, 3, status), x

    def collection(self) -> Collection | None:
        """Return what is usual among the images of the run; None if they are too few to say."""
        b: Any = self
        return Collection(b.rows, b.gap, b.centre, b.spread) if self.has_usual else None


def write(request: Request) -> LeftOut:
    """Write the graph of a run, and check it against `predict` if onnxruntime is there."""
    onnx, run = _onnx(), request.run
    backbone = load_backbone(str(run.folder / f"{MODEL}.json"))
    graph = SortingGraph(run, backbone).eval()
    size = sum(each.nbytes for each in (*graph.parameters(), *graph.buffers()))
    if size > LARGEST_GRAPH:
        raise InputError(
            f"The network and the features of the run have {size / 1e9:,.1f} GB, but a file of ONNX holds less than 2. "
            "Export the run as hub instead."
        )
    inputs = _samples(run, backbone, request.runtime)
    model = onnx.load_from_string(_exported(graph, inputs, run.facts.backbone.name))
    onnx.helper.set_model_props(model, {"sortal": json.dumps(described(run))})
    model.producer_name, model.producer_version = "sortal", __version__
    content = model.SerializeToString()
    _check(content, graph, inputs, run, request.runtime)
    request.out.write_bytes(content)
    request.runtime.progress("Exporting", len(request.rows), len(request.rows))
    return LeftOut()


def described(run: Run) -> dict[str, Any]:
    """Return what a reader of the graph needs: the categories, the statuses, and how to prepare an image."""
    spec = run.facts.backbone
    prepared = {
        "colours": "RGB",
        "shorter_side": spec.shorter_side,
        "interpolation": spec.interpolation,
        "centre_crop": spec.image_size,
    }
    return {
        "format": GRAPH_FORMAT,
        "categories": [{"id": each.id, "name": utf8(each.name), "kind": each.kind} for each in run.categories],
        "statuses": GRAPH_STATUSES,
        "preprocessing": None if run.facts.features is not None else prepared,
        "backbone": {"name": last_part(spec.name), "width": spec.width},
    }


def _onnx() -> Any:
    try:
        import onnx
        import onnx.helper
    except ImportError:
        raise InputError('The format onnx needs onnx: pip install "sortal[onnx]".') from None
    return onnx


def _exported(graph: SortingGraph, inputs: Tensor, name: str) -> bytes:
    """Return the graph in ONNX: by tracing, which takes seconds, or by torch.export, which knows more operators."""
    input_name = "vectors" if graph.takes_vectors else "images"
    names: Any = {"input_names": [input_name], "output_names": [*GRAPH_OUTPUTS]}
    axes = {each: {0: "n"} for each in (input_name, *GRAPH_OUTPUTS)}
    batch = ({0: torch.export.Dim("n", min=1)},)
    ways: list[dict[str, Any]] = [
        {"dynamo": False, "dynamic_axes": axes},
        {"dynamo": True, "dynamic_shapes": batch, "external_data": False, "verbose": False},
    ]
    problems = list[Exception]()
    for way in ways:
        with TemporaryDirectory() as folder, _silence(), torch.no_grad():
            path = f"{folder}/graph.onnx"
            try:
                torch.onnx.export(graph, (inputs[:2],), path, **names, **way)
                with open(path, "rb") as file:
                    return file.read()
            except Exception as error:  # of operators that ONNX does not have
                problems.append(error)
    why = str(problems[0]).strip().splitlines()[0].rstrip(".")
    raise InputError(f"The network {name} cannot be written as ONNX: {why}. Export the run as hub instead.")


@contextmanager
def _silence() -> Iterator[None]:
    """Discard what the exporters of torch say, of which some is printed by other than Python's means."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    # Opened first, or a copy could take the number of a stream that is closed.
    with open(os.devnull, "wb") as nothing, warnings.catch_warnings(action="ignore"):
        kept = dict[int, int]()
        for stream in (1, 2):
            with suppress(OSError):  # it is closed
                kept[stream] = os.dup(stream)
        try:
            _flush()
            for stream in kept:
                os.dup2(nothing.fileno(), stream)
            yield
        finally:
            _flush()
            for stream, copy in kept.items():
                os.dup2(copy, stream)
                os.close(copy)
            logging.disable(level)


def _flush() -> None:
    if sys.stdout is not None and not sys.stdout.closed:  # None if it was closed before Python started
        sys.stdout.flush()


def _samples(run: Run, backbone: Backbone, runtime: Runtime) -> Tensor:
    """Return some images of the run as the graph takes them, as far as there are files, and some of nothing."""
    drawn = torch.Generator().manual_seed(0)
    if run.facts.features is not None:
        return torch.randn(CHECKED_IMAGES, run.facts.backbone.width, generator=drawn)
    size = backbone.spec.image_size
    noise = torch.randint(0, 256, (CHECKED_NOISE, size, size, 3), dtype=torch.uint8, generator=drawn)
    if any(source.folder is None for source in run.facts.images) or not len(run.assignments):
        return noise
    chosen = np.zeros(len(run.assignments), dtype=bool)
    chosen[np.linspace(0, len(chosen) - 1, CHECKED_IMAGES).astype(int)] = True
    with TemporaryDirectory() as folder:
        images = run.images().select(chosen)
        store = pack(
            images, folder, settings=Settings.of(backbone.spec, run.facts.settings.max_pixels), runtime=runtime
        )
        _, store = select_readable(images, store)
        crops = centre_crop_batches(store, np.arange(len(store)), size=size, batch_size=CHECKED_IMAGES)
        found = [pixels for pixels, *_ in load_crops(store, crops, size=size, device=torch.device("cpu"))]
        return torch.cat([*found, noise])


def _check(content: bytes, graph: SortingGraph, inputs: Tensor, run: Run, runtime: Runtime) -> None:
    """Raise SortalError if what onnxruntime computes is not what `predict` does with the same pixels."""
    try:
        import onnxruntime
    except ImportError:
        runtime.note("The graph was not checked, as onnxruntime is not installed.")
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    found = dict(zip(GRAPH_OUTPUTS, session.run(None, {session.get_inputs()[0].name: inputs.numpy()}), strict=True))
    with torch.no_grad():
        x: NDArray[np.float32] = graph(inputs)[3].numpy()
    apart = apartness(x, alone("cpu"), reference=graph.collection() or reference_of(run))
    n, names = len(x), [str(number) for number in range(len(x))]
    blank = unassigned(image_set(names, paths=[""] * n, labels=[None] * n), np.array(names, dtype="S32"))
    blank.folders[:] = max(run.confidence.later_from, len(run.facts.images))
    blank.apart[:] = apart
    wanted = assess(blank, x, run.categories, run.centres, run.confidence, run.head, reassign=True)
    c, costs = run.confidence, np.sort(costs_of(x, run.centres, run.head), axis=1)
    # Where rounding may decide: between two categories, on whether an image fits any, and on whether it is unsure.
    either = (np.diff(costs[:, :2]) < MOST_DIFFERENT).any(1)
    either |= np.abs(apart - (np.inf if c.other_above is None else c.other_above)) < MOST_DIFFERENT
    doubtful = np.abs(wanted.confidence - c.unsure_below) < MOST_DIFFERENT
    differ = np.abs(found["confidence"] - wanted.confidence)
    moved = found["category_id"] != wanted.category_id
    changed = (np.array(GRAPH_STATUSES)[found["status"]] != wanted.status) & ~doubtful
    if (((differ > MOST_DIFFERENT) | moved | changed) & ~either).any():
        raise SortalError(
            f"The graph does not compute what predict does: confidences differ by up to {differ.max():.4f}, and so do "
            f"{moved.sum()} of {plural(n, 'category', 'categories')} and {changed.sum()} statuses. It was not written."
        )
