"""AdaServe's A(r): what a request must gain in this round to keep its time per output token."""

from collections.abc import Sequence
from math import inf

from policies.request import RequestView


def decoding_s(request: RequestView, now: float) -> float:
    """l of AdaServe, eq. 2: since its first token."""
    return 0.0 if request.first_token_s is None else now - request.first_token_s


def need(request: RequestView, verdict_s: float) -> float:
    """A(r) = (l + t_spec) / t_TPOT - o, where the next verdict comes at the time `verdict_s`.

    o counts the tokens behind the first one, as l counts the time behind it. -inf for a request
    without an SLO, or still without a first token: it needs nothing of decoding.
    """
    if request.slo.tpot_s is None or request.first_token_s is None:
        return -inf
    return decoding_s(request, verdict_s) / request.slo.tpot_s - (request.generated - 1)


def tightest_tpot(requests: Sequence[RequestView]) -> float:
    return min((r.slo.tpot_s for r in requests if r.slo.tpot_s is not None), default=inf)
