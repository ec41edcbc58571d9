"""Gumbel-max sampling on a CPU: numba kernels that compute the noise of as few tokens as possible.

A token's score is logit + T·g, which orders tokens as logit/T + g does and needs no special case
for T = 0. Tokens are pruned by upper bounds of g. Bounds and scores use the same fp32 arithmetic,
so pruning never changes a result.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.sampling.noise import DRAW_BITS, DRAW_STEP, MAX_GUMBEL, gumbel_of_draw, philox_njit

_SHIFT = 32 - DRAW_BITS
_BIN_BITS = 12
_BIN_CEILING = gumbel_of_draw((np.arange(1, 2 ** (DRAW_BITS - _BIN_BITS) + 1) << _BIN_BITS) - 1)
"""The largest g among the draws that share their leading bits: a bound without logarithms."""
_MAX_GUMBEL = np.float32(MAX_GUMBEL)
_NEGATIVE_INFINITY = np.float32(-np.inf)
_LOWEST = float(np.finfo(np.float32).min)

CONFIDENCE_REACH = np.float32(8.0)
"""A token whose score is further than this below the best adds less than e⁻⁸ to the sum of
confidences; its noise is left out of it."""


_NEGLIGIBLE = np.float32(40.0)
"""Scores further than this below the best add nothing to the sum, however many."""


class RowParams(NamedTuple):
    """The sampling parameters of each row, as arrays over rows."""

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    seed_low: NDArray[np.int64]
    seed_high: NDArray[np.int64]
    position: NDArray[np.int64]


@njit(error_model="numpy", nogil=True, cache=True)
def _draws(
    ids: NDArray[np.int32], seed_low: int, seed_high: int, position: int
) -> NDArray[np.int32]:
    draws = np.empty(ids.size, np.int32)
    for i in range(ids.size):
        word, _, _, _ = philox_njit(position, np.int64(ids[i]), 0, 0, seed_low, seed_high)
        draws[i] = word >> _SHIFT
    return draws


@njit(error_model="numpy", nogil=True, cache=True)
def _gumbel_of_draw(draw: int) -> np.float32:
    return np.float32(-math.log(-math.log((draw + 0.5) * DRAW_STEP)))


@njit(error_model="numpy", nogil=True, cache=True)
def _named(ids: NDArray[np.int32], names: NDArray[np.int32]) -> NDArray[np.int32]:
    """The target's tokens in these columns of logits."""
    if names.size == 0:
        return ids
    named = np.empty(ids.size, np.int32)
    for i in range(ids.size):
        named[i] = names[ids[i]]
    return named


@njit(error_model="numpy", nogil=True, cache=True)
def gumbel_njit(
    seed_low: int, seed_high: int, position: int, token_ids: NDArray[np.int32]
) -> NDArray[np.float32]:
    """`engine.sampling.noise.gumbel` for numba kernels."""
    draws = _draws(token_ids, seed_low, seed_high, position)
    noise = np.empty(draws.size, np.float32)
    for i in range(draws.size):
        noise[i] = _gumbel_of_draw(draws[i])
    return noise


@njit(error_model="numpy", nogil=True, cache=True)
def _insert(
    token: int, score: np.float32, tokens: NDArray[np.int32], scores: NDArray[np.float32]
) -> None:
    """Inserts a token into lists sorted by falling score, then rising id; drops the last one."""
    place = tokens.size
    while place > 0 and (
        score > scores[place - 1] or (score == scores[place - 1] and token < tokens[place - 1])
    ):
        place -= 1
        if place + 1 < tokens.size:
            tokens[place + 1] = tokens[place]
            scores[place + 1] = scores[place]
    if place < tokens.size:
        tokens[place] = token
        scores[place] = score


@njit(error_model="numpy", nogil=True, cache=True)
def _at_least(logits: NDArray[np.float32], lowest: float) -> NDArray[np.int32]:
    ids = np.empty(logits.size, np.int32)
    count = 0
    for token in range(logits.size):
        ids[count] = token
        count += logits[token] >= lowest
    return ids[:count]


@njit(error_model="numpy", nogil=True, cache=True)
def _kept(
    logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float
) -> NDArray[np.int32]:
    """The tokens that min-p, top-k and top-p keep, best first.

    Each filter keeps a prefix of the same order (falling logit, then rising id), so widening the
    range of logits from the top finds them without sorting the vocabulary.
    """
    top = np.float64(logits.max())
    lowest = top + temperature * math.log(min_p) if min_p > 0 else -math.inf
    total = 0.0
    if top_p < 1 and top_k == 0:
        for token in range(logits.size):
            if logits[token] >= lowest:
                total += math.exp((logits[token] - top) / temperature)
    # Not too near to the top: fp64 has no numbers in between, and the search would widen for long.
    reach = max(4.0 * temperature, 1e-3)
    possible = -1
    while True:
        cut = max(lowest, top - reach)
        ids = _at_least(logits, cut)
        if cut <= lowest or ids.size == logits.size:
            break
        if top_k > 0:
            enough = ids.size >= top_k
        else:
            mass = 0.0
            for token in ids:
                mass += math.exp((logits[token] - top) / temperature)
            enough = mass > top_p * total
        if enough:
            break
        if possible < 0:
            possible = _at_least(logits, _LOWEST).size
        if ids.size == possible:
            break
        reach *= 1.5
    # A stable sort leaves equal logits by rising id.
    ids = ids[np.argsort(-logits[ids], kind="mergesort")]
    if top_k > 0:
        ids = ids[:top_k]
    if top_p == 1:
        return ids
    if top_k > 0:
        for token in ids:
            total += math.exp((logits[token] - top) / temperature)
    count = 0
    before = 0.0
    while count < ids.size and (count == 0 or before < top_p * total):
        before += math.exp((logits[ids[count]] - top) / temperature)
        count += 1
    return ids[:count]


