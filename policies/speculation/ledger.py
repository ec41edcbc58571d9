"""What speculation gives or costs each request, in tokens against plain decoding.

The no-harm promise of DESIGN 4.6: over a window of its rounds, a request gains at least 0.97 of
the tokens that plain decoding would have given it in the same time. Gains are the expected ones:
realised tokens are so noisy over a window that some request of a batch would always be in debt,
by chance alone. Where expectations are wrong, `Trust` mends them.
"""

from collections import deque
from collections.abc import Sequence

from policies.request import RequestView, RoundOutcome
from policies.speculation.prefix import TimeCaps

_TRUST_PRIOR = 8.0
"""Accepted tokens that count for the confidences being right."""
_TRUST_FADE = 0.98
"""Per round: the last fifty count."""
_LEAST_TRUST, _MOST_TRUST = 0.25, 1.25


class Ledger:
    """One account per request: tokens gained minus `promise` × rounds of plain decoding."""

    def __init__(self, promise: float, window: int, repay: float) -> None:
        self._promise, self._window, self._repay = promise, window, repay
        self._rounds: dict[str, deque[float]] = {}
        self._credit: dict[str, float] = {}

    def enter(self, request: str, tokens: float, slowdown: float) -> None:
        """A round that gains `tokens` and takes `slowdown` times as long as a plain one."""
        rounds = self._rounds.setdefault(request, deque(maxlen=self._window))
        leaves = rounds[0] if len(rounds) == self._window else 0.0
        rounds.append(tokens - self._promise * slowdown)
        self._credit[request] = self.credit(request) + rounds[-1] - leaves

    def credit(self, request: str) -> float:
        """Tokens ahead of the promise; negative: owed."""
        return self._credit.get(request, 0.0)

    def forget(self, request: str) -> None:
        self._rounds.pop(request, None)
        self._credit.pop(request, None)

    def caps(self, requests: Sequence[RequestView], plain_s: float) -> TimeCaps:
        """1 + g + credit ≥ promise · T / T_plain for each request without an SLO; what it is
        owed is repaid in parts, so that one bad round does not stop the whole batch."""
        caps = TimeCaps.none(len(requests))
        per_token_s = plain_s / self._promise
        for number, request in enumerate(requests):
            if request.slo.tpot_s is None:
                credit = self._credit.get(request.name, 0.0)
                allowance = credit if credit >= 0.0 else self._repay * credit
                caps.slope[number] = per_token_s
                caps.offset[number] = per_token_s * allowance
        return caps


class Trust:
    """How many tokens a request accepts for each that its calibrated confidences promise.

    Calibration pools a drafter's requests; this is what one request differs by.
    """

    def __init__(self) -> None:
        self._promised: dict[str, float] = {}
        self._accepted: dict[str, float] = {}
        self._open: dict[str, float] = {}

    def of(self, request: str) -> float:
        promised = self._promised.get(request)
        if promised is None:
            return 1.0
        trust = (self._accepted[request] + _TRUST_PRIOR) / (promised + _TRUST_PRIOR)
        return min(max(trust, _LEAST_TRUST), _MOST_TRUST)

    def promise(self, request: str, tokens: float) -> None:
        """What the nodes that are being verified should bring."""
        self._open[request] = tokens

    def settle(self, outcome: RoundOutcome) -> None:
        name = outcome.request
        tokens = self._open.pop(name, 0.0)
        if tokens > 0.0:
            self._promised[name] = _TRUST_FADE * self._promised.get(name, 0.0) + tokens
            self._accepted[name] = _TRUST_FADE * self._accepted.get(name, 0.0) + outcome.accepted

    def forget(self, request: str) -> None:
        for known in (self._promised, self._accepted, self._open):
            known.pop(request, None)
