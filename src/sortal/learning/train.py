"""The training loop shared by all methods: batches, schedule, model selection, log, checkpoints."""

import logging
import os
from collections.abc import Callable, Iterable
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
from sortal.config import AUTO, Training
from sortal.errors import InputError, SortalError
from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import checkpoint, views
from sortal.learning.batches import Draws, draw
from sortal.learning.checkpoint import Checkpoint, TrainingProgress, changed_parts, content_order, run_key
from sortal.learning.frozen import CentreCrops, FrozenEncoder
from sortal.learning.health import IMAGES, Failure, Probe, evenly_spaced
from sortal.learning.log import Log
from sortal.learning.methods.method import Method
from sortal.learning.step import GRADIENT_NORM, Optimiser, TrainingStep, optimiser_of, schedule
from sortal.learning.token_cache import Budget, InputSource, Mask, SharedTokens, TokenPlan
from sortal.learning.training_inputs import TrainingInputs
from sortal.learning.validation import Validation
from sortal.runs.facts import TrainingResult as TrainingResult
from sortal.runs.run import MODEL
from sortal.system.device import MIN_STEPS_TO_COMPILE, MIN_VIEWS_TO_COMPILE, choose_compute, name_of
from sortal.system.distributed import Processes, launch
from sortal.system.files import lock_folder
from sortal.system.progress import Runtime
from sortal.system.signals import defer_signals
from sortal.system.text import plural

CHECKPOINT_EVERY = 30.0  # seconds of training that a kill may cost
GOOD = "good."  # prefix of the tensors in a checkpoint to which a failed epoch goes back
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
    checkpoint_every: float = CHECKPOINT_EVERY,
    runtime: Runtime = Runtime(),
) -> TrainingResult:
    """Train a method's backbone in place on images; row i of `store` holds the pixels of image i.

    With a `folder`, log and checkpoints are written there, the same call resumes an interrupted run (after Ctrl-C at
    the very step), and the trained backbone is saved as model.safetensors and model.json. The cost of cached tokens is
    noted before they are computed; with `shared`, they are kept for the next call. All processes that torchrun started
    train together.
    """
    config = config or Training()
    processes = processes or launch(runtime.device)
    _check(method, images, store, config)
    place = None if folder is None or not processes.is_first else Path(folder)  # only the first process writes
    with lock_folder(place):
        method.to(processes.device)
        room = budget or Budget()
        trainer = Trainer(method, images, store, config, processes, place, room, shared, checkpoint_every, runtime)
        return trainer.train()


