"""The interface of training methods: a forward pass per view, losses per batch, and what else a method may decide."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from sortal.config import Losses, Training
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch, ImageTable
from sortal.learning.optimiser import Optimiser


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a method is created for."""

    k: int  # categories; 0 if the method does not need them and they are not given
    known: tuple[int, ...]  # class numbers, sorted; a classifier has them first
    training: Training


class Method(nn.Module, ABC):
    """A backbone's tail with a head, and their losses.

    All weights are used in `forward`, which treats views independently, so that the loop can distribute views over
    processes and split batches to fit memory; `losses` gets the outputs of the whole batch.
    """

    config: Losses | None = None
    version: ClassVar[int]  # of a method of Sortal's own: raised whenever its losses or outputs change
    views: ClassVar[int] = 2  # of each image of a batch
    graphable: ClassVar[bool] = True  # whether CUDA graphs may record its steps, which must not branch on values then

    groups: Tensor | None = None  # (m,) of the numbers in `Batch.images`, if Sortal's own method trains on given groups

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def groups_of(self, batch: Batch) -> Tensor | None:
        """Return the group of each view, (views,), if images of a group are not to be told apart."""
        return None if self.groups is None else self.groups[batch.images]

    @classmethod
    def create(cls, backbone: Backbone, losses: Losses, problem: Problem) -> Self:
        """Create the method from its registered settings; by default with the same arguments."""
        return cls(backbone, losses, problem)  # type: ignore[call-arg]

    def settings(self) -> dict[str, Any]:
        """Return the settings that its losses depend on, which are part of a run's key."""
        return {"name": type(self).__name__, **(asdict(self.config) if self.config is not None else {})}

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Compute one row per view from the trunk's tokens."""

    @abstractmethod
    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Compute named scalars, already weighted; the loop sums and logs them.

        Must not change weights or buffers, as it is called again when memory runs out, and must not branch on values,
        as a CUDA graph records it once and replays it.
        """

    def after_step(self, batch: Batch) -> None:
        """Update buffers, or a teacher's weights, after a batch has updated the weights."""

    def prepare(self, labels: Tensor) -> None:
        """Register buffers for the training images; `labels` (m,) has those of the numbers in `Batch.images`.

        Called before training, also where it is resumed.
        """

    def start_epoch(self, epoch: int, images: ImageTable) -> None:
        """Change buffers in place before an epoch, by the features that images have now, say.

        It must depend on its arguments, weights and buffers alone: a resumed run calls it again, unless it was
        interrupted within the epoch. Of several processes only the first calls it; the others get the buffers.
        """

    def sample(
        self,
        images: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        steps: int,
        batch_size: int,
        seed: int,
        epoch: int,
    ) -> NDArray[np.int64] | None:
        """Draw the images of an epoch: positions (steps, batch_size) in `images`, (n,); None draws them as usual.

        `images` are the numbers in `Batch.images`. It may depend on its arguments and on what `start_epoch` has set.
        """
        return None

    def augment(self, images: Tensor, draws: Tensor) -> Tensor:
        """Change views, (n, 3, size, size) from 0 to 1, by random numbers, (n, 16) from 0 to below 1.

        The numbers are determined by seed, epoch, image and view, so that cached views and resumed runs are the same.
        """
        return images

    def optimiser(self, parameters: Mapping[str, Tensor], training: Training) -> Optimiser:
        """Return what updates the weights: SGD with the settings of training.

        Other rates for some: `Optimiser.of(parameters, training, factors={"backbone.": 0.1})`; or a `TorchOptimiser`.
        """
        return Optimiser.of(parameters, training)

    def classifier(self) -> Tensor | None:
        """Return (k, d + 1) weights and biases of a softmax on L2-normalised features, known classes first; or None."""
        return None
