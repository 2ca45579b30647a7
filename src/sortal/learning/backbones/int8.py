"""Frozen linear layers in 8-bit integers, which processors that multiply these compute about twice as fast."""

import torch
from torch import Tensor, nn

FEWEST_FEATURES = 256  # of inputs and outputs; smaller layers gain nothing
ENGINE = "onednn"
SMALLEST_SCALE = 1e-12


class Int8Linear(nn.Module):
    """A linear layer whose weights are rounded by output, and its inputs by row, whatever the other rows are."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        self.scale = weight.abs().amax(1).clamp_min(SMALLEST_SCALE)  # (outputs,)
        self.bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach().float()
        # One scale for all: with one for each output, onednn has no fast product on ARM.
        rounded = torch.quantize_per_tensor(weight / self.scale[:, None], 1 / 127, 0, torch.qint8)
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = ENGINE
        try:
            self.packed = torch.ops.quantized.linear_prepack(rounded, None)
        finally:
            torch.backends.quantized.engine = before

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(0, -2)
        rows = flat.abs().amax(-1, keepdim=True).clamp_min_(SMALLEST_SCALE)
        scaled = flat.new_zeros(len(flat) + 1, flat.shape[1])
        torch.div(flat, rows, out=scaled[:-1])
        scaled[-1, 0], scaled[-1, 1] = 1, -1  # so that the steps of rounding are the same in every batch
        product: Tensor = torch.ops.quantized.linear_dynamic(scaled, self.packed)[:-1]
        return torch.addcmul(self.bias, product.mul_(rows), self.scale).view(*inputs.shape[:-1], -1)


def quantise(block: nn.Module) -> None:
    """Replace the large linear layers of a frozen block in place."""
    for name, layer in [*block.named_modules()]:
        if type(layer) is nn.Linear and min(layer.weight.shape) >= FEWEST_FEATURES:
            parent, _, own = name.rpartition(".")
            setattr(block.get_submodule(parent), own, Int8Linear(layer))
