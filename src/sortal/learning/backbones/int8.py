"""Frozen linear layers in 8-bit integers, which processors that multiply these compute about twice as fast."""

import torch
from torch import Tensor, nn

FEWEST_FEATURES = 256  # of inputs and outputs; smaller layers gain nothing
ENGINE = "onednn"
SMALLEST_SCALE = 1e-12
STEP, ZERO = 1 / 127, 128  # of unsigned numbers for [-1, 1], where they can be multiplied with signed ones


class Int8Linear(nn.Module):
    """A linear layer whose weights are rounded by output, and its inputs by row, whatever the other rows are."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1).clamp_min(SMALLEST_SCALE)  # (outputs,)
        self.bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach().float()
        self.product = (UnsignedProduct if _multiplies_unsigned() else SignedProduct)(weight / scale[:, None], scale)

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(0, -2)
        rows = torch.maximum(flat.amax(-1, keepdim=True), -flat.amin(-1, keepdim=True)).clamp_min_(SMALLEST_SCALE)
        product = self.product(flat, rows)
        return torch.addcmul(self.bias, product, rows, out=product).view(*inputs.shape[:-1], -1)


class UnsignedProduct:
    """Products of rows, divided by the largest of each, with weights (outputs, inputs) in [-1, 1] times `scale`.

    Processors with AVX-512 VNNI multiply unsigned numbers with signed ones. Rounding takes one pass over the rows.
    """

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        self.steps, self.zeros = scale * STEP, torch.zeros(len(scale), dtype=torch.int64)
        self.packed = torch.ops.onednn.qlinear_prepack((weight / STEP).round().to(torch.int8), None)

    def __call__(self, flat: Tensor, rows: Tensor) -> Tensor:
        rounded = torch.quantize_per_tensor(flat * rows.reciprocal(), STEP, ZERO, torch.quint8)
        numbers = flat.new_empty(0, dtype=torch.uint8)  # the same memory: int_repr() copies, slower than it rounds
        numbers.set_(rounded.untyped_storage(), 0, rounded.shape, rounded.stride())
        inputs, weights = (numbers, STEP, ZERO), (self.packed, self.steps, self.zeros)
        # Without a bias, as float32 that is not scaled once more, and with nothing after the product
        found: Tensor = torch.ops.onednn.qlinear_pointwise(
            *inputs, *weights, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return found


class SignedProduct:
    """The same for other processors, such as ARM's with dot products."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        self.scale = scale
        # One scale for all: with one for each output, onednn has no fast product on ARM.
        rounded = torch.quantize_per_tensor(weight, STEP, 0, torch.qint8)
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = ENGINE
        try:
            self.packed = torch.ops.quantized.linear_prepack(rounded, None)
        finally:
            torch.backends.quantized.engine = before

    def __call__(self, flat: Tensor, rows: Tensor) -> Tensor:
        scaled = flat.new_zeros(len(flat) + 1, flat.shape[1])
        torch.div(flat, rows, out=scaled[:-1])
        scaled[-1, 0], scaled[-1, 1] = 1, -1  # so that the steps of rounding are the same in every batch
        product: Tensor = torch.ops.quantized.linear_dynamic(scaled, self.packed)[:-1]
        return product.mul_(self.scale)


def quantise(block: nn.Module) -> None:
    """Replace the large linear layers of a frozen block in place."""
    for name, layer in [*block.named_modules()]:
        if type(layer) is nn.Linear and min(layer.weight.shape) >= FEWEST_FEATURES:
            parent, _, own = name.rpartition(".")
            setattr(block.get_submodule(parent), own, Int8Linear(layer))


def _multiplies_unsigned() -> bool:
    vnni: bool = getattr(torch.cpu, "_is_vnni_supported", bool)()
    return vnni and hasattr(torch.ops.onednn, "qlinear_pointwise")
