"""How long a round waits for a drafter before it goes on without it, and how long any host may take
before it counts as lost."""

_FACTOR = 3.0
"""A call may take this many times as long as one of its size usually takes."""
_SHARE = 0.05
"""The fraction of the time that rounds may spend on calls of one lane that turn out late."""
_SAVED_CALLS = 2
"""Late calls, of the shortest length, that may follow one another."""
_STALL_FACTOR = 4.0
"""A host counts as lost when it takes so many times what the slowest of the last calls would."""
_FIRST_RATIO = 5.0
"""How many times slower than predicted calls may be before there has been one."""
_RATIO_MEMORY = 0.99
"""What a slow call counts for after each further one."""
_SHORT_S = 0.1
"""Transport and handling take most of the time of calls that are predicted to be shorter."""


class StallTimeout:
    """How long a call may take before its host counts as lost: a multiple of the largest recent
    ratio of measured to predicted time, so that it is short on a machine that keeps its pace."""

    def __init__(self) -> None:
        self._largest_ratio = _FIRST_RATIO

    def allowed_s(self, predicted_s: float) -> float:
        """How long a call may take before its host counts as lost."""
        return _STALL_FACTOR * self._largest_ratio * predicted_s

    def observe(self, predicted_s: float, seconds: float) -> None:
        """A call was answered after so long."""
        ratio = seconds / max(predicted_s, _SHORT_S)
        self._largest_ratio = max(1.0, ratio, _RATIO_MEMORY * self._largest_ratio)


class LateCallBudget:
    """How long a round waits for one lane. A lane that is late again and again gets no calls for a
    while, so that waiting for it takes a bounded share of the time."""

    def __init__(self, least_s: float) -> None:
        """`least_s`: calls that take no longer are never too late."""
        self._least_s = least_s
        self._most_s = _SAVED_CALLS * least_s
        self._left_s = self._most_s
        """Time that late calls may still take; it grows by _SHARE per second."""
        self._at_s = 0.0

    def wait_s(self, usual_s: float) -> float:
        """How long to wait for a call that usually takes `usual_s`."""
        return max(self._least_s, _FACTOR * usual_s)

    def record(self, seconds: float, now: float) -> None:
        """A round has waited so long for a call that was late."""
        self._left_s = self._saved(now) - seconds
        self._at_s = now

    def allows_a_call(self, now: float) -> bool:
        """Whether a round may use the lane now."""
        return self._saved(now) > 0.0

    def _saved(self, now: float) -> float:
        return min(self._left_s + _SHARE * (now - self._at_s), self._most_s)
