"""Losses and their targets: pure functions without control flow on values, so that CUDA graphs can record them."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as nnf
from torch import Tensor

EPSILON = 1e-7  # keeps the logarithm of a probability finite


def contrastive(
    embeddings: Tensor,
    ids: Tensor,
    *,
    temperature: float,
    groups: Tensor | None = None,
    similarity: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Compute SupCon in its "out" form: rows with the same id attract, all others but those of its group (n,) repel.

    `embeddings` (n, d) have unit rows, unless there is a `similarity` (n, n) other than their cosines; rows with id −1
    in `ids` (n,) are ignored. With one id per image it is InfoNCE.
    The mean is over rows that share their id with another row; if there are none, the loss is 0.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        rows = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        scores = (similarity(rows) if similarity else rows @ rows.T) / temperature  # (n, n)
    takes_part = ids >= 0
    itself = torch.eye(len(ids), dtype=torch.bool, device=ids.device)
    others = takes_part & ~itself
    if groups is not None:
        others = others & ((groups[:, None] != groups) | (ids[:, None] == ids))
    alike = (ids[:, None] == ids) & others
    count = alike.sum(1)
    log_all = scores.masked_fill(~others, torch.finfo(scores.dtype).min).logsumexp(1)
    to_alike = scores.masked_fill(~alike, 0).sum(1) / count.clamp(min=1)
    is_anchor = count > 0
    return (log_all - to_alike).masked_fill(~is_anchor, 0).sum() / is_anchor.sum().clamp(min=1)


def classification(logits: Tensor, ids: Tensor) -> Tensor:
    """Compute the mean cross-entropy of logits (n, k) and ids (n,), ignoring ids of −1; 0 if no row is left."""
    if not logits.shape[1]:
        return logits.sum()
    return soft_classification(logits, nnf.one_hot(ids.clamp(min=0), logits.shape[1]), ids >= 0)


def soft_classification(logits: Tensor, targets: Tensor, among: Tensor) -> Tensor:
    """Compute the mean cross-entropy of logits and target probabilities (n, k) over the rows of a mask (n,), or 0."""
    each = -(targets * logits.log_softmax(1)).sum(1)
    return each.masked_fill(~among, 0).sum() / among.sum().clamp(min=1)


def pairwise(first: Tensor, second: Tensor, alike: Tensor, among: Tensor) -> Tensor:
    """Compute the binary cross-entropy between ⟨first_i, second_j⟩ and `alike` (n, n).

    `first` and `second` (n, k) are probabilities, so their inner product is that of falling into the same category. The
    mean is over all pairs of rows of the mask `among` (n,), i = j included; 0 if it is empty.
    """
    together = first @ second.T
    each = -(torch.where(alike, together, 1 - together).clamp(min=0) + EPSILON).log()
    pairs = among[:, None] & among
    return each.masked_fill(~pairs, 0).sum() / pairs.sum().clamp(min=1)


def same_top_features(features: Tensor, top: int) -> Tensor:
    """Compare all pairs of rows (n, d) by the set of their `top` largest entries, (n, n) bool (Han et al., 2020)."""
    largest = features.topk(min(top, features.shape[1]), dim=1).indices.sort(dim=1).values
    return (largest[:, None] == largest).all(2)


def sinkhorn(scores: Tensor, among: Tensor, *, epsilon: float, iterations: int) -> Tensor:
    """Assign rows softly to categories of equal size, following their scores (n, k), by Sinkhorn's iterations.

    In the result (n, k), rows of the mask `among` (n,) sum to 1, the others are 0, and columns are balanced up
    to convergence. Works on logarithms against underflow.
    """
    least = torch.finfo(scores.dtype).min
    shares = (scores / epsilon).masked_fill(~among[:, None], least)
    for _ in range(iterations):
        shares = shares - shares.logsumexp(0)
        shares = (shares - shares.logsumexp(1, keepdim=True)).masked_fill(~among[:, None], least)
    return shares.exp().masked_fill(~among[:, None], 0)


def entropy_deficit(probabilities: Tensor) -> Tensor:
    """Return log k minus the entropy of the mean of rows (n, k); 0 if the mean is uniform."""
    mean = probabilities.mean(0)
    return (mean * mean.clamp(min=EPSILON).log()).sum() + math.log(probabilities.shape[1])


def divergence(
    probabilities: Tensor, among: Tensor, shares: Tensor, before: Tensor | None = None, weight: float = 1.0
) -> Tensor:
    """Compute KL(mean ‖ shares) for the mean of the rows (n, k) of a mask (n,); 0 if it is empty.

    With `before`, (k,), it is that of the mean of earlier rows and these, which have this weight. The gradient is as if
    these were all rows and had that mean, so that on average small batches give the gradient of a large one.
    """
    mean = mean_among(probabilities, among)
    if before is not None:
        mean = running_mean(before, mean.detach(), among, weight) + (mean - mean.detach())
    return (mean * (mean.clamp(min=EPSILON) / shares).log()).sum()


def mean_among(rows: Tensor, among: Tensor) -> Tensor:
    """Compute the mean of the rows (n, k) of a mask (n,); 0 if it is empty."""
    return rows.masked_fill(~among[:, None], 0).sum(0) / among.sum().clamp(min=1)


def running_mean(before: Tensor, mean: Tensor, among: Tensor, weight: float) -> Tensor:
    """Move a running mean (k,) towards one of rows of a mask (n,) by this weight, or not if the mask is empty."""
    return torch.lerp(before, mean.to(before.dtype), weight * among.any().to(before.dtype))
