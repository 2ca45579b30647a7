"""The one training loop, for every method: batches, schedule, selection, log, checkpoints."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor

import sortal
from sortal import checkpoint, compute, tokens, views, workers
from sortal.batches import Draws, draw
from sortal.checkpoint import Checkpoint, Progress
from sortal.compute import STEPS_THAT_PAY, VIEWS_THAT_PAY
from sortal.config import AUTO, Training
from sortal.errors import InputError, SortalError
from sortal.identity import by_content, differing, key_of
from sortal.images import ImageSet
from sortal.interrupt import deferred
from sortal.journal import Journal
from sortal.lock import alone
from sortal.methods.method import Method
from sortal.processes import launch, shards
from sortal.run import MODEL
from sortal.selection import Validation
from sortal.step import Step
from sortal.store import PixelStore
from sortal.tokens import Budget, Live, Plan, Source
from sortal.trunk import Frozen

VIEWS = 8  # what views="auto" takes where it fits
CHECKPOINT_EVERY = 30.0  # seconds: what a kill can cost

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of a run: the backbone is trained in place."""

    epochs: int
    selected: int | None  # the epoch whose weights were kept; None without training
    validation: float | None  # its accuracy on the validation images
    losses: dict[str, float]  # means over the last epoch
    views: int | None  # cached views of an image; None for new views in every epoch
    seconds: float
    images_per_second: float


def train(
    method: Method,
    images: ImageSet,
    store: PixelStore,
    config: Training | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    device: str = AUTO,
    fabric: Fabric | None = None,
    budget: Budget | None = None,
    checkpoint_every: float = CHECKPOINT_EVERY,
    on_progress: workers.Progress = lambda *_: None,
    on_note: Callable[[str], None] = logger.info,
) -> Trained:
    """Train a method's backbone on images, of which `store` holds the pixels, row by row.

    With a `folder`, the run is logged and checkpointed there, a killed run goes on by the same call (after Ctrl-C from
    that very step), and the trained backbone is saved as model.safetensors and model.json. `on_progress` is told what
    is being done, how much is done, and of how much; `on_note` what tokens will cost, before they are computed. Started
    by torchrun, all its processes train together.
    """
    config = config or Training()
    fabric = fabric or launch(device)
    _check(method, images, store, config, fabric)
    place = None if folder is None else Path(folder)
    with alone(place if fabric.global_rank == 0 else None):
        run = _Run(method, images, store, config, fabric, place)
        run.on_progress, run.on_note = on_progress, on_note
        return run.train(budget or Budget(), checkpoint_every)


def schedule(config: Training, epoch: int) -> float:
    """The learning rate of an epoch: after the warm-up a cosine from lr to final_lr · lr, or one step there."""
    end, epochs = config.lr * config.final_lr, max(config.epochs, 1)
    before = config.warmup * epochs
    if epoch < before:
        return end + (config.lr - end) * epoch / before
    if config.schedule == "step":
        return config.lr if epoch / epochs < config.drop_at else end  # 0.55 · 100 is more than 55
    return end + (config.lr - end) * (1 + math.cos(math.pi * (epoch - before) / (epochs - before))) / 2


