"""Losses, and what their targets are made of: pure functions, the same work whatever the values are."""

import math

import torch
import torch.nn.functional as nnf
from torch import Tensor

EPSILON = 1e-7  # what is added to probabilities, or the least they count as, where their logarithm is taken


def contrastive(embeddings: Tensor, ids: Tensor, *, temperature: float) -> Tensor:
    """SupCon in its "out" form: rows of one id are pulled together, all others pushed away; a number.

    `embeddings` is (n, d) with rows of length 1, `ids` (n,) whole numbers; rows of id −1 take no part. With an id for
    each image it is InfoNCE. The mean goes over the rows that have another of their id; without any, the loss is 0.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        rows = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        scores = rows @ rows.T / temperature  # (n, n)
    takes_part = ids >= 0
    itself = torch.eye(len(ids), dtype=torch.bool, device=ids.device)
    others = takes_part & ~itself
    alike = (ids[:, None] == ids) & others
    count = alike.sum(1)
    log_all = scores.masked_fill(~others, torch.finfo(scores.dtype).min).logsumexp(1)
    to_alike = scores.masked_fill(~alike, 0).sum(1) / count.clamp(min=1)
    is_anchor = count > 0
    return (log_all - to_alike).masked_fill(~is_anchor, 0).sum() / is_anchor.sum().clamp(min=1)


def classification(logits: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy of rows (n, k) with ids (n,); rows of id −1 take no part, and without any it is 0."""
    if not logits.shape[1]:
        return logits.sum()
    return soft_classification(logits, nnf.one_hot(ids.clamp(min=0), logits.shape[1]), ids >= 0)


def soft_classification(logits: Tensor, targets: Tensor, among: Tensor) -> Tensor:
    """Cross-entropy of rows (n, k) with probabilities (n, k), as a mean over the rows of a mask (n,), 0 without any."""
    each = -(targets * logits.log_softmax(1)).sum(1)
    return each.masked_fill(~among, 0).sum() / among.sum().clamp(min=1)


def pairwise(first: Tensor, second: Tensor, alike: Tensor, among: Tensor) -> Tensor:
    """Whether rows of `first` and `second` (n, k), probabilities, fall into one category as often as they should.

    Binary cross-entropy between ⟨first_i, second_j⟩ and `alike` (n, n), as a mean over all pairs of the rows of a mask
    (n,), each row with itself included; without any it is 0.
    """
    together = first @ second.T
    each = -(torch.where(alike, together, 1 - together).clamp(min=0) + EPSILON).log()
    pairs = among[:, None] & among
    return each.masked_fill(~pairs, 0).sum() / pairs.sum().clamp(min=1)


def same_top(features: Tensor, top: int) -> Tensor:
    """(n, n) whether the sets of the `top` largest entries of two rows (n, d) are the same (Han et al., ICLR 2020)."""
    largest = features.topk(min(top, features.shape[1]), dim=1).indices.sort(dim=1).values
    return (largest[:, None] == largest).all(2)


def sinkhorn(scores: Tensor, among: Tensor, *, epsilon: float, iterations: int) -> Tensor:
    """Rows shared out over categories in even parts, each by its scores (n, k) as far as that allows; (n, k).

    Rows of the mask (n,) sum to 1, the others are 0. Each iteration gives all categories the same share, then each row
    its 1, so the last is exact and the shares of categories come closer with every iteration. In logarithms, so that
    no share is lost to rounding.
    """
    least = torch.finfo(scores.dtype).min
    shares = (scores / epsilon).masked_fill(~among[:, None], least)
    for _ in range(iterations):
        shares = shares - shares.logsumexp(0)
        shares = (shares - shares.logsumexp(1, keepdim=True)).masked_fill(~among[:, None], least)
    return shares.exp().masked_fill(~among[:, None], 0)


def lack_of_entropy(probabilities: Tensor) -> Tensor:
    """How far the mean of rows (n, k) is from even: log k less its entropy; 0 where it is even."""
    mean = probabilities.mean(0)
    return (mean * mean.clamp(min=EPSILON).log()).sum() + math.log(probabilities.shape[1])
