"""Frozen linear layers in 8-bit integers, which processors that multiply these compute about twice as fast."""

import torch
from torch import Tensor, nn

FEWEST_FEATURES = 256  # of inputs and outputs; smaller layers gain nothing
ENGINE = "onednn"
SMALLEST_SCALE = 1e-12
STEP, ZERO = 1 / 127, 128  # of unsigned numbers for [-1, 1], where they can be multiplied with signed ones
FINE_STEP = 1 / 255  # of those for [0, 1]
LEAST_OF_GELU = -0.17
IN_FRONT = {"attn.qkv": "norm1", "mlp.fc1": "norm2"}  # the norms of a block whose outputs these layers see
UNEVEN = 4  # times the median weight of a norm; beside a feature with a larger one, the others are rounded away


class Int8Linear(nn.Module):
    """A linear layer whose weights are rounded by output, and its inputs by row, whatever the other rows are.

    `least` is what no input is less than, if that is known: then half as much is lost by rounding inputs where the
    processor multiplies unsigned numbers.
    """

    def __init__(self, layer: nn.Linear, least: float | None = None) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1).clamp_min(SMALLEST_SCALE) * STEP  # (outputs,)
        rounded = (weight / scale[:, None]).round()
        bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach().float()
        self.product: UnsignedProduct | SignedProduct
        if _multiplies_unsigned():
            self.least, self.product = least, UnsignedProduct(rounded, scale, least)
        else:
            self.least, self.product = None, SignedProduct(rounded, scale)
        self.bias = bias if self.least is None else bias + self.least * scale * rounded.sum(1)

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(0, -2)
        rows = flat.amax(-1, keepdim=True)
        rows = torch.maximum(rows, -flat.amin(-1, keepdim=True)) if self.least is None else rows - self.least
        product = self.product(flat, rows.clamp_min_(SMALLEST_SCALE))
        return torch.addcmul(self.bias, product, rows, out=product).view(*inputs.shape[:-1], -1)


class UnsignedProduct:
    """Products of rows, less `least` and divided by `rows`, with whole numbers (outputs, inputs) times `scale`.

    Processors with AVX-512 VNNI multiply unsigned numbers with signed ones. Rounding takes one pass over the rows.
    """

    def __init__(self, weight: Tensor, scale: Tensor, least: float | None) -> None:
        self.least, (self.step, self.zero) = least, (STEP, ZERO) if least is None else (FINE_STEP, 0)
        self.scale, self.zeros = scale, torch.zeros(len(scale), dtype=torch.int64)
        self.packed = torch.ops.onednn.qlinear_prepack(weight.to(torch.int8), None)

    def __call__(self, flat: Tensor, rows: Tensor) -> Tensor:
        share = rows.reciprocal()
        scaled = flat * share if self.least is None else torch.addcmul(share * -self.least, flat, share)
        rounded = torch.quantize_per_tensor(scaled, self.step, self.zero, torch.quint8)
        numbers = flat.new_empty(0, dtype=torch.uint8)  # the same memory: int_repr() copies, slower than it rounds
        numbers.set_(rounded.untyped_storage(), 0, rounded.shape, rounded.stride())
        inputs, weights = (numbers, self.step, self.zero), (self.packed, self.scale, self.zeros)
        # Without a bias, as float32 that is not scaled once more, and with nothing after the product
        found: Tensor = torch.ops.onednn.qlinear_pointwise(
            *inputs, *weights, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return found


class SignedProduct:
    """The same, without `least`, for other processors, such as ARM's with dot products."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        self.scale = scale / STEP
        # One scale for all: with one for each output, onednn has no fast product on ARM.
        rounded = torch.quantize_per_tensor(weight * STEP, STEP, 0, torch.qint8)
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
    """Replace the large linear layers of a frozen block in place, but for those that rounding would hurt."""
    from timm.layers.mlp import Mlp

    after_gelu = {
        part.fc2
        for part in block.modules()
        if isinstance(part, Mlp) and isinstance(part.act, nn.GELU) and isinstance(part.norm, nn.Identity)
    }
    hurt = {name for name, norm in IN_FRONT.items() if _is_uneven(getattr(block, norm, None))}
    for name, layer in [*block.named_modules()]:
        if type(layer) is nn.Linear and min(layer.weight.shape) >= FEWEST_FEATURES and name not in hurt:
            parent, _, own = name.rpartition(".")
            replaced = Int8Linear(layer, LEAST_OF_GELU if layer in after_gelu else None)
            setattr(block.get_submodule(parent), own, replaced)


def _is_uneven(norm: nn.Module | None) -> bool:
    weight = getattr(norm, "weight", None)
    return weight is not None and bool(weight.abs().max() > UNEVEN * weight.abs().median())


def _multiplies_unsigned() -> bool:
    vnni: bool = getattr(torch.cpu, "_is_vnni_supported", bool)()
    return vnni and hasattr(torch.ops.onednn, "qlinear_pointwise")
