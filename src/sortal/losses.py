"""Losses: pure functions of embeddings and the ids of their rows."""

import torch
from torch import Tensor


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
