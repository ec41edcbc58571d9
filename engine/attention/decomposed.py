"""Spin's request decomposition (section V-A): long requests are cut into pieces of one length."""

import numpy as np
from numpy.typing import NDArray

from engine.attention.context import AttentionBatch
from engine.attention.pieces import PiecesPlan

ROWS_PER_REQUEST = 2
"""The tensor width B as a multiple of the batch size. Spin fixes B and searches L: a larger B pads
less but copies more queries."""


def decomposed(batch: AttentionBatch) -> PiecesPlan:
    length = least_padded_length(batch.kv_counts(), ROWS_PER_REQUEST * len(batch))
    return PiecesPlan(batch, length)


def least_padded_length(lengths: NDArray[np.int64], width: int) -> int:
    """The piece length L with the fewest padded KV tokens that needs at most `width` rows.

    Of equals the longest, which copies fewest queries. For given numbers of pieces the shortest
    possible L pads least, and it is ⌈length / pieces⌉ of some request: only these are candidates.
    """
    if width < len(lengths):
        raise ValueError(f"{len(lengths)} requests need as many rows, not {width}")
    pieces = np.arange(1, width - len(lengths) + 2)
    candidates = np.unique(-(-lengths[:, None] // pieces))
    rows = (-(-lengths[:, None] // candidates)).sum(0)
    padding = np.where(rows <= width, rows * candidates, np.iinfo(np.int64).max)
    best = np.flatnonzero(padding == padding.min())[-1]
    return int(candidates[best])
