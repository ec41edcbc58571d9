"""AdaServe's A(r): what a request must gain in this round to keep its time per output token."""

from collections.abc import Sequence
from math import inf, nan
from typing import NamedTuple

import numpy as np
from numba import njit

from policies.request import RequestView
from policies.speculation.forest import Floats
from policies.speculation.prefix import TimeCaps


class Standing(NamedTuple):
    """How far the requests of a batch have come, and what they were promised, as arrays."""

    prompt: Floats
    generated: Floats
    most: Floats
    """That may be generated."""
    tpot_s: Floats
    """nan: promised nothing."""
    first_s: Floats
    """When the first token came; nan: not yet."""

    @classmethod
    def of(cls, requests: Sequence[RequestView]) -> "Standing":
        return cls(
            prompt=np.array([request.prompt_len for request in requests], np.float64),
            generated=np.array([request.generated for request in requests], np.float64),
            most=np.array([request.max_tokens for request in requests], np.float64),
            tpot_s=np.array([request.slo.tpot_s or nan for request in requests], np.float64),
            # numpy makes nan of None.
            first_s=np.array([request.first_token_s for request in requests], np.float64),
        )

    def needs(self, verdict_s: float) -> Floats:
        """A(r) = (l + t_spec) / t_TPOT - o, where the next verdict comes at the time `verdict_s`.

        o counts the tokens behind the first one, as l counts the time behind it. -inf for a
        request without an SLO, or still without a first token: it needs nothing of decoding.
        """
        return needs_at(self, verdict_s)


@njit(cache=True)
def context_of(standing: Standing) -> Floats:
    """Committed tokens."""
    return standing.prompt + standing.generated


@njit(cache=True)
def left_of(standing: Standing) -> Floats:
    """Draft tokens that each output has room for, beside the target's own."""
    return np.maximum(standing.most - standing.generated - 1.0, 0.0)


@njit(cache=True)
def token_s_of(standing: Standing) -> Floats:
    """The TPOT, or 0: what a token sooner is worth."""
    return np.where(np.isnan(standing.tpot_s), 0.0, standing.tpot_s)


@njit(cache=True)
def needs_at(standing: Standing, verdict_s: float) -> Floats:
    needs = (verdict_s - standing.first_s) / standing.tpot_s - (standing.generated - 1.0)
    return np.where(np.isnan(needs), -inf, needs)


@njit(cache=True)
def slo_caps(standing: Standing, since: float) -> TimeCaps:
    """(l + T) / (o + 1 + g) ≤ t_TPOT (AdaServe, eq. 2), T counted from `since`."""
    decoding_s = since - standing.first_s
    allowed_s = standing.tpot_s * (standing.generated - 1.0) - decoding_s
    binds = ~np.isnan(allowed_s)
    return TimeCaps(np.where(binds, standing.tpot_s, 0.0), np.where(binds, allowed_s, inf))


def tightest_tpot(requests: Sequence[RequestView]) -> float:
    return min((r.slo.tpot_s for r in requests if r.slo.tpot_s is not None), default=inf)
