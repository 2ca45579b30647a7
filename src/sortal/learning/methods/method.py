"""What every training method says: what a view becomes, and what a batch of views costs."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from sortal.batches import Batch
from sortal.network import Backbone


class Method(nn.Module, ABC):
    """A backbone's tail and what is trained on top of it.

    Everything that has weights happens in `forward`, one view independent of the others, so that the loop can spread
    views over processes and cut batches to fit memory; `losses` then sees the outputs of the whole batch.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def settings(self) -> dict[str, Any]:
        """What its losses depend on beside its weights, to tell runs apart."""
        return {"name": type(self).__name__}

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """One row a view, from what the backbone's trunk gave."""

    @abstractmethod
    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Named numbers, already weighted; the loop sums and logs them.

        A function of the batch, the weights and the buffers, which it does not change: where memory runs out it is
        called again. On a GPU it is recorded once and replayed, so what it does must not depend on values.
        """

    def settle(self, batch: Batch) -> None:
        """What remains to be done when weights have been updated by a batch: buffers change here alone."""

    def classifier(self) -> Tensor | None:
        """(k, d + 1) weights and biases of what tells categories by features of length 1; None without such a head.

        The first outputs are the known classes in order. Their softmax are the probabilities it was trained to give.
        """
        return None
