"""Attention over a part of the keys.

Each part yields its own normalised result and the log of its sum of exponentials (lse). The whole
softmax is the mean of the parts weighted by exp(lse).
"""

import torch
from torch import Tensor

from engine.attention.context import Scoring


def group_queries(query: Tensor, kv_heads: int) -> Tensor:
    """[..., rows, heads, d] → [..., kv_heads, rows · group, d]: the query heads that share a
    key head become rows, so that keys are not copied as by `repeat_kv`."""
    *outer, rows, heads, width = query.shape
    group = heads // kv_heads
    grouped = query.reshape(*outer, rows, kv_heads, group, width).transpose(-4, -3)
    return grouped.reshape(*outer, kv_heads, rows * group, width)


def ungroup_queries(mixed: Tensor, heads: int) -> Tensor:
    """The inverse: [..., kv_heads, rows · group, d] → [..., rows, heads, d]."""
    *outer, kv_heads, grouped_rows, width = mixed.shape
    group = heads // kv_heads
    rows = grouped_rows // group
    ungrouped = mixed.reshape(*outer, kv_heads, rows, group, width).transpose(-4, -3)
    return ungrouped.reshape(*outer, rows, heads, width)


def attend_part(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """query [..., n, d], keys and values [..., m, d], mask [..., n, m] → fp32 [..., n, d] and
    lse [..., n]; a fully masked row gives zeros and -inf."""
    # Scaled before the product, whose result is rounded to the model's dtype.
    scores = torch.matmul(query * scoring.scale, keys.transpose(-1, -2)).float()
    scores = scores.masked_fill(~mask, -torch.inf)
    highest = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True)
    lse = (highest + torch.log(total)).squeeze(-1)
    shares = weights / total.clamp(min=torch.finfo(torch.float32).tiny)
    return torch.matmul(shares.to(values.dtype), values).float(), lse