@dataclass(eq=False)
class Trainer:
    """A method, its training data, and the state of its training."""

    method: Method
    images: ImageSet
    store: PixelStore
    config: Training
    processes: Processes
    folder: Path | None  # None in all processes but the first
    budget: Budget
    shared: SharedTokens | None
    checkpoint_every: float  # seconds
    runtime: Runtime

    def __post_init__(self) -> None:
        rows = content_order(self.images, self.store)  # independent of the order of files
        self.rows = rows[~self.images.validation[rows]]
        _, contents = np.unique(self.store.digests, return_inverse=True)
        self.contents = torch.from_numpy(contents).to(self.processes.device)  # copies of an image share a number
        self.labels = torch.from_numpy(np.array(self.images.labels)).to(self.processes.device)
        self.steps = max(len(self.rows) // self.config.batch_size, 1)  # per epoch
        self.key = run_key(self.method, self.images, self.store, self.config)
        self.inputs = TrainingInputs(
            self.method.backbone,
            self.store,
            self.rows,
            self.key["images"],
            self.config,
            self.processes,
            self.folder,
            self.budget,
            self.shared,
            self.runtime,
        )
        self.progress = TrainingProgress(chunks=self.config.chunks)
        self.best: dict[str, Tensor] = {}
        self.good: dict[str, Tensor] = {}  # weights, buffers and momentum at the start of the epoch

    def train(self) -> TrainingResult:
        """Train from the start or from a checkpoint, and select the weights."""
        found = self._find_checkpoint()
        done = found is not None and found.progress.epoch >= self.config.epochs
        if found is not None and self.processes.is_first:
            self.runtime.note("Training is already complete." if done else f"Resuming in epoch {found.progress.epoch}.")
        if found is not None and done:
            self._restore(found, None)
        elif self.config.epochs:
            initial = {name: value.detach().clone() for name, value in self._state().items()}
            try:
                self._train(found)
            except BaseException:  # put the method back, so that the same call can resume
                for name, value in self._state().items():
                    value.data.copy_(initial[name])
                raise
        return self._finish()

    def _train(self, found: Checkpoint | None) -> None:
        plan = self.inputs.plan(self.config.views if found is None else found.progress.views, resumed=found is not None)
        self.progress.views = self.inputs.views
        total, n_views = self.config.epochs * self.steps, self.progress.views
        through_trunk = len(self.rows) * n_views if n_views else total * 2 * self.config.batch_size
        c = self.config
        choose = partial(choose_compute, self.processes.device, precision=c.precision, compiled=c.compile)
        many = self.method.backbone.has_trunk and through_trunk >= MIN_VIEWS_TO_COMPILE
        trunk = FrozenEncoder(self.method.backbone, choose(worthwhile=many))
        # Several processes have batches of many sizes, each of which would be compiled.
        of_steps = choose(worthwhile=total >= MIN_STEPS_TO_COMPILE and self.processes.size == 1)
        source = self.inputs.make(trunk, plan)
        validation, probe = self._validation(trunk, plan), self._probe(trunk, plan)
        optimiser = optimiser_of(c, self._trainable())
        step = TrainingStep(self.processes, self.method, of_steps, optimiser, c.chunks)
        if found is not None:
            self._restore(found, optimiser)
            step.chunks = max(step.chunks, self.progress.chunks)
        self.good = self.good or self._copies(optimiser)
        with closing(Log(self.folder, size=self.progress.log_size, epoch=self.progress.epoch)) as log:
            if not self.progress.log_size:
                initial = {} if probe is None else probe.initial.figures()
                log.write("start", bf16=of_steps.bf16, views=n_views, initial=initial, **self._describe())
            with defer_signals(self.folder is not None and self.processes.size == 1) as stopped:
                self._loop(source, validation, probe, step, log, stopped)

    def _describe(self) -> dict[str, Any]:
        """Return the settings, data and versions that the first record of the log states."""
        backbone, images = self.method.backbone, self.images
        return {
            "method": type(self.method).__name__,
            "backbone": asdict(backbone.spec),
            "weights": backbone.source,
            "trained_blocks": backbone.trained,
            "settings": asdict(self.config),
            "images": len(images),
            "labelled": int(images.labelled.sum()),
            "unlabelled": int(images.unlabelled.sum()),
            "validation": int(images.validation.sum()),
            "device": name_of(self._device),
            "processes": self.processes.size,
            "versions": {"sortal": sortal.__version__, "torch": torch.__version__},
        }

    def _validation(self, trunk: FrozenEncoder, plan: TokenPlan | None) -> Validation | None:
        known = np.isin(self.images.labels, self.images.labels[self.images.labelled])
        if not (known & self.images.validation).any() or not self.processes.is_first:
            return None
        measured = int((self.images.labels >= 0).sum()) + IMAGES
        return Validation(trunk, self.images, self.store, keep=self.inputs.leaves_room(trunk, plan, measured))

    def _probe(self, trunk: FrozenEncoder, plan: TokenPlan | None) -> Probe | None:
        """Measure the initial features, from which a resumed run starts too; only in the first process."""
        if not self.processes.is_first:
            return None
        keep = self.inputs.leaves_room(trunk, plan, IMAGES)
        cached = None if self.shared is None or plan is None else self.shared.centre
        return Probe(CentreCrops(trunk, self.store, evenly_spaced(self.rows), keep=keep, cached=cached))

    # The loop

    def _loop(
        self,
        source: InputSource,
        validation: Validation | None,
        probe: Probe | None,
        step: TrainingStep,
        log: Log,
        stopped: Callable[[], bool],
    ) -> None:
        """Train all epochs that are left; save every few seconds, and once a signal has `stopped` it."""
        p, config, every = self.progress, self.config, self.checkpoint_every
        p.devices = list(dict.fromkeys([*p.devices, name_of(self._device)]))
        saved = monotonic()
        began = saved - p.seconds
        while p.epoch < config.epochs:
            draws = self._draws(p.epoch, start=p.step)
            rows_of_views = torch.from_numpy(np.concatenate([draws.rows, draws.rows], axis=1)).to(self.processes.device)
            chosen = None if self.processes.size == 1 else source.chosen(draws)
            exact = torch.float32 if self.processes.device.type == "mps" else torch.float64  # which mps does not have
            sums = torch.tensor([*p.sums.values()] or [0.0], dtype=exact, device=self.processes.device)
            progress = torch.tensor(p.epoch / config.epochs, device=self.processes.device)
            started = perf_counter()
            streams = source.stream(draws, p.epoch, chosen), rows_of_views, _places(chosen, len(draws.rows))
            for inputs, rows, places in zip(*streams, strict=True):
                step.optimiser.set_lr(self._lr((p.step + 1) / self.steps))
                sums = sums + step(inputs, self.contents[rows], self.labels[rows], progress, places)
                p.step += 1
                if self.processes.is_first:
                    self.runtime.progress("Training", p.epoch * self.steps + p.step, config.epochs * self.steps)
                if self.folder is not None and p.step < self.steps and (stopped() or monotonic() - saved >= every):
                    self._update_progress(sums, step, monotonic() - began)
                    self._save(log, step.optimiser, stopped)
                    saved = monotonic()
            self._update_progress(sums, step, monotonic() - began)
            speed = len(draws.rows) * config.batch_size / (perf_counter() - started)
            self._end_epoch(log, validation, probe, step.optimiser, speed)
            if self.folder is not None and (stopped() or monotonic() - saved >= every or p.epoch == config.epochs):
                self._save(log, step.optimiser, stopped)
                saved = monotonic()

    def _draws(self, epoch: int, start: int) -> Draws:
        """Draw the batches of an epoch, from step `start` on, alike in all processes."""
        c, labelled = self.config, np.asarray(self.images.labels[self.rows] >= 0)
        draws = draw(self.rows, labelled, batch_size=c.batch_size, balanced=c.balanced, seed=c.seed, epoch=epoch)
        return Draws(draws.rows[start:], draws.times[start:])

    def _update_progress(self, sums: Tensor, step: TrainingStep, seconds: float) -> None:
        p = self.progress
        p.sums = dict(zip(step.names, sums.tolist(), strict=True))
        p.chunks, p.seconds = step.chunks, seconds

    def _lr(self, done: float) -> float:
        """Return the learning rate of a step, after which this fraction of the epoch is done."""
        return schedule(self.config, self.progress.epoch, done) * SLOWER ** len(self.progress.setbacks)

    def _end_epoch(
        self, log: Log, validation: Validation | None, probe: Probe | None, optimiser: Optimiser, speed: float
    ) -> None:
        """Log the epoch; validate it and remember the best weights, or go back to its start if it failed."""
        p, config = self.progress, self.config
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
            accuracy = validation.accuracy()
            measured["validation_accuracy"] = accuracy
            if p.best is None or accuracy >= p.best:  # of equals the later, trained for longer
                p.best, p.best_epoch = accuracy, p.epoch
                self.best = {name: value.detach().clone() for name, value in self._state().items()}
        lr, loss = self._lr(1.0), sum(losses.values())
        log.write("epoch", epoch=p.epoch, lr=lr, loss=loss, **means, images_per_second=speed, **measured)
        p.step, p.sums = 0, {}
        if failure is not None:
            self._go_back(failure, optimiser, log)
        else:
            p.last, p.epoch, self.good = losses, p.epoch + 1, self._copies(optimiser)

    def _go_back(self, failure: Failure, optimiser: Optimiser, log: Log) -> None:
        """Restore the start of a failed epoch, in place as CUDA graphs hold the tensors, with a lower learning rate."""
        p, what = self.progress, f"Training {failure} in epoch {self.progress.epoch}"
        lr = self.config.lr * SLOWER ** len(p.setbacks)
        if len(p.setbacks) == SETBACKS:
            raise SortalError(
                f"{what} even at a learning rate of {lr:.3g}, after {SETBACKS} setbacks. "
                "Use a lower lr, or other weights."
            )
        lr *= SLOWER
        p.setbacks.append(f"{what}; going back to its start with a learning rate of {lr:.3g}.")
        log.write("setback", epoch=p.epoch, reason=failure, lr=lr)
        for name, value in self._tensors(optimiser).items():
            if name in self.good:
                value.data.copy_(self.good[name])
            else:  # momentum, before the first step
                value.zero_()
        if self.processes.is_first:
            self.runtime.note(p.setbacks[-1])

    def _finish(self) -> TrainingResult:
        """Load the selected weights in all processes, and save them."""
        p = self.progress = self.processes.broadcast(self.progress)
        for name, value in self._state().items():
            if name in self.best:
                value.data.copy_(self.best[name])
        self.processes.broadcast_tensors(self._state().values())
        if self.folder is not None:
            self.method.backbone.save(self.folder / MODEL)
            self.inputs.close()
        self.processes.barrier()  # until the model is saved
        selected = p.epoch - 1 if p.best_epoch is None else p.best_epoch
        return TrainingResult(
            epochs=p.epoch,
            selected=selected if p.epoch else None,
            validation=p.best,
            losses=p.last,
            views=p.views,
            seconds=p.seconds,
            images_per_second=p.epoch * self.steps * self.config.batch_size / max(p.seconds, 1e-9),
            devices=tuple(p.devices),
            setbacks=tuple(p.setbacks),
        )

    # The state

    @property
    def _device(self) -> torch.device:
        """Where the trained weights really are, whatever was asked for."""
        return next(iter(self._trainable().values())).device

    def _trainable(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.method.named_parameters() if value.requires_grad}

    def _state(self) -> dict[str, Tensor]:
        """Return all tensors that training changes: trainable weights and the method's own buffers."""
        buffers = {name: value for name, value in self.method.named_buffers() if not name.startswith("backbone.")}
        return {**self._trainable(), **buffers}

    def _tensors(self, optimiser: Optimiser) -> dict[str, Tensor]:
        """Return the state and the momentum, by the names they have in a checkpoint."""
        named = {"weight": self._state(), "momentum": optimiser.buffers}
        return {f"{kind}.{name}": value for kind, values in named.items() for name, value in values.items()}

    def _copies(self, optimiser: Optimiser) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._tensors(optimiser).items()}

    def _find_checkpoint(self) -> Checkpoint | None:
        """Load the checkpoint to resume from, the same in all processes; fail if it belongs to another run."""
        found = self.processes.broadcast(None if self.folder is None else checkpoint.load(self.folder))
        changed = [] if found is None else changed_parts(found.key, self.key)
        if found is None or not changed or (changed == ["weights"] and self._is_result(found)):
            return found
        raise InputError(
            f"The folder must be new or hold the same run, but it holds one with different {' and '.join(changed)}. "
            "Choose another folder, or restore what that run started with."
        )

    def _is_result(self, found: Checkpoint) -> bool:
        """Tell whether the method already has the weights that a finished run selected."""
        kind = "weight" if found.progress.best is None else "best"
        return found.progress.epoch >= self.config.epochs and all(
            torch.equal(value.cpu(), found.tensors[f"{kind}.{name}"]) for name, value in self._state().items()
        )

    def _restore(self, found: Checkpoint, optimiser: Optimiser | None) -> None:
        self.progress = found.progress
        good = {name: value for name, value in found.tensors.items() if name.startswith(GOOD)}
        self.good = {name.removeprefix(GOOD): value.to(self.processes.device) for name, value in good.items()}
        for name, value in self._state().items():
            value.data.copy_(found.tensors[f"weight.{name}"])
            if optimiser is not None and f"momentum.{name}" in found.tensors:
                optimiser.buffers[name] = found.tensors[f"momentum.{name}"].to(value.device)
            if f"best.{name}" in found.tensors:
                self.best[name] = found.tensors[f"best.{name}"].to(value.device)

    def _save(self, log: Log, optimiser: Optimiser, stopped: Callable[[], bool]) -> None:
        """Write a checkpoint, and raise KeyboardInterrupt if a signal has stopped the run."""
        assert self.folder is not None
        log.sync()
        self.progress.log_size = log.size
        tensors = {**self._tensors(optimiser), **{f"best.{name}": value for name, value in self.best.items()}}
        if self.progress.step:  # otherwise they are the same
            tensors |= {f"{GOOD}{name}": value for name, value in self.good.items()}
        checkpoint.save(Checkpoint(self.key, self.progress, tensors), self.folder)
        if stopped():
            raise KeyboardInterrupt


def _places(chosen: Mask | None, steps: int) -> Iterable[Tensor | None]:
    """Return where the views of a process are among those of each step; `chosen` (steps, images) masks its images."""
    if chosen is None:
        return [None] * steps
    return [torch.from_numpy(np.flatnonzero(np.tile(images, 2))) for images in chosen]


def _check(method: Method, images: ImageSet, store: PixelStore, config: Training) -> None:
    if len(images) != len(store):
        raise InputError(
            f"store must have one row per image, got {plural(len(store), 'row')} for {plural(len(images), 'image')}."
        )
    if images.validation.all():
        raise InputError("images must include training images, but all of them are for validation.")
    views.check_present(store)
    views.check_size(store, method.backbone.spec.image_size, method.backbone.spec.shorter_side)
    if not any(value.requires_grad for value in method.backbone.parameters()):
        raise InputError("The backbone must have blocks to train, but it is frozen. Use backbone.train_last(1).")
    if config.views not in (None, AUTO) and not method.backbone.has_trunk:
        raise InputError(
            f"views must be None or 'auto' for a backbone without frozen blocks, whose tokens could be cached, "
            f"got {config.views}."
        )