@njit(error_model="numpy", nogil=True, cache=True)
def _floor(
    logits: NDArray[np.float32],
    names: NDArray[np.int32],
    temperature: np.float32,
    seed_low: int,
    seed_high: int,
    position: int,
    width: int,
) -> np.float32:
    """A score that at least `width` tokens reach: the lowest among the tokens of best logits."""
    tokens = np.full(width, -1, np.int32)
    scores = np.full(width, _NEGATIVE_INFINITY, np.float32)
    for token in range(logits.size):
        if logits[token] > scores[width - 1]:
            _insert(token, logits[token], tokens, scores)
    if temperature > 0:
        scores += temperature * gumbel_njit(seed_low, seed_high, position, _named(tokens, names))
    return scores.min()


@njit(error_model="numpy", nogil=True, cache=True)
def perturbed_top(
    logits: NDArray[np.float32],
    names: NDArray[np.int32],
    temperature: np.float32,
    top_k: int,
    top_p: float,
    min_p: float,
    seed_low: int,
    seed_high: int,
    position: int,
    tokens: NDArray[np.int32],
    confidence: NDArray[np.float32],
) -> None:
    """Writes the best `tokens.size` tokens of a row by score, and their raw confidences.

    `logits` already include bias, min_tokens and penalties, and are not changed. `position` is
    that of the token being chosen. `names`: the target's token in each column, ascending; empty:
    the columns' own numbers. If filters keep fewer tokens, the rest are -1. An empty
    `confidence` is not computed. Raw confidence is the softmax over the scores of the kept tokens,
    without the noise of those that hardly count (CONFIDENCE_REACH).
    """
    width = tokens.size
    filtered = temperature > 0 and (top_k > 0 or top_p < 1 or min_p > 0)
    floor = _NEGATIVE_INFINITY
    if filtered:
        ids = _kept(logits, np.float64(temperature), top_k, top_p, min_p)
    else:
        floor = _floor(logits, names, temperature, seed_low, seed_high, position, width)
        ids = np.empty(logits.size, np.int32)
        count = 0
        for token in range(logits.size):
            ids[count] = token
            reaches = logits[token] + temperature * _MAX_GUMBEL >= floor
            # A grammar may leave fewer tokens than `width`, so that the floor is -inf.
            count += reaches and logits[token] > _NEGATIVE_INFINITY
        ids = ids[:count]

    tokens[:] = -1
    best = np.full(width, _NEGATIVE_INFINITY, np.float32)
    scores = logits[ids]
    named = _named(ids, names)
    draws = _draws(named, seed_low, seed_high, position) if temperature > 0 else ids
    reach = CONFIDENCE_REACH if confidence.size > 0 else np.float32(0)
    for i in range(ids.size):
        if temperature > 0:
            needed = min(best[width - 1], best[0] - reach)
            bound = scores[i] + temperature * _BIN_CEILING[draws[i] >> _BIN_BITS]
            if bound < needed:
                scores[i] = min(scores[i], bound)
                continue
            scores[i] += temperature * _gumbel_of_draw(draws[i])
        if scores[i] >= best[width - 1] and scores[i] > _NEGATIVE_INFINITY:
            _insert(named[i], scores[i], tokens, best)
    if confidence.size == 0:
        return

    total = 0.0
    for score in scores:
        total += math.exp(score - best[0])
    if not filtered:
        for logit in logits:
            # Tokens that a reduced vocabulary or a grammar leaves out are far below, and many.
            counts = logit > best[0] - _NEGLIGIBLE
            if counts and logit + temperature * _MAX_GUMBEL < floor:
                total += math.exp(logit - best[0])
    for rank in range(width):
        confidence[rank] = math.exp(best[rank] - best[0]) / total


@njit(error_model="numpy", nogil=True, cache=True)
def allow_only(
    logits: NDArray[np.float32], rows: NDArray[np.int64], words: NDArray[np.int32]
) -> None:
    """Sets the logits of the rows' tokens whose bit in `words` is 0 to -inf, in place."""
    for place in range(rows.size):
        row = logits[rows[place]]
        for token in range(row.size):
            if not (words[place, token >> 5] >> (token & 31)) & 1:
                row[token] = _NEGATIVE_INFINITY


@njit(error_model="numpy", nogil=True, cache=True)
def perturbed_top_rows(
    logits: NDArray[np.float32],
    names: NDArray[np.int32],
    params: RowParams,
    tokens: NDArray[np.int32],
    confidence: NDArray[np.float32],
) -> None:
    """`perturbed_top` for each row of `logits`."""
    for row in range(logits.shape[0]):
        perturbed_top(
            logits[row],
            names,
            params.temperature[row],
            params.top_k[row],
            params.top_p[row],
            params.min_p[row],
            params.seed_low[row],
            params.seed_high[row],
            params.position[row],
            tokens[row],
            confidence[row],
        )
