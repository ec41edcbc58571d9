"""Ranking prompts about the generated tasks, with the answers that a perfect predictor gives."""

import math
import random
from collections.abc import Sequence

from policies.ranking import MAX_BATCH

# A batch of one is how a single request is asked for; larger ones need telling apart.
_BATCH_SIZES = (*[1] * 12, *range(2, MAX_BATCH + 1))
LENGTH_BUCKETS = 60
_BUCKETS_PER_DOUBLING = 6


def draw_batch_size(rng: random.Random) -> int:
    return rng.choice(_BATCH_SIZES)


def rounded(tokens: int) -> int:
    """A length to about two digits' worth, at most 999."""
    step = 1 if tokens < 20 else 5 if tokens < 50 else 10
    return min(999, round(tokens / step) * step)


def stated_count(tokens: int) -> str:
    """A length as LengthOnly states it. Of three digits, so that the first one orders most."""
    return f"{rounded(tokens):03}"


def length_bucket(tokens: int) -> int:
    """A length on a logarithmic scale, an eighth per bucket."""
    return min(LENGTH_BUCKETS - 1, int(_BUCKETS_PER_DOUBLING * math.log2(tokens)))


def prefill_only_answer(lengths: Sequence[int]) -> str:
    return str(lengths.index(min(lengths)))


def rank_only_answer(lengths: Sequence[int]) -> str:
    """Dense ranks, 1 for the shortest; lengths that would be stated alike share one."""
    stated = [rounded(length) for length in lengths]
    order = sorted(set(stated))
    ranks = (f"[{position}]{order.index(count) + 1}" for position, count in enumerate(stated))
    return f"<<{','.join(ranks)}>>"


def length_only_answer(lengths: Sequence[int]) -> str:
    return ",".join(
        f"[{position}]{stated_count(length)}" for position, length in enumerate(lengths)
    )


ANSWERS = {
    "prefill_only": prefill_only_answer,
    "rank_only": rank_only_answer,
    "length_only": length_only_answer,
}
