"""Reading what the model answered to a ranking prompt, and judging an order by its lengths.

An answer is text from a model that has read users' text: nothing in it is trusted. Whatever it
says, the result has one value per request, in the order in which they were asked about; a request
that the answer does not place clearly has None.
"""

import math
import re
from collections.abc import Sequence

import numpy as np

Values = list[float | None]
"""Smaller runs earlier. None: not placed, so that arrival decides."""

_RANK = re.compile(r"\[\s*(\d{1,4})\s*\]\s*[:=]?\s*()(\d+)")
# Items times tokens of each, or tokens alone; items without their tokens are no length.
_LENGTH = re.compile(r"\[\s*(\d{1,4})\s*\]\s*[:=]?\s*(?:(\d+)\s*x\s*)?(\d+)(?!\d|\s*x)")
_CUT = re.compile(r"(?:\d+\s*x\s*)?\d*\Z")
_MARKED = re.compile(r"<<(.*?)(?:>>|$)", re.DOTALL)
_LONGEST = 1_000_000
"""A length above this is a run of digits, no prediction."""


def read_ranks(answer: str, size: int, cut: bool = False) -> Values:
    """RankOnly: a rank from 1 to `size` each, ties allowed."""
    return [_within(value, size) for value in _read(_RANK, answer, size, cut)]


def read_lengths(answer: str, size: int, cut: bool = False) -> Values:
    """LengthOnly: a token count each, or items times tokens per item."""
    return [_within(value, _LONGEST) for value in _read(_LENGTH, answer, size, cut)]


def ranks_from_logits(logits: Sequence[float]) -> Values:
    """PrefillOnly: the likeliest position label is rank 1, and so on; equals share a rank."""
    placed: list[float | None] = [None if math.isnan(logit) else -logit for logit in logits]
    return competition_ranks(placed)


def competition_ranks(values: Sequence[float | None]) -> Values:
    """1 for the smallest value, equals share, and skip what they use up: 1, 2, 2, 4."""
    known = [value for value in values if value is not None]
    return [
        None if value is None else 1.0 + sum(other < value for other in known) for value in values
    ]


def _read(pair: re.Pattern[str], answer: str, size: int, cut: bool) -> list[int | None]:
    """By `[position]value` pairs, wherever they stand in prose; where there is none, by a bare
    list of exactly `size` numbers. A position with two different values has none.

    `cut`: the answer ran into its token cap, so that a number which ends it may be half of one.
    """
    text = _CUT.sub("", answer, count=1) if cut else answer
    pairs = pair.findall(text)
    if not pairs:
        return _read_bare(text, size)
    said: list[set[int]] = [set() for _ in range(size)]
    for position, items, value in pairs:
        if int(position) < size:
            said[int(position)].add(_number(items or "1") * _number(value))
    return [values.pop() if len(values) == 1 else None for values in said]


def _read_bare(text: str, size: int) -> list[int | None]:
    """The paper's own format: `<<r1,r2,...>>`, or a line of numbers."""
    marked = _MARKED.search(text)
    numbers = re.findall(r"\d+", marked.group(1) if marked else text)
    if len(numbers) != size:
        return [None] * size
    return [_number(number) for number in numbers]


def _number(digits: str) -> int:
    """Of at most as many digits as matter: converting a run of thousands would raise."""
    return int(digits.lstrip("0")[: len(str(_LONGEST)) + 1] or "0")


def _within(value: int | None, largest: int) -> float | None:
    return float(value) if value is not None and 1 <= value <= largest else None


def gold_ranks(lengths: Sequence[float], tie: float = 0.1) -> list[int]:
    """Section 3.4: competition ranks of the true lengths, near-equal neighbours tied (eq. 2-4).

    `tie` is the paper's α, whose value it does not give. Neighbours are compared in sorted
    order, so a chain of small differences ties its ends as well.
    """
    ranks = [0] * len(lengths)
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    for place, index in enumerate(order):
        ranks[index] = place + 1
        if place == 0:
            continue
        shorter = lengths[order[place - 1]]
        if lengths[index] - shorter <= tie * (shorter + lengths[index]) / 2:
            ranks[index] = ranks[order[place - 1]]
    return ranks


def tau_b(ranks: Sequence[float], others: Sequence[float]) -> float:
    """Kendall's τ-b (eq. 1); nan where one side ties everything, and so orders nothing."""
    pairs = np.triu_indices(len(ranks), k=1)
    signs = np.sign(np.subtract.outer(np.asarray(ranks), np.asarray(ranks)))[pairs]
    other_signs = np.sign(np.subtract.outer(np.asarray(others), np.asarray(others)))[pairs]
    untied = float(np.count_nonzero(signs)) * float(np.count_nonzero(other_signs))
    return float(signs @ other_signs) / math.sqrt(untied) if untied else math.nan
