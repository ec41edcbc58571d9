"""AdaServe's A(r): the tokens that a request must gain in this round to keep its TPOT."""

from collections.abc import Sequence
from math import inf, nan
from typing import NamedTuple

import numpy as np
from numba import njit

from policies.request import RequestView
from policies.speculation.forest import Floats

_PROMPT, _TPOT_S = range(2)
"""Columns of terms: prompt tokens, and the TPOT or nan."""


class TimeCaps(NamedTuple):
    """For each request, how long the round may take if it gains g: slope·(1 + g) + offset."""

    slope: Floats
    offset: Floats
    """inf: no cap."""


class BatchProgress(NamedTuple):
    """The progress of a batch's requests towards their SLOs, as arrays."""

    terms: Floats
    """The constant attributes of the requests, with a row for each."""
    generated: Floats
    """Committed output tokens."""
    first_s: Floats
    """When the first token was committed; nan: not yet."""

    @classmethod
    def of(cls, requests: Sequence[RequestView]) -> "BatchProgress":
        terms = [(one.prompt_len, one.slo.tpot_s or nan) for one in requests]
        return cls(
            np.array(terms, np.float64).reshape(-1, 2),
            np.array([request.generated for request in requests], np.float64),
            # numpy turns None into nan.
            np.array([request.first_token_s for request in requests], np.float64),
        )


# Loops instead of numpy expressions: compiled, each of these becomes hundreds of instructions and
# an array of its own, which displace a round's other code and data from the processor's caches.


@njit(cache=True)
def context_lengths(progress: BatchProgress) -> Floats:
    """Committed tokens of each request."""
    context = np.empty(len(progress.generated))
    for number in range(len(context)):
        context[number] = progress.terms[number, _PROMPT] + progress.generated[number]
    return context


@njit(cache=True)
def tpots_of(progress: BatchProgress) -> Floats:
    """The TPOT of each request, which is the time that a token is worth; 0 without a TPOT."""
    tpots_s = np.zeros(len(progress.terms))
    for number in range(len(tpots_s)):
        if not np.isnan(progress.terms[number, _TPOT_S]):
            tpots_s[number] = progress.terms[number, _TPOT_S]
    return tpots_s


@njit(cache=True)
def needs_at(progress: BatchProgress, verdict_s: float) -> Floats:
    """A(r) = (l + t_spec) / t_TPOT - o of each request, where the next verdict is at the time
    `verdict_s`. o counts the tokens after the first one, as l is the time since the first one. A
    request without a TPOT, or without its first token, has no need: -inf."""
    needs = np.empty(len(progress.terms))
    for number in range(len(needs)):
        since_s = verdict_s - progress.first_s[number]
        need = since_s / progress.terms[number, _TPOT_S] - (progress.generated[number] - 1.0)
        needs[number] = -inf if np.isnan(need) else need
    return needs


@njit(cache=True)
def slo_caps(progress: BatchProgress, since: float) -> TimeCaps:
    """The longest time T after `since` within which each request, with a gain g, keeps its TPOT:
    (l + T) / (o + 1 + g) ≤ t_TPOT (AdaServe, eq. 2)."""
    slope, offset = np.empty(len(progress.terms)), np.empty(len(progress.terms))
    for number in range(len(slope)):
        tpot_s = progress.terms[number, _TPOT_S]
        decoding_s = since - progress.first_s[number]
        allowed_s = tpot_s * (progress.generated[number] - 1.0) - decoding_s
        capped = not np.isnan(allowed_s)
        slope[number] = tpot_s if capped else 0.0
        offset[number] = allowed_s if capped else inf
    return TimeCaps(slope, offset)


def tightest_tpot(requests: Sequence[RequestView]) -> float:
    """The smallest TPOT of all requests; inf if none has one."""
    return min((r.slo.tpot_s for r in requests if r.slo.tpot_s is not None), default=inf)
