"""Gumbel-max sampling on a GPU: the CPU kernels' scores, for all rows at once in one transfer."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.sampling.cpu_kernels import RowParams
from engine.sampling.noise import gumbel_torch

_SCORES_AT_ONCE = 1 << 24
"""Bounds the memory of the noise's 64-bit words to some ten tensors of 128 MiB."""


def perturbed_top_torch(
    logits: Tensor, params: RowParams, width: int, names: Tensor | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The best `width` tokens of each row and their raw confidences; -1 if filters keep fewer.
    `names`: the target's token in each column, ascending; None: the columns' own numbers."""
    # fp64 holds 32-bit words and all other parameters exactly, so one transfer serves them all.
    packed = torch.from_numpy(np.stack([column.astype(np.float64) for column in params]))
    on_device = packed.to(logits.device)
    filtered = any(params.top_k > 0) or any(params.top_p < 1) or any(params.min_p > 0)
    if names is None:
        names = torch.arange(logits.shape[1], device=logits.device)
    rows_at_once = max(1, _SCORES_AT_ONCE // logits.shape[1])
    parts = [
        _top_rows(rows, part, width, filtered, names)
        for rows, part in zip(
            logits.split(rows_at_once), on_device.split(rows_at_once, dim=1), strict=True
        )
    ]
    tokens_and_confidence = torch.cat(parts).cpu().numpy()
    return (
        tokens_and_confidence[:, :width].astype(np.int32),
        tokens_and_confidence[:, width:].astype(np.float32),
    )


def _top_rows(logits: Tensor, params: Tensor, width: int, filtered: bool, names: Tensor) -> Tensor:
    """Tokens and confidences concatenated, in fp64, which holds both exactly."""
    temperature, top_k, top_p, min_p, *key = params.unsqueeze(-1)
    seed_low, seed_high, position = (word.long() for word in key)
    noise = gumbel_torch(seed_low, seed_high, position, names)
    scores = logits + temperature.float() * noise
    if filtered:
        kept = _kept(logits, temperature, top_k, top_p, min_p)
        scores = scores.masked_fill(~kept, -torch.inf)
    normaliser = scores.logsumexp(-1, keepdim=True)
    # argmax takes the first of equal scores; topk takes any.
    tokens, best = [], []
    for _ in range(width):
        token = scores.argmax(-1, keepdim=True)
        tokens.append(token)
        best.append(scores.gather(-1, token))
        scores = scores.scatter(-1, token, -torch.inf)
    chosen = torch.cat(best, -1)
    token_columns = names[torch.cat(tokens, -1)].masked_fill(chosen == -torch.inf, -1)
    return torch.cat([token_columns.double(), (chosen - normaliser).exp().double()], -1)


def _kept(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """The mask of tokens that min-p, top-k and top-p keep; greedy rows keep all."""
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    greedy = temperature == 0
    gap = (ordered.double() - ordered[:, :1]) / temperature.masked_fill(greedy, 1.0)
    rank = torch.arange(logits.shape[1], device=logits.device)
    kept = (gap >= min_p.log()) & ((rank < top_k) | (top_k == 0))
    mass = gap.exp().masked_fill(~kept, 0.0)
    before = mass.cumsum(-1) - mass
    limit = (top_p * mass.sum(-1, keepdim=True)).masked_fill(top_p == 1, torch.inf)
    kept &= (before < limit) | (rank == 0)
    return torch.zeros_like(kept).scatter(-1, ids, kept | greedy)


def allow_only_torch(logits: Tensor, rows: NDArray[np.int64], words: NDArray[np.int32]) -> None:
    """Sets the logits of the rows' tokens whose bit in `words` is 0 to -inf, in place."""
    device = logits.device
    packed = torch.from_numpy(words.view(np.uint8)).to(device)
    bits = (packed[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=device)) & 1
    forbidden = bits.flatten(1)[:, : logits.shape[1]] == 0
    at = torch.from_numpy(rows).to(device)
    logits[at] = logits[at].masked_fill(forbidden, -torch.inf)
