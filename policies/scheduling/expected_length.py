"""The expected length of a request, and the order in which all schedules break ties."""

from policies.request import RequestView

_OVERRUN = 1.25
"""The factor by which a predicted length is raised whenever the output has exceeded it."""


def expected_len(request: RequestView) -> float | None:
    """Output tokens in all: the prediction, raised once the output exceeds it, at most
    `max_tokens`; None without a prediction."""
    if request.predicted_len is None:
        return None
    expected = max(1.0, request.predicted_len)
    while expected <= request.generated:
        expected *= _OVERRUN
    return min(expected, float(request.max_tokens))


def by_arrival(request: RequestView) -> tuple[float, str]:
    """First come, first served; ties are broken by name, so that the order is total."""
    return (request.arrival_s, request.name)
