"""The training loop shared by all methods: batches, schedule, model selection, log, checkpoints."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sortal
from sortal.config import Training
from sortal.errors import InputError, SortalError
from sortal.images.image_set import ImageSet
from sortal.images.moments import Moments
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import checkpoint
from sortal.learning.batches import Draws, ImageTable, Numbering, draw, drawn, shared_groups
from sortal.learning.checkpoint import Checkpoint, TrainingState, changed_parts, content_order, copies, run_key
from sortal.learning.frozen import FrozenEncoder, KeptTokens
from sortal.learning.health import Failure, Probe, Validation
from sortal.learning.log import Log
from sortal.learning.methods.code import code_of
from sortal.learning.methods.method import Method
from sortal.learning.step import GRADIENT_NORM, TrainingStep, schedule
from sortal.learning.token_cache import Budget, InputSource, SharedTokens, TokenPlan, ViewMask
from sortal.learning.training_inputs import TrainingInputs, check_inputs, windows_of
from sortal.runs.facts import TrainingResult as TrainingResult
from sortal.runs.run import MODEL
from sortal.system.device import MIN_STEPS_TO_COMPILE, MIN_VIEWS_TO_COMPILE, choose_compute, name_of
from sortal.system.distributed import Processes, launch
from sortal.system.files import lock_folder
from sortal.system.progress import Runtime
from sortal.system.signals import defer_signals

CHECKPOINT_EVERY = 30.0  # seconds of training that a kill may cost
SETBACKS, SLOWER = 3, 0.3  # failed epochs that are repeated, and the factor of the learning rate from each on

logger = logging.getLogger(__name__)


def train(
    method: Method,
    images: ImageSet,
    store: PixelStore,
    config: Training | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    processes: Processes | None = None,
    budget: Budget | None = None,
    shared: SharedTokens | None = None,
    moments: Moments | None = None,
    checkpoint_every: float = CHECKPOINT_EVERY,
    key: dict[str, str] | None = None,
    save_model: bool = True,
    runtime: Runtime = Runtime(),
) -> TrainingResult:
    """Train a method's backbone in place on images; row i of `store` holds the pixels of image i.

    With a `folder`, log and checkpoints are written there, the same call resumes an interrupted run (after Ctrl-C at
    the very step), and unless `save_model` is false, the trained backbone is saved as model.safetensors and model.json.
    `key` is the `run_key` of the run, if it is known, as it takes a while to compute. The cost of cached tokens is
    noted before they are computed; with `shared`, they are kept for the next call. Images of one of the `moments` are
    never told apart, and drawn as often together as a single image. All processes that torchrun started train together.
    """
    config = config or Training()
    processes = processes or launch(runtime.device)
    check_inputs(method.backbone, images, store, config)
    place = None if folder is None or not processes.is_first else Path(folder)  # only the first process writes
    with lock_folder(place):
        method.to(processes.device)
        key, room = key or run_key(method, images, store, config, moments), budget or Budget()
        state = (method, images, store, config, key, processes, place, save_model, room, shared, moments)
        return Trainer(*state, checkpoint_every, runtime).train()


@dataclass(eq=False)
class Trainer:
    """A method, its training data, and the state of its training."""

    method: Method
    images: ImageSet
    store: PixelStore
    config: Training
    key: dict[str, str]
    processes: Processes
    folder: Path | None  # None in all processes but the first
    save_model: bool
    budget: Budget
    shared: SharedTokens | None
    moments: Moments | None  # of the images; None if each is its own
    checkpoint_every: float  # seconds
    runtime: Runtime

    def __post_init__(self) -> None:
        rows = content_order(self.images, self.store)  # independent of the order of files
        self.rows = rows[~self.images.validation[rows]]
        bursts = self.moments if self.moments is not None and self.moments.any_burst else None
        alike = np.unique(self.store.digests, return_inverse=True)[1] if bursts is None else bursts.of
        self.numbering = Numbering.of(alike, self.rows, self.images.labels)  # shared by copies, or images of a moment
        arrays = self.numbering.numbers, self.numbering.labels, np.array(self.images.labels)
        tensors = (torch.from_numpy(each).to(self.processes.device) for each in arrays)
        self.numbers, self.labels_of_numbers, self.labels = tensors
        self.shares = None if bursts is None else 1 / bursts.sizes[bursts.of[self.rows]]
        self.method.groups = shared_groups(self.images, self.numbering, self.numbers.device) if self.moments else None
        self.steps = max(len(self.rows) // self.config.batch_size, 1)  # per epoch
        self.method.prepare(self.labels_of_numbers)
        self.method.to(self.processes.device)
        self.inputs = TrainingInputs(
            self.method.backbone,
            self.store,
            self.rows,
            self.config,
            self.processes,
            self.folder,
            self.budget,
            self.shared,
            self.runtime,
            of_image=self.method.views,
            augmented=code_of(self.method) if self._overrides("augment") else "",
        )
        self.state = TrainingState(self.method, self.config)

    def train(self) -> TrainingResult:
        """Train from the start or from a checkpoint, and select the weights."""
        found = self._find_checkpoint()
        done = found is not None and found.progress.epoch >= self.config.epochs
        if found is not None and self.processes.is_first:
            self.runtime.note("Training is already complete." if done else f"Resuming in epoch {found.progress.epoch}.")
        if found is not None and done:
            self.state.restore(found)
        elif self.config.epochs:
            initial = copies(self.state.weights())
            try:
                self._train(found)
            except BaseException:  # put the method back, so that the same call can resume
                for name, value in self.state.weights().items():
                    value.data.copy_(initial[name])
                raise
        return self._finish()

    def _find_checkpoint(self) -> Checkpoint | None:
        """Load the checkpoint to resume from, the same in all processes; fail if it belongs to another run."""
        found = self.processes.broadcast(None if self.folder is None else checkpoint.load(self.folder))
        changed = [] if found is None else changed_parts(found.key, self.key)
        if found is None or not changed:
            return found
        if changed == ["weights"] and found.progress.epoch >= self.config.epochs and self.state.is_result_of(found):
            return found
        raise InputError(
            f"The folder must be new or hold the same run, but it holds one with different {' and '.join(changed)}. "
            "Choose another folder, or restore what that run started with."
        )

    def _train(self, found: Checkpoint | None) -> None:
        c = self.config
        plan = self.inputs.plan(c.views if found is None else found.progress.views, resumed=found is not None)
        total, n_views = c.epochs * self.steps, self.inputs.views
        through_trunk = len(self.rows) * n_views if n_views else total * self.method.views * c.batch_size
        choose = partial(choose_compute, self.processes.device, precision=c.precision, compiled=c.compile)
        many = self.method.backbone.has_trunk and through_trunk >= MIN_VIEWS_TO_COMPILE
        trunk = FrozenEncoder(self.method.backbone, choose(worthwhile=many))
        # Several processes have batches of many sizes, each of which would be compiled.
        of_steps = choose(worthwhile=total >= MIN_STEPS_TO_COMPILE and self.processes.size == 1)
        viewer, windows = trunk, windows_of(self.method.backbone, c)
        if (augment := self.method.augment if self._overrides("augment") else None) is not None or windows is not None:
            viewer = FrozenEncoder(self.method.backbone, trunk.compute, augment=augment, patterns=windows)
        source = self.inputs.make(viewer, plan)
        probe, validation = self._measures(trunk, plan)
        asked = self._overrides("start_epoch") or self.runtime.on_epoch is not None
        kept = KeptTokens(self.inputs.kept_crops(plan).room if asked else 0)
        self.table = ImageTable(self.labels_of_numbers, self.numbering.rows, self.store, trunk, kept)
        step = TrainingStep(self.processes, self.method, of_steps, self.state.optimiser, c.chunks)
        if found is not None:
            self.state.restore(found)
            step.chunks = max(step.chunks, self.state.progress.chunks)
        if not self.state.good:
            self.state.keep_good()
        p = self.state.progress
        p.views = n_views
        p.devices = list(dict.fromkeys([*p.devices, name_of(self.state.device)]))
        with closing(Log(self.folder, size=p.log_size, epoch=p.epoch)) as log:
            if not p.log_size:
                initial = {} if probe is None else probe.initial.figures()
                log.write("start", bf16=of_steps.bf16, views=n_views, initial=initial, **self._describe())
            with defer_signals(self.folder is not None and self.processes.size == 1) as stopped:
                self._loop(source, step, probe, validation, log, stopped)

    def _overrides(self, name: str) -> bool:
        return getattr(type(self.method), name) is not getattr(Method, name)

    def _measures(self, trunk: FrozenEncoder, plan: TokenPlan | None) -> tuple[Probe | None, Validation | None]:
        """Return what measures health and accuracy after each epoch; None in other processes than the first.

        The probe measures the initial features, from which a resumed run starts too.
        """
        if not self.processes.is_first:
            return None, None
        kept = self.inputs.kept_crops(plan)
        probe = Probe(trunk, self.store, self.rows, kept, self.inputs.probed_tokens(plan))
        known = np.isin(self.images.labels, self.images.labels[self.images.labelled])
        if not (known & self.images.validation).any():
            return probe, None
        return probe, Validation(trunk, self.images, self.store, KeptTokens(kept.room))

    def _describe(self) -> dict[str, Any]:
        """Return the settings, data and versions that the first record of the log states."""
        backbone, images = self.method.backbone, self.images
        return {
            "method": type(self.method).__name__,
            "backbone": backbone.spec.described(),
            "weights": backbone.source,
            "trained_blocks": backbone.trained,
            "settings": asdict(self.config),
            "images": len(images),
            "labelled": int(images.labelled.sum()),
            "unlabelled": int(images.unlabelled.sum()),
            "validation": int(images.validation.sum()),
            "device": name_of(self.state.device),
            "processes": self.processes.size,
            "versions": {"sortal": sortal.__version__, "torch": torch.__version__},
        }

    def _loop(
        self,
        source: InputSource,
        step: TrainingStep,
        probe: Probe | None,
        validation: Validation | None,
        log: Log,
        stopped: Callable[[], bool],
    ) -> None:
        """Train the remaining epochs; save every few seconds, and when a signal has `stopped` the run."""
        p, epochs = self.state.progress, self.config.epochs
        saved = monotonic()
        began = saved - p.seconds
        while p.epoch < epochs:
            started, first = perf_counter(), p.step
            if not p.step and self._overrides("start_epoch"):
                self._start_epoch()
            for sums in self._steps_of_epoch(source, step):
                p.seconds = monotonic() - began
                if self.processes.is_first:
                    self.runtime.progress("Training", p.epoch * self.steps + p.step, epochs * self.steps)
                if self._is_due(saved, stopped) and p.step < self.steps:
                    self._note_sums(sums, step)
                    self._save(log, stopped)
                    saved = monotonic()
            self._note_sums(sums, step)
            speed = (self.steps - first) * self.config.batch_size / (perf_counter() - started)
            self._end_epoch(log, validation, probe, speed)
            if self._is_due(saved, stopped) or (self.folder is not None and p.epoch == epochs):
                self._save(log, stopped)
                saved = monotonic()

    @torch.no_grad()
    def _start_epoch(self) -> None:
        if self.processes.is_first:
            self.method.start_epoch(self.state.progress.epoch, self.table)
        self.processes.broadcast_tensors(self.state.weights().values())

    def _draws(self) -> Draws:
        """Draw the images of this epoch's steps."""
        c, epoch, labels = self.config, self.state.progress.epoch, self.images.labels[self.rows]
        own = self.method.sample(
            self.numbering.numbers[self.rows],
            labels,
            steps=self.steps,
            batch_size=c.batch_size,
            seed=c.seed,
            epoch=epoch,
        )
        if own is not None:
            return drawn(self.rows, own, steps=self.steps, batch_size=c.batch_size)
        return draw(
            self.rows,
            np.asarray(labels >= 0),
            self.shares,
            batch_size=c.batch_size,
            balanced=c.balanced,
            repeats=c.repeats,
            seed=c.seed,
            epoch=epoch,
        )

    def _steps_of_epoch(self, source: InputSource, step: TrainingStep) -> Iterator[Tensor]:
        """Take the remaining steps of this epoch; after each, yield the sums over all steps of the epoch so far."""
        p, c, device = self.state.progress, self.config, self.processes.device
        draws = self._draws().since(p.step)
        rows_of_views = torch.from_numpy(np.tile(draws.rows, self.method.views)).to(device)
        chosen = None if self.processes.size == 1 else source.chosen(draws)
        exact = torch.float32 if device.type == "mps" else torch.float64  # which mps does not have
        sums = torch.tensor([*p.sums.values()] or [0.0], dtype=exact, device=device)
        progress = torch.tensor(p.epoch / c.epochs, device=device)
        streams = (
            source.stream(draws, p.epoch, chosen),
            rows_of_views,
            _places(chosen, len(draws.rows), self.method.views),
        )
        for inputs, rows, places in zip(*streams, strict=True):
            step.optimiser.set_lr(self._lr((p.step + 1) / self.steps))
            sums = sums + step(inputs, self.numbers[rows], self.labels[rows], progress, places)
            p.step += 1
            yield sums

    def _lr(self, done: float) -> float:
        """Return the learning rate of a step, after which this fraction of the epoch is done."""
        p = self.state.progress
        return schedule(self.config, p.epoch, done) * SLOWER ** len(p.setbacks)

    def _note_sums(self, sums: Tensor, step: TrainingStep) -> None:
        """Store the sums of the epoch in the progress; this waits for the device."""
        p = self.state.progress
        p.sums, p.chunks = dict(zip(step.names, sums.tolist(), strict=True)), step.chunks

    def _is_due(self, saved: float, stopped: Callable[[], bool]) -> bool:
        """Tell whether it is time for a checkpoint, given when the last one was saved."""
        return self.folder is not None and (stopped() or monotonic() - saved >= self.checkpoint_every)

    def _save(self, log: Log, stopped: Callable[[], bool]) -> None:
        """Write a checkpoint, and raise KeyboardInterrupt if a signal has stopped the run."""
        assert self.folder is not None
        log.sync()
        self.state.progress.log_size = log.size
        checkpoint.save(self.state.checkpoint(self.key), self.folder)
        if stopped():
            raise KeyboardInterrupt

    def _end_epoch(self, log: Log, validation: Validation | None, probe: Probe | None, speed: float) -> None:
        """Log the epoch; validate it and remember the best weights, or go back to its start if it failed."""
        p, config = self.state.progress, self.config
        means = {name: value / self.steps for name, value in p.sums.items()}
        losses = {name: value for name, value in means.items() if name != GRADIENT_NORM}
        measured: dict[str, float] = {}
        failure: Failure | None = None
        if probe is not None:
            health = probe.measure()
            measured, failure = health.figures(), probe.failure(means.values(), health)
        failure = self.processes.broadcast(failure)
        due = (p.epoch + 1) % config.validate_every == 0 or p.epoch + 1 == config.epochs
        if validation is not None and due and failure is None:
            measured["validation_accuracy"] = validation.accuracy()
            self.state.keep_best(measured["validation_accuracy"])
        lr, loss = self._lr(1.0), sum(losses.values())
        figures = {"lr": lr, "loss": loss, **means, "images_per_second": speed, **measured}
        log.write("epoch", epoch=p.epoch, **figures)
        if self.runtime.on_epoch is not None and self.processes.is_first:
            self.runtime.on_epoch(p.epoch, self.table, figures)
        p.step, p.sums = 0, {}
        if failure is not None:
            self._go_back(failure, log)
        else:
            p.last, p.epoch = losses, p.epoch + 1
            self.state.keep_good()

    def _go_back(self, failure: Failure, log: Log) -> None:
        """Restore the start of a failed epoch, with a lower learning rate."""
        p = self.state.progress
        what, lr = f"Training {failure} in epoch {p.epoch}", self.config.lr * SLOWER ** len(p.setbacks)
        if len(p.setbacks) == SETBACKS:
            raise SortalError(
                f"{what} even at a learning rate of {lr:.3g}, after {SETBACKS} setbacks. "
                "Use a lower lr, or other weights."
            )
        lr *= SLOWER
        p.setbacks.append(f"{what}; going back to its start with a learning rate of {lr:.3g}.")
        log.write("setback", epoch=p.epoch, reason=failure, lr=lr)
        self.state.go_back()
        if self.processes.is_first:
            self.runtime.note(p.setbacks[-1])

    def _finish(self) -> TrainingResult:
        """Load the selected weights in all processes, and save them."""
        p = self.processes.broadcast(self.state.progress)
        self.state.select_best()
        self.processes.broadcast_tensors(self.state.weights().values())
        if self.folder is not None:
            if self.save_model:
                self.method.backbone.save(self.folder / MODEL)
            self.inputs.close()
        self.processes.barrier()  # until the model is saved
        return p.result(self.steps * self.config.batch_size)


def _places(chosen: ViewMask | None, steps: int, views: int) -> Iterable[Tensor | None]:
    """Return the places of a process's views in each step's batch; `chosen` (steps, images) masks its images."""
    if chosen is None:
        return [None] * steps
    return [torch.from_numpy(np.flatnonzero(np.tile(images, views))) for images in chosen]
