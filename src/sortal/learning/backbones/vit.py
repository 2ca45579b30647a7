"""Timm's vision transformers, split into trunk and tail; the last block computes the class token only."""

import copy
from typing import Any, Self, cast

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from sortal.errors import InputError
from sortal.learning.backbones.backbone import Backbone, Spec
from sortal.learning.backbones.int8 import FEWEST_FEATURES, quantise

ADDED_TOKENS, ADDED_DEVIATION = "added_tokens", 0.01  # their name among the weights, and their deviation at first


class VisionTransformer(Backbone):
    """Any vision transformer of timm with a class token: DINO, DINOv2, DINOv3, MAE, CLIP's towers.

    The trunk returns the tokens that enter the trained blocks, (n, tokens, d), the class token first; the tail returns
    the class token after the last block and the final norm, (n, d).
    """

    def __init__(self, net: nn.Module, spec: Spec) -> None:
        super().__init__(net, spec)
        if getattr(net, "cls_token", None) is None:
            raise InputError(f"Features need a class token, which {spec.name} does not have. Choose another backbone.")
        self.grid: tuple[int, int] = cast(Any, net).patch_embed.grid_size

    @property
    def blocks(self) -> list[nn.Module]:
        return list(cast(Any, self.net).blocks)

    @property
    def patch_grid(self) -> tuple[int, int] | None:
        return self.grid if self._rope(self.split) is None else None  # rotary embeddings need every patch

    @property
    def sees_windows(self) -> bool:
        return self.patch_grid is not None

    def trunk(self, images: Tensor) -> Tensor:
        return self._run(self._embedded(images), 0, self.split)

    def windowed_trunk(self, images: Tensor, patches: Tensor) -> Tensor:
        tokens = self._embedded(images)
        prefix = tokens.shape[1] - self.grid[0] * self.grid[1]
        seen = (patches + prefix)[:, :, None].expand(-1, -1, tokens.shape[2])
        return self._run(torch.cat([tokens[:, :prefix], tokens.gather(1, seen)], dim=1), 0, self.split)

    def _embedded(self, images: Tensor) -> Tensor:
        """Compute the tokens that enter the first block, the patches last."""
        net = cast(Any, self.net)
        embedded = net._pos_embed(net.patch_embed(images))
        return net.norm_pre(embedded[0] if isinstance(embedded, tuple) else embedded)  # the rest is the rope

    def tail(self, inputs: Tensor) -> Tensor:
        last = len(self.blocks) - 1
        tokens = self._enter_last(inputs)
        return cast(Any, self.net).norm(_class_row(self.blocks[last], tokens, self._rope(last)))

    def add_tokens(self, count: int, *, seed: int = 0) -> None:
        if self._rope(len(self.blocks) - 1) is not None:
            raise InputError(f"Further tokens need position embeddings, but those of {self.spec.name} are rotary.")
        drawn = torch.randn(count, self.spec.width, generator=torch.Generator().manual_seed(seed))
        tokens = nn.Parameter((ADDED_DEVIATION * drawn).to(self.device, self.dtype))
        self.net.register_parameter(ADDED_TOKENS, tokens)
        tokens.requires_grad_(self.trained > 0)

    @property
    def _added(self) -> Tensor | None:
        return getattr(self.net, ADDED_TOKENS, None)

    def train_last(self, blocks: int) -> Self:
        super().train_last(blocks)
        if self._added is not None:
            self._added.requires_grad_(blocks > 0)
        return self

    def token_rows(self, inputs: Tensor) -> Tensor:
        last = len(self.blocks) - 1
        added = 0 if self._added is None else len(self._added)
        tokens = _apply(self.blocks[last], self._enter_last(inputs), self._rope(last))
        return torch.cat([tokens[:, :1], tokens[:, tokens.shape[1] - added :]], dim=1)

    @torch.no_grad()
    def largest_query(self, inputs: Tensor) -> Tensor | None:
        block = self.blocks[-1]
        if not _is_supported(block):
            return None
        class_tokens = self._enter_last(inputs)[:, :1]
        return _class_query(block, _standardise(cast(Any, block).norm1, class_tokens)).abs().max()

    @torch.no_grad()
    def attention(self, images: Tensor) -> Tensor:
        """Return the class token's attention to patches only in the last block, (n, heads, rows, columns)."""
        last = len(self.blocks) - 1
        block = self.blocks[last]
        if not _is_supported(block):
            raise InputError(f"Attention maps do not support the blocks of {self.spec.name}. Use another ViT.")
        tokens = self._enter_last(self.trunk(images))
        weights = _attention_weights(block, _standardise(cast(Any, block).norm1, tokens), self._rope(last))
        end = tokens.shape[1] - (0 if self._added is None else len(self._added))
        patches = self.grid[0] * self.grid[1]
        return weights[:, end - patches : end].transpose(1, 2).unflatten(2, self.grid)

    def in_bf16(self) -> Self:
        copied = super().in_bf16()
        for name, buffer in self.named_buffers():
            if ".rope." in name:  # angles need float32
                module, _, own = name.rpartition(".")
                copied.get_submodule(module).register_buffer(own, buffer, persistent=False)
        return copied

    @property
    def concurrent(self) -> bool:
        return True

    @property
    def fits_int8(self) -> bool:
        return all(map(_is_plain, self.blocks[: self.split])) and self.spec.width >= FEWEST_FEATURES

    def in_int8(self) -> Self:
        if not self.fits_int8:
            return self
        copied = copy.deepcopy(self)
        for block in copied.blocks[: copied.split]:
            quantise(block)
        return copied

    def _enter_last(self, inputs: Tensor) -> Tensor:
        """Compute the tokens that enter the last block from the tail's input."""
        if not torch.is_autocast_enabled(inputs.device.type):
            inputs = inputs.to(self.dtype)  # from the bfloat16 of cached tokens
        tokens = self._run(inputs, self.split, len(self.blocks) - 1)
        if self._added is None:
            return tokens
        return torch.cat([tokens, self._added.to(tokens.dtype).expand(tokens.shape[0], -1, -1)], dim=1)

    def _run(self, tokens: Tensor, start: int, end: int) -> Tensor:
        for i in range(start, end):
            tokens = _apply(self.blocks[i], tokens, self._rope(i))
        return tokens

    def _rope(self, block: int) -> Tensor | None:
        """Return the rotary embedding of a block, if the network has one."""
        net = cast(Any, self.net)
        if getattr(net, "rope", None) is None:
            return None
        rope = net.rope.get_embed(shape=self.grid) if net.dynamic_img_size else net.rope.get_embed()
        return cast(Tensor, rope[block] if getattr(net, "rope_mixed", False) else rope)


