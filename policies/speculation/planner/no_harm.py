"""The no-harm bound: what speculation has gained or cost each request, in tokens, against plain
decoding.

A request without an SLO keeps at least the share `no_harm` of the tokens that plain decoding would
have given it in the same time, which is enforced as a cap on the round's time. It may fall behind
at once by as much as it may lose over `window` rounds, because its own gain often comes later. So
the cap does not protect a request of twenty rounds; for these, a request weighs more in the
objective the slower it has been.

Gains are expected ones. Accepted tokens scatter so much that in every batch some request would be
in debt by chance.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.protocols import Mask
from policies.rows import with_rows
from policies.speculation.forest import Floats, Ints
from policies.speculation.slo import TimeCaps

FAIRNESS_WEIGHT = 1.0
"""Additional fairness weight of the slowest requests; the fastest weigh 1."""
_FAST = 1.3
"""Speed relative to plain decoding from which on a request weighs 1."""
_ROUNDS_BEFORE = 8.0
"""Prior in plain rounds, so that a new request counts as neither slow nor fast."""
_REPAID = 0.05
"""The part of a debt that one round must repay; small, so that one bad round does not stop all
drafts."""


class Accounts(NamedTuple):
    """Arrays with a row for each request, for compiled code."""

    gained: Floats
    plain: Floats
    open: Floats
    no_harm: float
    overdraft: float


class NoHarmAccounts:
    """One account for each request, a row: tokens gained, and the rounds of plain decoding that
    would have fitted into the same time. Both decay slowly, so that an old debt does not bind
    forever."""

    def __init__(self, no_harm: float, window: int) -> None:
        self._no_harm = no_harm
        self._overdraft = (1.0 - no_harm) * window
        # Slow decay, so that a request's first `window` rounds count almost fully.
        self._fade = 1.0 - 0.5 / window
        self._gained = np.zeros(0)
        self._plain = np.zeros(0)
        self._open = np.zeros((0, 5))
        """For the current round: expected gain, the drafts' share of the verification time, the
        usual wait, the usual overhead, and whether the request is in a round with drafts."""

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
        """Records a round with drafts, when it begins and again when its nodes have been
        selected."""
        self._open[rows, 0] = gain
        self._open[rows, 1:] = (drafts_share, wait_s, overhead_s, 1.0)

    def close_round(
        self, rows: Ints, verify_s: Floats, prompts_s: Floats, drafting_s: float
    ) -> None:
        """Updates the accounts after a round whose verification took `verify_s` for each request,
        of which `prompts_s` for prompts, and whose drafting took `drafting_s`, including that for
        other requests. A round without `open_round` counts as plain."""
        _close(rows, verify_s, prompts_s, drafting_s, self._fade, self.accounts)


# Rows are accessed in compiled code, because numpy takes over 1 µs to read or write rows of one
# column.


@njit(cache=True)
def _close(
    rows: Ints,
    verify_s: Floats,
    prompts_s: Floats,
    drafting_s: float,
    fade: float,
    accounts: Accounts,
) -> None:
    """Waits and overhead are the usual ones, because single measurements scatter by more than a
    request may lose. Prompts are left out: new requests arrive as others end, so the faster all
    requests decode, the more prompts a round has, and the relative cost of drafts would look
    smaller."""
    for number, row in enumerate(rows):
        gain, drafts_share, wait_s, overhead_s, drafts = accounts.open[row]
        accounts.open[row] = 0.0
        plain = 1.0
        if drafts:
            forward_s = verify_s[number] - prompts_s[number]
            took_s = wait_s + forward_s + drafting_s + overhead_s
            plain_s = wait_s + forward_s - drafts_share * verify_s[number]
            # A lower bound on plain_s, for clocks that are too coarse for the round.
            plain = took_s / max(plain_s, 0.1 * max(took_s, 1e-9))
        accounts.gained[row] = fade * accounts.gained[row] + 1.0 + gain
        accounts.plain[row] = fade * accounts.plain[row] + plain


@njit(cache=True)
def weights_of(rows: Ints, bound: Mask, accounts: Accounts) -> Floats:
    """Fairness weight of each request in the objective. Weights act like the multipliers of the
    constraint that no request be slower than `no_harm` allows."""
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
    """The cap 1 + g + credit + overdraft ≥ T / T_plain for each request in `bound`; a debt beyond
    the overdraft is repaid in parts."""
    slope, offset = np.zeros(len(rows)), np.full(len(rows), np.inf)
    for number, row in enumerate(rows):
        if bound[number]:
            tokens = accounts.gained[row] - accounts.plain[row] + accounts.overdraft
            slope[number] = plain_s
            offset[number] = plain_s * (tokens if tokens >= 0.0 else _REPAID * tokens)
    return TimeCaps(slope, offset)
