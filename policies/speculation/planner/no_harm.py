"""What speculation gives or costs each request, in tokens against plain decoding.

A request without an SLO keeps at least a share (`no_harm`) of the tokens that plain decoding would
have given it in the same time: a cap on the round's time. It may fall behind at once by what it may
lose over `window` rounds, because its own gain comes later. A request of twenty rounds is not
helped by such a cap. So the slower a request has been, the more it weighs in the objective.

Gains are expected ones: accepted tokens scatter so much that some request of a batch would always
be in debt by chance.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.protocols import Mask
from policies.rows import with_rows
from policies.speculation.forest import Floats, Ints
from policies.speculation.slo import TimeCaps

FAIRNESS_WEIGHT = 1.0
"""What the slowest requests weigh beyond the 1 of the fastest."""
_FAST = 1.3
"""Over plain decoding: a request of this speed weighs 1."""
_ROUNDS_BEFORE = 8.0
"""Plain rounds that count before a request's first: it is neither slow nor fast yet."""
_OWN_OVERHEAD = 0.25
"""How far a round's own overhead counts, rather than the usual one: single ones scatter by more
than what a request may lose. Never more than half of a forward, or less than a round without any
wait: beyond that lies a pause of the process."""
_REPAID = 0.05
"""The part of a debt that one round must repay, so that one bad round does not stop the batch."""


class Accounts(NamedTuple):
    """By row, as compiled code takes them."""

    gained: Floats
    plain: Floats
    open: Floats
    no_harm: float
    overdraft: float


class NoHarmAccounts:
    """One account for each request, a row: tokens gained, and rounds of plain decoding that would
    have fitted into the same time, both fading slowly: an old debt must not bind for ever."""

    def __init__(self, no_harm: float, window: int) -> None:
        self._no_harm = no_harm
        self._overdraft = (1.0 - no_harm) * window
        # Slow, so that a request's first `window` rounds count almost whole.
        self._fade = 1.0 - 0.5 / window
        self._gained = np.zeros(0)
        self._plain = np.zeros(0)
        self._open = np.zeros((0, 5))
        """Of the round under way: expected gain, the drafts' share of the verification, the wait
        and the overhead that are usual, and whether it drafts."""

    @property
    def accounts(self) -> Accounts:
        return Accounts(self._gained, self._plain, self._open, self._no_harm, self._overdraft)

    def reserve(self, rows: int) -> None:
        self._gained = with_rows(self._gained, rows)
        self._plain = with_rows(self._plain, rows)
        self._open = with_rows(self._open, rows)

    def forget(self, row: int) -> None:
        for account in (self._gained, self._plain, self._open):
            account[row] = 0.0

    def open_round(
        self,
        rows: Ints,
        gain: Floats | float,
        drafts_share: float,
        wait_s: float,
        overhead_s: float,
    ) -> None:
        """A round with drafts has begun, or its drafts have been chosen."""
        self._open[rows, 0] = gain
        self._open[rows, 1:] = (drafts_share, wait_s, overhead_s, 1.0)

    def close_round(
        self, rows: Ints, seconds: Floats, verify_s: Floats, prompts_s: Floats, drafting_s: float
    ) -> None:
        """The round took each request `seconds`, of them `verify_s` in the verification, of that
        `prompts_s` for prompts, and `drafting_s` in drafting, be it for others. One that was not
        opened was plain."""
        _close(rows, seconds, verify_s, prompts_s, drafting_s, self._fade, self.accounts)


# Rows are picked in compiled code: numpy takes over 1 µs to read or write those of one column.


@njit(cache=True)
def _close(
    rows: Ints,
    seconds: Floats,
    verify_s: Floats,
    prompts_s: Floats,
    drafting_s: float,
    fade: float,
    accounts: Accounts,
) -> None:
    """Prompts are left out: they come as requests end, so the faster all decode the more of them a
    round has, and the share that drafts cost would look smaller."""
    for number, row in enumerate(rows):
        gain, drafts_share, wait_s, overhead_s, drafts = accounts.open[row]
        accounts.open[row] = 0.0
        plain = 1.0
        if drafts:
            forward_s = verify_s[number] - prompts_s[number]
            own_s = seconds[number] - verify_s[number] - wait_s - drafting_s
            own_s = min(max(own_s, -wait_s), 0.5 * forward_s)
            overhead_s += _OWN_OVERHEAD * (own_s - overhead_s)
            took_s = wait_s + forward_s + drafting_s + overhead_s
            plain_s = wait_s + forward_s - drafts_share * verify_s[number]
            # A clock too coarse for the round must not make it look endless.
            plain = took_s / max(plain_s, 0.1 * max(took_s, 1e-9))
        accounts.gained[row] = fade * accounts.gained[row] + 1.0 + gain
        accounts.plain[row] = fade * accounts.plain[row] + plain


@njit(cache=True)
def weights_of(rows: Ints, bound: Mask, accounts: Accounts) -> Floats:
    """Of each request in the fair objective. They stand for the multipliers of the constraints that
    no request be slower than `no_harm` allows."""
    weights = np.ones(len(rows))
    for number, row in enumerate(rows):
        if bound[number]:
            tokens = accounts.gained[row] + _ROUNDS_BEFORE
            speed = tokens / (accounts.plain[row] + _ROUNDS_BEFORE)
            slow = (_FAST - speed) / (_FAST - accounts.no_harm)
            weights[number] += FAIRNESS_WEIGHT * min(max(slow, 0.0), 1.0)
    return weights


@njit(cache=True)
def caps_of(rows: Ints, bound: Mask, plain_s: float, accounts: Accounts) -> TimeCaps:
    """1 + g + credit + overdraft ≥ T / T_plain for each request that is bound; a debt beyond the
    overdraft is repaid in parts."""
    slope, offset = np.zeros(len(rows)), np.full(len(rows), np.inf)
    for number, row in enumerate(rows):
        if bound[number]:
            tokens = accounts.gained[row] - accounts.plain[row] + accounts.overdraft
            slope[number] = plain_s
            offset[number] = plain_s * (tokens if tokens >= 0.0 else _REPAID * tokens)
    return TimeCaps(slope, offset)
