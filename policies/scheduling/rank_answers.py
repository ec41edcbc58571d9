"""Parses the model's answers to ranking prompts.

An answer is untrusted, since the model has read users' text. Whatever it contains, the result has
one value per request in the order of the prompt, which is None where the answer gives no clear one.
"""

import math
import re
from collections.abc import Sequence

Values = list[float | None]
"""By position in the prompt; smaller values run earlier. None: without a value, so that arrival
decides."""

_RANK = re.compile(r"\[\s*(\d{1,4})\s*\]\s*[:=]?\s*()(\d+)")
# Items times tokens per item, or tokens alone; items without a number of tokens do not match.
_LENGTH = re.compile(r"\[\s*(\d{1,4})\s*\]\s*[:=]?\s*(?:(\d+)\s*x\s*)?(\d+)(?!\d|\s*x)")
_CUT = re.compile(r"(?:\d+\s*x\s*)?\d*\Z")
_MARKED = re.compile(r"<<(.*?)(?:>>|$)", re.DOTALL)
_LONGEST = 1_000_000
"""A larger number is not taken for a length."""


def read_ranks(answer: str, size: int, cut: bool = False) -> Values:
    """RankOnly: a rank from 1 to `size` for each request; ties are allowed."""
    return [_within(value, size) for value in _read(_RANK, answer, size, cut)]


def read_lengths(answer: str, size: int, cut: bool = False) -> Values:
    """LengthOnly: for each request a token count, or items times tokens per item."""
    return [_within(value, _LONGEST) for value in _read(_LENGTH, answer, size, cut)]


def ranks_from_logits(logits: Sequence[float]) -> Values:
    """PrefillOnly: rank 1 for the likeliest position label, and so on; equal logits tie."""
    values: list[float | None] = [None if math.isnan(logit) else -logit for logit in logits]
    return competition_ranks(values)


def competition_ranks(values: Sequence[float | None]) -> Values:
    """1 for the smallest value; equal values share a rank and use up as many: 1, 2, 2, 4."""
    present = [value for value in values if value is not None]
    return [
        None if value is None else 1.0 + sum(other < value for other in present) for value in values
    ]


def _read(pair: re.Pattern[str], answer: str, size: int, cut: bool) -> list[int | None]:
    """From `[position]value` pairs anywhere in the text; if there is none, from a bare list of
    exactly `size` numbers. A position with two different values gets None.

    `cut`: the answer was cut at its token limit, so a number at its end may be incomplete.
    """
    text = _CUT.sub("", answer, count=1) if cut else answer
    pairs = pair.findall(text)
    if not pairs:
        return _read_bare(text, size)
    values_at: list[set[int]] = [set() for _ in range(size)]
    for position, items, value in pairs:
        if int(position) < size:
            values_at[int(position)].add(_number(items or "1") * _number(value))
    return [values.pop() if len(values) == 1 else None for values in values_at]


def _read_bare(text: str, size: int) -> list[int | None]:
    """The paper's own format: `<<r1,r2,...>>`, or a line of numbers."""
    marked = _MARKED.search(text)
    numbers = re.findall(r"\d+", marked.group(1) if marked else text)
    if len(numbers) != size:
        return [None] * size
    return [_number(number) for number in numbers]


def _number(digits: str) -> int:
    """The number, with only as many digits as matter: int() raises on thousands of digits."""
    return int(digits.lstrip("0")[: len(str(_LONGEST)) + 1] or "0")


def _within(value: int | None, largest: int) -> float | None:
    return float(value) if value is not None and 1 <= value <= largest else None