class _Run:
    """A method, its data, and how far it is trained."""

    on_progress: workers.Progress
    on_note: Callable[[str], None]

    def __init__(
        self, method: Method, images: ImageSet, store: PixelStore, config: Training, fabric: Fabric, folder: Path | None
    ) -> None:
        self.method = method.to(fabric.device)
        self.images = images
        self.store = store
        self.config = config
        self.fabric = fabric
        self.is_first = fabric.global_rank == 0
        self.folder = folder if self.is_first else None  # one process writes
        if self.folder is not None:
            for torn in self.folder.glob("*.tmp"):  # what a killed run was writing
                torn.unlink()
        rows = by_content(images, store)  # the order of files is nothing
        self.rows = rows[~images.validation[rows]]
        _, contents = np.unique(store.digests, return_inverse=True)
        self.contents = torch.from_numpy(contents).to(fabric.device)  # one image twice is one image
        self.labels = torch.from_numpy(np.array(images.labels)).to(fabric.device)
        self.steps = max(len(self.rows) // config.batch_size, 1)  # of an epoch
        self.n_views: int | None = None
        self.key = key_of(method, images, store, config)
        self.progress = Progress(chunks=config.chunks)
        self.best: dict[str, Tensor] = {}

    def train(self, budget: Budget, every: float) -> Trained:
        found = self._found()
        if found is not None and self.is_first:
            done = found.progress.epoch >= self.config.epochs
            self.on_note("Training was done before." if done else f"Going on in epoch {found.progress.epoch}.")
        if found is not None and found.progress.epoch >= self.config.epochs:
            self._take(found, None)
        elif self.config.epochs:
            initial = {name: value.detach().clone() for name, value in self._state().items()}
            try:
                self._learn(found, budget, every)
            except BaseException:  # the same call again shall find the method as it was, and go on
                for name, value in self._state().items():
                    value.data.copy_(initial[name])
                raise
        return self._finish()

    def _learn(self, found: Checkpoint | None, budget: Budget, every: float) -> None:
        plan = self._plan(budget, found)
        total = self.config.epochs * self.steps
        through_trunk = len(self.rows) * self.n_views if self.n_views else total * 2 * self.config.batch_size
        options: Any = {"precision": self.config.precision, "compiled": self.config.compile}
        of_trunk = compute.choose(self.fabric.device, **options, pays=through_trunk >= VIEWS_THAT_PAY)
        of_steps = compute.choose(self.fabric.device, **options, pays=total >= STEPS_THAT_PAY)
        trunk = Frozen(self.method.backbone, of_trunk)
        validation = self._validation(trunk, plan, budget)
        source = self._source(trunk, plan)
        optimizer = self._optimizer()
        step = Step(self.fabric, self.method, of_steps, optimizer, self.config.chunks)
        if found is not None:
            self._take(found, optimizer)
            step.chunks = max(step.chunks, self.progress.chunks)
        journal = Journal(self.folder, size=self.progress.log_size, epoch=self.progress.epoch)
        try:
            if not self.progress.log_size:
                journal.write("start", bf16=of_steps.bf16, **self._about())
            with deferred(self.folder is not None and self.fabric.world_size == 1) as stopped:
                self._loop(source, validation, step, optimizer, journal, every, stopped)
        finally:
            journal.close()

    # The data

    def _plan(self, budget: Budget, found: Checkpoint | None) -> Plan | None:
        """Where cached tokens go, if they are wanted and fit; what they cost is said before they are computed.

        A run that goes on has the views it began with, whatever fits now.
        """
        wanted, backbone = self.config.views if found is None else found.progress.views, self.method.backbone
        if wanted is None or (wanted == AUTO and not backbone.has_trunk):
            return None
        n_views = VIEWS if isinstance(wanted, str) else wanted
        needed = len(self.rows) * n_views * 2 * math.prod(tokens.token_shape(backbone))
        folder = self.folder if self.fabric.world_size == 1 else None  # a file of tokens is for one process
        plan = tokens.plan(needed, budget, self.fabric.device, folder)
        if any(other.where is None for other in shards(self.fabric).objects(plan)):
            plan = Plan(needed, None)
        if plan.where is None and found is not None:
            raise InputError(
                f"The run in this folder began with {n_views} views of an image kept, {plan.bytes:,} bytes of tokens, "
                "which do not fit the budget now. Raise it, or choose another folder."
            )
        if self.is_first:
            self.on_note(f"{n_views} views of {len(self.rows):,} images: {plan}.")
        if plan.where is None:
            logger.warning("Slower than it could be: %s.", plan)
            return None
        self.n_views = n_views
        return plan

    def _source(self, trunk: Frozen, plan: Plan | None) -> Source:
        flip, seed = self.config.flip, self.config.seed
        if plan is None or plan.where is None or self.n_views is None:
            return Live(trunk, self.store, flip=flip, seed=seed)
        return tokens.cache(
            trunk,
            self.store,
            self.rows,
            n_views=self.n_views,
            flip=flip,
            seed=seed,
            where=plan.where,
            folder=self.folder,
            key=json.dumps(self.key),
            shards=shards(self.fabric),
            on_progress=self.on_progress,
        )

    def _validation(self, trunk: Frozen, plan: Plan | None, budget: Budget) -> Validation | None:
        known = np.isin(self.images.labels, self.images.labels[self.images.labelled])
        if not (known & self.images.validation).any() or not self.is_first:
            return None
        width = 2 if trunk.compute.bf16 else 4  # as they are: rounding must not decide which epoch is the best
        size = int((self.images.labels >= 0).sum()) * width * math.prod(tokens.token_shape(trunk.backbone))
        taken = plan.bytes if plan is not None and plan.where != "file" else 0
        keep = trunk.backbone.has_trunk and size + taken <= tokens.room_for(budget, self.fabric.device)
        return Validation(trunk, self.images, self.store, keep=keep)

    # The loop

    def _loop(
        self,
        source: Source,
        validation: Validation | None,
        step: Step,
        optimizer: torch.optim.Optimizer,
        journal: Journal,
        every: float,
        stopped: Callable[[], bool],
    ) -> None:
        p, config = self.progress, self.config
        began = saved = monotonic()
        before = p.seconds
        while p.epoch < config.epochs:
            _set_lr(optimizer, schedule(config, p.epoch))
            draws = self._draws(p.epoch, start=p.step)
            rows_of_views = torch.from_numpy(np.concatenate([draws.rows, draws.rows], axis=1)).to(self.fabric.device)
            exact = torch.float32 if self.fabric.device.type == "mps" else torch.float64  # which mps does not have
            sums = torch.tensor([*p.sums.values()] or [0.0], dtype=exact, device=self.fabric.device)
            progress = torch.tensor(p.epoch / config.epochs, device=self.fabric.device)
            started = perf_counter()
            for inputs, rows in zip(source.stream(draws, p.epoch), rows_of_views, strict=True):
                sums = sums + step(inputs, self.contents[rows], self.labels[rows], progress)
                p.step += 1
                if self.is_first:
                    self.on_progress("Learning", p.epoch * self.steps + p.step, config.epochs * self.steps)
                if self.folder is not None and p.step < self.steps and (stopped() or monotonic() - saved >= every):
                    self._note(sums, step, before + monotonic() - began)
                    self._save(journal, optimizer, stopped)
                    saved = monotonic()
            self._note(sums, step, before + monotonic() - began)
            self._end_epoch(journal, validation, len(draws) * config.batch_size / (perf_counter() - started))
            if self.folder is not None and (stopped() or monotonic() - saved >= every or p.epoch == config.epochs):
                self._save(journal, optimizer, stopped)
                saved = monotonic()

    def _draws(self, epoch: int, start: int) -> Draws:
        """This process's part of the batches of an epoch, from a step on."""
        config = self.config
        draws = draw(
            self.rows,
            np.asarray(self.images.labels[self.rows] >= 0),
            batch_size=config.batch_size,
            balanced=config.balanced,
            seed=config.seed,
            epoch=epoch,
        )
        size = config.batch_size // self.fabric.world_size
        part = slice(self.fabric.global_rank * size, (self.fabric.global_rank + 1) * size)
        return Draws(draws.rows[start:, part], draws.times[start:, part])

    def _note(self, sums: Tensor, step: Step, seconds: float) -> None:
        p = self.progress
        p.sums = dict(zip(step.names, sums.tolist(), strict=True))
        p.chunks, p.seconds = step.chunks, seconds

    def _end_epoch(self, journal: Journal, validation: Validation | None, speed: float) -> None:
        p, config = self.progress, self.config
        p.last = {name: value / self.steps for name, value in p.sums.items()}
        if not all(map(math.isfinite, p.last.values())):
            raise SortalError(f"The loss must be a number, got {p.last} in epoch {p.epoch}. Use a lower lr.")
        measured: dict[str, float] = {}
        if validation is not None and ((p.epoch + 1) % config.validate_every == 0 or p.epoch + 1 == config.epochs):
            accuracy = validation.accuracy()
            measured = {"validation_accuracy": accuracy}
            if p.best is None or accuracy >= p.best:  # of equals the later one, which was trained longer
                p.best, p.best_epoch = accuracy, p.epoch
                self.best = {name: value.detach().clone() for name, value in self._state().items()}
        lr, loss = schedule(config, p.epoch), sum(p.last.values())
        journal.write("epoch", epoch=p.epoch, lr=lr, loss=loss, **p.last, images_per_second=speed, **measured)
        p.epoch, p.step, p.sums = p.epoch + 1, 0, {}

    def _finish(self) -> Trained:
        """Take the selected weights, in all processes, and save them."""
        p = self.progress = self.fabric.broadcast(self.progress)
        for name, value in self._state().items():
            if name in self.best:
                value.data.copy_(self.best[name])
            if self.fabric.world_size > 1:
                dist.broadcast(value.data, src=0)
        if self.folder is not None:
            self.method.backbone.save(self.folder / MODEL)
            tokens.forget(self.folder)
        self.fabric.barrier()  # until it is saved
        selected = p.epoch - 1 if p.best_epoch is None else p.best_epoch
        return Trained(
            epochs=p.epoch,
            selected=selected if p.epoch else None,
            validation=p.best,
            losses=p.last,
            views=self.n_views,
            seconds=p.seconds,
            images_per_second=p.epoch * self.steps * self.config.batch_size / max(p.seconds, 1e-9),
        )

    # The state

    def _trained(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.method.named_parameters() if value.requires_grad}

    def _state(self) -> dict[str, Tensor]:
        """What training changes: weights, and what a method keeps beside them."""
        buffers = {name: value for name, value in self.method.named_buffers() if not name.startswith("backbone.")}
        return {**self._trained(), **buffers}

    def _optimizer(self) -> torch.optim.Optimizer:
        lr, on_gpu = self.config.lr, self.fabric.device.type == "cuda"
        return torch.optim.SGD(
            list(self._trained().values()),
            lr=torch.tensor(lr, device=self.fabric.device) if on_gpu else lr,  # where a recorded step reads it anew
            momentum=self.config.momentum,
            weight_decay=self.config.weight_decay,
            fused=on_gpu,
        )

    def _found(self) -> Checkpoint | None:
        """The checkpoint to go on from, the same in all processes."""
        found: Checkpoint | None = self.fabric.broadcast(None if self.folder is None else checkpoint.load(self.folder))
        if found is None or found.key == self.key:
            return found
        other = [name for name, value in self.key.items() if found.key.get(name) != value]
        if other == ["weights"] and self._is_result(found):
            return found
        what = " and ".join(differing(found.key, self.key) if name == "settings" else name for name in other)
        raise InputError(
            f"The folder of a run must be new or hold the same run; it holds one with other {what}. "
            "Choose another folder, or go on with what that run began with."
        )

    def _is_result(self, found: Checkpoint) -> bool:
        """Whether the method already is what a finished run made of it."""
        kind = "weight" if found.progress.best is None else "best"
        return found.progress.epoch >= self.config.epochs and all(
            torch.equal(value.cpu(), found.tensors[f"{kind}.{name}"]) for name, value in self._state().items()
        )

    def _take(self, found: Checkpoint, optimizer: torch.optim.Optimizer | None) -> None:
        self.progress, self.n_views = found.progress, found.progress.views
        for name, value in self._state().items():
            value.data.copy_(found.tensors[f"weight.{name}"])
            if optimizer is not None and f"momentum.{name}" in found.tensors:
                buffer = found.tensors[f"momentum.{name}"].to(value.device)
                optimizer.state[value]["momentum_buffer"] = buffer
            if f"best.{name}" in found.tensors:
                self.best[name] = found.tensors[f"best.{name}"].to(value.device)

    def _save(self, journal: Journal, optimizer: torch.optim.Optimizer, stopped: Callable[[], bool]) -> None:
        """Write a checkpoint, and go no further where that was asked for."""
        assert self.folder is not None
        journal.sync()
        self.progress.log_size, self.progress.views = journal.size, self.n_views
        held = {f"best.{name}": value for name, value in self.best.items()}
        for name, value in self._state().items():
            held[f"weight.{name}"] = value
            if (buffer := optimizer.state.get(value, {}).get("momentum_buffer")) is not None:
                held[f"momentum.{name}"] = buffer
        checkpoint.save(Checkpoint(self.key, self.progress, held), self.folder)
        if stopped():
            raise KeyboardInterrupt

    def _about(self) -> dict[str, Any]:
        backbone = self.method.backbone
        return {
            "method": type(self.method).__name__,
            "backbone": asdict(backbone.spec),
            "weights": backbone.source,
            "trained_blocks": backbone.trained,
            "settings": asdict(self.config),
            "views": self.n_views,
            "images": len(self.images),
            "labelled": int(self.images.labelled.sum()),
            "unlabelled": int(self.images.unlabelled.sum()),
            "validation": int(self.images.validation.sum()),
            "device": str(self.fabric.device),
            "processes": self.fabric.world_size,
            "versions": {"sortal": sortal.__version__, "torch": torch.__version__},
        }


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def _check(method: Method, images: ImageSet, store: PixelStore, config: Training, fabric: Fabric) -> None:
    for name, value, kind, hint in (
        ("method", method, Method, "Contrastive(backbone)"),
        ("images", images, ImageSet, "read_images(...)"),
        ("store", store, PixelStore, "pack(images, ...)"),
        ("config", config, Training, "Training(...)"),
    ):
        if not isinstance(value, kind):
            raise InputError(f"{name} must be a {kind.__name__}, got {type(value).__name__}. Pass {hint}.")
    if len(images) != len(store):
        raise InputError(f"The store must hold the images row by row: {len(images):,} images, {len(store):,} rows.")
    if images.validation.all():
        raise InputError("There must be an image to learn from, got none outside validation.")
    views.check_present(store, np.arange(len(store)))
    views.check_size(store, method.backbone.spec.image_size, method.backbone.spec.shorter_side)
    if not any(value.requires_grad for value in method.backbone.parameters()):
        raise InputError("There must be something to train; all of the backbone is frozen. Use train_last(1).")
    if config.batch_size % fabric.world_size:
        raise InputError(
            f"batch_size must be a multiple of the processes, {fabric.world_size}, got {config.batch_size}."
        )
    if config.views not in (None, AUTO) and not method.backbone.has_trunk:
        raise InputError(
            f"views must be None or 'auto' where all of the backbone is trained, got {config.views}: "
            "there is no trunk whose tokens could be kept."
        )
