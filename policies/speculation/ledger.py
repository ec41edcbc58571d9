"""What speculation gives or costs each request, in tokens against plain decoding.

The no-harm promise of DESIGN 4.6: over a window of its rounds, a request gains at least 0.97 of
the tokens that plain decoding would have given it in the same time. So within 32 rounds it may fall
behind by 0.96 tokens, and at once: what it gains itself comes later. Times are measured. Gains are
the expected ones: realised tokens are so noisy over a window that some request of a batch would
always be in debt, by chance alone. Where expectations are wrong, `Trust` mends them.
"""

import numpy as np
from numba import njit

from policies.protocols import Mask
from policies.rows import with_rows
from policies.speculation.forest import Floats, Ints
from policies.speculation.prefix import TimeCaps

_TRUST_PRIOR = 8.0
"""Accepted tokens that count for the confidences being right."""
_TRUST_FADE = 0.98
"""Per round: the last fifty count."""
_LEAST_TRUST, _MOST_TRUST = 0.25, 1.25


class Ledger:
    """One account per request, a row: tokens gained minus rounds of plain decoding."""

    def __init__(self, promise: float, window: int, repay: float) -> None:
        self._overdraft = (1.0 - promise) * window
        self._repay = repay
        self._rounds = np.zeros((0, window))
        """Entries of the last rounds, each over the oldest."""
        self._entries = np.zeros(0)
        """How many there were."""
        self._credit = np.zeros(0)
        self._open = np.zeros((0, 3))
        """Of the round under way: tokens beyond the target's own, the share of the forward that
        drafts cost, seconds of handling."""

    def reserve(self, rows: int) -> None:
        self._rounds = with_rows(self._rounds, rows)
        self._entries = with_rows(self._entries, rows)
        self._credit = with_rows(self._credit, rows)
        self._open = with_rows(self._open, rows)

    def expect(self, rows: Ints, gains: Floats, drafts_share: float, handling_s: float) -> None:
        """A round with drafts: `drafts_share` of its forward is theirs."""
        self._open[rows, 0] = gains
        self._open[rows, 1] = drafts_share
        self._open[rows, 2] = handling_s

    def settle(
        self,
        rows: Ints,
        seconds: Floats,
        verify_s: Floats,
        prompts_s: Floats,
        drafting_s: float,
    ) -> None:
        """The round took each `seconds`, of them `verify_s` in the forward, of that `prompts_s`
        for prompts, and so long for drafting, be it for others. One that nobody expected was
        plain."""
        entries = _entries(rows, self._open, seconds, verify_s, prompts_s, drafting_s)
        _enter(rows, entries, self._rounds, self._entries, self._credit)

    def forget(self, row: int) -> None:
        for account in (self._rounds, self._entries, self._credit, self._open):
            account[row] = 0.0

    def caps(self, rows: Ints, binds: Mask, plain_s: float) -> TimeCaps:
        """1 + g + credit + overdraft ≥ T / T_plain for each request that it binds; what it owes
        beyond that is repaid in parts, so that one bad round does not stop the whole batch."""
        allowed = self._credit[rows] + self._overdraft
        return TimeCaps(*_caps(binds, allowed, self._repay, plain_s))


class Trust:
    """How many tokens a request, a row, accepts for each that its calibrated confidences promise.

    Calibration pools a drafter's requests; this is what one request differs by.
    """

    def __init__(self) -> None:
        self._promised = np.zeros(0)
        self._accepted = np.zeros(0)
        self._open = np.zeros(0)

    def reserve(self, rows: int) -> None:
        self._promised = with_rows(self._promised, rows)
        self._accepted = with_rows(self._accepted, rows)
        self._open = with_rows(self._open, rows)

    def of(self, rows: Ints) -> Floats:
        return _trust(rows, self._promised, self._accepted)

    def promise(self, rows: Ints, tokens: Floats) -> None:
        """What the nodes that are being verified should bring."""
        self._open[rows] = tokens

    def settle(self, rows: Ints, accepted: Floats) -> None:
        _settle(rows, accepted, self._open, self._promised, self._accepted)

    def forget(self, row: int) -> None:
        for known in (self._promised, self._accepted, self._open):
            known[row] = 0.0


@njit(cache=True)
def _entries(
    rows: Ints,
    open_: Floats,
    seconds: Floats,
    verify_s: Floats,
    prompts_s: Floats,
    drafting_s: float,
) -> Floats:
    """What each request's round was worth. Closes it.

    Prompts are left out: they come as requests end, so the faster all decode, the more of them a
    round has, and they would make what drafts cost look like a smaller share of it.
    """
    entries = np.empty(len(rows))
    for number, row in enumerate(rows):
        gain, drafts_share, handling_s = open_[row]
        took_s = seconds[number] - prompts_s[number]
        plain_s = took_s - drafting_s - handling_s - drafts_share * verify_s[number]
        # A clock too coarse for the round must not make it look endless.
        slowdown = took_s / max(plain_s, 0.1 * max(took_s, 1e-9))
        entries[number] = 1.0 + gain - slowdown
        open_[row] = 0.0
    return entries


@njit(cache=True)
def _enter(rows: Ints, entries: Floats, rounds: Floats, count: Floats, credit: Floats) -> None:
    window = rounds.shape[1]
    for number, row in enumerate(rows):
        place = int(count[row]) % window
        credit[row] += entries[number] - rounds[row, place]
        rounds[row, place] = entries[number]
        count[row] += 1.0


@njit(cache=True)
def _caps(binds: Mask, allowed: Floats, repay: float, plain_s: float) -> Floats:
    slope, offset = caps = np.zeros((2, len(binds)))
    offset[:] = np.inf
    for number, tokens in enumerate(allowed):
        if binds[number]:
            slope[number] = plain_s
            offset[number] = plain_s * (tokens if tokens >= 0.0 else repay * tokens)
    return caps


@njit(cache=True)
def _trust(rows: Ints, promised: Floats, accepted: Floats) -> Floats:
    trust = (accepted[rows] + _TRUST_PRIOR) / (promised[rows] + _TRUST_PRIOR)
    return np.minimum(np.maximum(trust, _LEAST_TRUST), _MOST_TRUST)


@njit(cache=True)
def _settle(rows: Ints, tokens: Floats, open_: Floats, promised: Floats, accepted: Floats) -> None:
    for number, row in enumerate(rows):
        if open_[row] > 0.0:
            promised[row] = _TRUST_FADE * promised[row] + open_[row]
            accepted[row] = _TRUST_FADE * accepted[row] + tokens[number]
            open_[row] = 0.0