def _apply(block: nn.Module, tokens: Tensor, rope: Tensor | None) -> Tensor:
    return cast(Tensor, block(tokens) if rope is None else block(tokens, rope=rope))


def _class_row(block: nn.Module, tokens: Tensor, rope: Tensor | None) -> Tensor:
    """Compute row 0 of `block(tokens)`, (n, d), without the others."""
    if not _is_supported(block):
        return _apply(block, tokens, rope)[:, 0]
    b = cast(Any, block)
    inputs = _standardise(b.norm1, tokens)
    weights = _attention_weights(block, inputs, rope)
    # Mix the values before projecting them: a sum over tokens per head instead of a product per token. The weights of
    # a head sum to 1, so the bias is unchanged.
    heads = b.attn.num_heads
    mixed = (_align(weights.to(inputs.dtype)).transpose(1, 2) @ inputs)[:, :heads]  # (n, heads, d)
    weight, bias = _projection(block, 2)
    by_head = weight.unflatten(0, (heads, -1))  # (heads, head's d, d)
    values = torch.matmul(mixed.transpose(0, 1), by_head.transpose(1, 2).to(mixed.dtype))  # (heads, n, head's d)
    context = values.transpose(0, 1).flatten(1) + bias
    row = tokens[:, 0] + _scale(block, 1, b.attn.proj(b.attn.norm(context)))
    return row + _scale(block, 2, b.mlp(b.norm2(row)))


def _attention_weights(block: nn.Module, inputs: Tensor, rope: Tensor | None) -> Tensor:
    """Compute the attention of the class token to all tokens, (n, tokens, heads), in float32."""
    attn = cast(Any, block).attn
    heads = (attn.num_heads, -1)
    query = _class_query(block, inputs)
    weight, bias = _projection(block, 1)
    if rope is None and isinstance(attn.k_norm, nn.Identity):
        # No keys needed: q · (W x + b) = (Wᵀ q) · x + a constant over tokens.
        pulled = torch.matmul(query.transpose(0, 1), weight.unflatten(0, heads).to(query.dtype))  # (heads, n, d)
        scores = _product(inputs, _align(pulled.permute(1, 2, 0)))[:, :, : attn.num_heads]
    else:
        keys = nnf.linear(inputs, *_like(inputs, weight, bias)).unflatten(2, heads).transpose(1, 2)
        keys = attn.k_norm(keys)
        if rope is not None:
            keys = _rotate(attn, keys, rope)
        scores = _product(keys, query[:, :, :, None])[:, :, :, 0].transpose(1, 2)
    return torch.softmax(scores.float() * attn.scale, dim=1)


