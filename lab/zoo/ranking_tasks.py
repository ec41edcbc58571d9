"""Answers of a perfect predictor to ranking prompts about the generated tasks."""

import random
from collections.abc import Sequence

from policies.scheduling.rank_prompts import MAX_BATCH

# A single request is ranked in a batch of one. In larger ones requests must be distinguished, which
# is learned on the small ones, so these are more frequent.
_BATCH_SIZES = (
    *[1] * 6,
    *[2] * 5,
    *[3] * 4,
    *[4] * 3,
    *[5] * 3,
    *[6] * 3,
    *range(7, MAX_BATCH + 1),
)


def draw_batch_size(rng: random.Random) -> int:
    return rng.choice(_BATCH_SIZES)


def rounded(tokens: int) -> int:
    """A length rounded to about two significant digits, at most 999."""
    step = 1 if tokens < 20 else 5 if tokens < 50 else 10
    return min(999, round(tokens / step) * step)


def stated_count(tokens: int) -> str:
    """A number of tokens as LengthOnly states it: with three digits, so that the first digit
    matters most for the order."""
    return f"{rounded(tokens):03}"


def prefill_only_answer(lengths: Sequence[int]) -> str:
    return str(lengths.index(min(lengths)))


def rank_only_answer(lengths: Sequence[int]) -> str:
    """Dense ranks, 1 for the shortest; lengths that round to the same value share a rank."""
    stated = [rounded(length) for length in lengths]
    order = sorted(set(stated))
    ranks = (f"[{position}]{order.index(count) + 1}" for position, count in enumerate(stated))
    return f"<<{','.join(ranks)}>>"


def length_only_answer(lengths: Sequence[int], items: Sequence[int]) -> str:
    """Number of items times tokens per item. The number of items is written as in the request, so
    that it can be copied digit by digit."""
    return ",".join(
        f"[{position}]{count}x{stated_count(round(length / count))}"
        for position, (length, count) in enumerate(zip(lengths, items, strict=True))
    )


def numbers_answer(numbers: Sequence[int]) -> str:
    return ",".join(f"[{position}]{number}" for position, number in enumerate(numbers))
