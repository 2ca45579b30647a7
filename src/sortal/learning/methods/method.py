"""The interface of training methods: a forward pass per view, and losses per batch."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from sortal.config import Losses, Training
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch


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

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

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
        """Update buffers after a batch has updated the weights; nothing else may change buffers."""

    def classifier(self) -> Tensor | None:
        """Return (k, d + 1) weights and biases of a softmax on L2-normalised features, known classes first; or None."""
        return None
