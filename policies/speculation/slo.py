"""AdaServe's A(r): what a request must gain in this round to keep its time per output token."""

from collections.abc import Sequence
from math import inf, nan
from typing import NamedTuple

import numpy as np
from numba import njit

from policies.protocols import Mask
from policies.request import RequestView
from policies.speculation.forest import Floats
from policies.speculation.planner.best_prefix import TimeCaps

_PROMPT, _MOST, _TPOT_S = range(3)
"""Columns of terms: tokens of the prompt, tokens that may be generated, and what each of them was
promised to take; nan: nothing was."""


def slo_terms(requests: Sequence[RequestView]) -> Floats:
    """What a request comes with, a row for each, which stays as it is."""
    terms = [(one.prompt_len, one.max_tokens, one.slo.tpot_s or nan) for one in requests]
    return np.array(terms, np.float64).reshape(-1, 3)


class SloProgress(NamedTuple):
    """How far the requests of a batch have come, and what they were promised, as arrays."""

    terms: Floats
    """Rows of `slo_terms`."""
    generated: Floats
    first_s: Floats
    """When the first token came; nan: not yet."""

    @classmethod
    def of(cls, requests: Sequence[RequestView], terms: Floats) -> "SloProgress":
        return cls(
            terms,
            np.array([request.generated for request in requests], np.float64),
            # numpy makes nan of None.
            np.array([request.first_token_s for request in requests], np.float64),
        )

    def needs(self, verdict_s: float) -> Floats:
        """A(r) = (l + t_spec) / t_TPOT - o, where the next verdict comes at the time `verdict_s`.

        o counts the tokens behind the first one, as l counts the time behind it. -inf for a
        request without an SLO, or still without a first token: it needs nothing of decoding.
        """
        return needs_at(self, verdict_s)


# Loops where numpy's expressions would do: compiled, each of those becomes hundreds of instructions
# and an array of its own, which push everything else of a round out of the processor's caches.


@njit(cache=True)
def context_lengths(standing: SloProgress) -> Floats:
    """Committed tokens."""
    context = np.empty(len(standing.generated))
    for number in range(len(context)):
        context[number] = standing.terms[number, _PROMPT] + standing.generated[number]
    return context


@njit(cache=True)
def draft_tokens_left_at(standing: SloProgress, number: int) -> float:
    """Draft tokens that one's output has room for, beside the target's own."""
    return max(standing.terms[number, _MOST] - standing.generated[number] - 1.0, 0.0)


@njit(cache=True)
def tpot_or_zero(standing: SloProgress, number: int) -> float:
    """The TPOT, or 0: what a token sooner is worth."""
    tpot_s = standing.terms[number, _TPOT_S]
    return 0.0 if np.isnan(tpot_s) else tpot_s


@njit(cache=True)
def without_tpot(standing: SloProgress) -> Mask:
    nothing = np.empty(len(standing.terms), np.bool_)
    for number in range(len(nothing)):
        nothing[number] = np.isnan(standing.terms[number, _TPOT_S])
    return nothing


@njit(cache=True)
def need_at(standing: SloProgress, number: int, verdict_s: float) -> float:
    since_s = verdict_s - standing.first_s[number]
    need = since_s / standing.terms[number, _TPOT_S] - (standing.generated[number] - 1.0)
    return -inf if np.isnan(need) else need


@njit(cache=True)
def needs_at(standing: SloProgress, verdict_s: float) -> Floats:
    needs = np.empty(len(standing.terms))
    for number in range(len(needs)):
        needs[number] = need_at(standing, number, verdict_s)
    return needs


@njit(cache=True)
def slo_cap(standing: SloProgress, number: int, since: float) -> tuple[float, float]:
    """(l + T) / (o + 1 + g) ≤ t_TPOT (AdaServe, eq. 2), T counted from `since`: slope and offset
    of one's cap."""
    tpot_s = standing.terms[number, _TPOT_S]
    decoding_s = since - standing.first_s[number]
    allowed_s = tpot_s * (standing.generated[number] - 1.0) - decoding_s
    return (0.0, inf) if np.isnan(allowed_s) else (tpot_s, allowed_s)


@njit(cache=True)
def slo_caps(standing: SloProgress, since: float) -> TimeCaps:
    slope, offset = np.empty(len(standing.terms)), np.empty(len(standing.terms))
    for number in range(len(slope)):
        slope[number], offset[number] = slo_cap(standing, number, since)
    return TimeCaps(slope, offset)


def tightest_tpot(requests: Sequence[RequestView]) -> float:
    return min((r.slo.tpot_s for r in requests if r.slo.tpot_s is not None), default=inf)