def _class_query(block: nn.Module, inputs: Tensor) -> Tensor:
    """Compute the query of the class token, (n, heads, head's d)."""
    attn = cast(Any, block).attn
    query = nnf.linear(inputs[:, 0], *_like(inputs, *_projection(block, 0))).unflatten(1, (attn.num_heads, -1))
    return cast(Tensor, attn.q_norm(query))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply at least in float32.

    Rounded to bfloat16, large scores of different tokens would tie and the softmax would never saturate, so that its
    gradient grows with the queries instead of vanishing.
    """
    with torch.autocast(left.device.type, enabled=False):
        exact = torch.promote_types(left.dtype, torch.float32)
        return left.to(exact) @ right.to(exact)


def _align(values: Tensor) -> Tensor:
    """Pad the last dimension to a multiple of 8, for fast matrix products on GPUs."""
    return nnf.pad(values, (0, -values.shape[-1] % 8))


def _rotate(attn: Any, keys: Tensor, rope: Tensor) -> Tensor:
    """Apply the rotary embedding to the keys of patches; prefix tokens are not rotated."""
    from timm.layers.pos_embed_sincos import apply_rot_embed_cat

    prefix = attn.num_prefix_tokens
    rotated = apply_rot_embed_cat(keys[:, :, prefix:], rope, half=attn.rotate_half)
    return torch.cat([keys[:, :, :prefix], rotated.to(keys.dtype)], dim=2)


def _is_supported(block: nn.Module) -> bool:
    """Tell whether a block is x + attn(norm1(x)), then x + mlp(norm2(x)), of types that are supported here."""
    from timm.layers.attention import Attention
    from timm.models.eva import EvaAttention, EvaBlock
    from timm.models.vision_transformer import Block

    attn = getattr(block, "attn", None)
    return (
        (type(block), type(attn)) in ((Block, Attention), (EvaBlock, EvaAttention))
        and getattr(attn, "gate", None) is None  # older versions of timm have no gates
        and isinstance(block.norm1, nn.LayerNorm)
    )


def _is_plain(block: nn.Module) -> bool:
    """Tell whether the linear layers of a block are called, rather than their weights used."""
    from timm.layers.attention import Attention
    from timm.models.vision_transformer import Block

    return (type(block), type(getattr(block, "attn", None))) == (Block, Attention)


def _standardise(norm: nn.Module, tokens: Tensor) -> Tensor:
    """Apply a layer norm without its weight and bias, which `_projection` folds into the projections."""
    n, device = cast(nn.LayerNorm, norm), tokens.device.type
    with torch.autocast(device, enabled=False):  # it computes in float32 anyway
        standard = nnf.layer_norm(tokens, n.normalized_shape, None, None, n.eps)
    return standard.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else standard


def _projection(block: nn.Module, which: int) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the queries (0), keys (1) or values (2), with norm1 folded in, which is faster."""
    attn, norm, letter = cast(Any, block).attn, cast(Any, block).norm1, "qkv"[which]
    if attn.qkv is None:
        part = getattr(attn, f"{letter}_proj")
        weight, bias = part.weight, part.bias
    else:
        weight, biases = attn.qkv.weight.chunk(3)[which], attn.qkv.bias
        bias = getattr(attn, f"{letter}_bias", None) if biases is None else biases.chunk(3)[which]
    folded = weight if norm.weight is None else weight * norm.weight
    shift = weight.new_zeros(len(weight)) if norm.bias is None else (weight * norm.bias).sum(1)
    return folded, shift if bias is None else shift + bias


def _scale(block: nn.Module, which: int, values: Tensor) -> Tensor:
    """Apply the layer scale of the first or second half of a block."""
    scale = getattr(block, f"ls{which}", None)
    if scale is not None:
        return cast(Tensor, scale(values))
    gamma = getattr(block, f"gamma_{which}", None)
    return values if gamma is None else values * gamma


def _like(other: Tensor, *tensors: Tensor) -> list[Tensor]:
    return [tensor.to(other.dtype) for tensor in tensors]
