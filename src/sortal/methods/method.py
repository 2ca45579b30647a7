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
        """Named numbers, already weighted; the loop sums and logs them."""
