"""How long a request will be, and the order that every schedule falls back to."""

from policies.request import RequestView

_OVERRUN = 1.25
"""A request that outlives its predicted length is given a quarter more, and so on."""


def expected_len(request: RequestView) -> float | None:
    """Output tokens in all: the prediction, re-estimated upwards once it is outlived; None
    without one. Never above what the request may generate."""
    if request.predicted_len is None:
        return None
    expected = max(1.0, request.predicted_len)
    while expected <= request.generated:
        expected *= _OVERRUN
    return min(expected, float(request.max_tokens))


def by_arrival(request: RequestView) -> tuple[float, str]:
    """First come, first served; the name decides between equals, so that an order is total."""
    return (request.arrival_s, request.name)
