"""What speculation gives or costs each request, in tokens against plain decoding.

The no-harm promise of DESIGN 4.6, twice. Over a window of its rounds, a request gains at least
0.97 of the tokens that plain decoding would have given it in the same time: within 128 rounds it
may fall behind by 3.84 tokens, and at once, for what it gains itself comes later. To a request that
ends after twenty rounds that is no promise. So the slower a request has been until now, the more it
weighs in the objective: its own drafts come first, and those of others must pay for the time that
they take from it. How much more is learned from requests that have ended, by how many of them were
given less than 0.97. Times are measured, but for most of handling, which is the usual one. Gains
are the expected ones: realised tokens are so noisy over a window that some request of a batch would
always be in debt, by chance alone. Where expectations are wrong, `Trust` mends them.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.protocols import Mask
from policies.rows import with_rows
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.best_prefix import TimeCaps

_WELL_OFF = 1.3
"""Who has this speed, over plain decoding's, weighs as little as can be."""
_ROUNDS_BEFORE = 8.0
"""That count as plain ones before a request's first: it is neither slow nor fast yet."""
_FIRST_CARE, _LEAST_CARE, _MOST_CARE = 2.0, -1.0, 16.0
"""What the slowest weigh beyond the well-off's 1. Below 0 all weigh the same, and the objective
turns from proportional fairness to throughput."""
_CARE_STEP = 0.1
"""By how much of itself one request's end may raise the care, `_CARE_SCALE` added to it."""
_CARE_SCALE = 8.0
_OVERDUE = 1.5
"""A bad end is, after so many times as many good ones as there should be to each."""
_HASTE = 5.0
"""How much faster the care then falls, for each such number more: a few slow rounds, with all
requests of a batch in them, can raise it far at once."""
_FASTEST_FALL = 0.05
_PRICE_MEMORY = 0.05
"""Of the running mean of what fairness costs: the last twenty rounds that were priced count."""
_MOST_HANDLING = 0.5
"""Of a forward: what one round can show of time that nothing explains."""
_OWN_HANDLING = 0.25
"""How far a round's own handling is taken for what it cost, rather than the usual one. Where waits
scatter, a request of twenty rounds is soon 3% off by chance alone, and such ends would raise the
care although nobody is harmed."""
_FEWEST_ROUNDS = 4.0
"""Of a request, that say how it fared."""
_EASE = 0.35
"""Of what may be owed: who owes less is not near its line."""
_TRUST_PRIOR = 8.0
"""Accepted tokens that count for the confidences being right."""
_TRUST_FADE = 0.98
"""Per round: the last fifty count."""
_LEAST_TRUST, _MOST_TRUST = 0.25, 1.25


class Accounts(NamedTuple):
    """What the ledger knows, by row, as compiled code takes it."""

    whole: Floats
    credit: Floats
    open: Floats
    promise: float
    overdraft: float
    repay: float
    care: float
    too_dear: bool
    """To keep the promise, even with the least care."""


class NoHarmAccounts:
    """One account per request, a row: tokens gained minus rounds of plain decoding."""

    def __init__(
        self, promise: float, window: int, repay: float, exceptions: float, most_price: float
    ) -> None:
        """`exceptions`: the share of requests that may end below the promise; `most_price`: the
        share of all tokens that it may cost to have no more of them."""
        self._promise = promise
        self._overdraft = (1.0 - promise) * window
        self._repay = repay
        self._exceptions = exceptions
        self._most_price = most_price
        self._price = 0.0
        """A running mean."""
        self.care = _FIRST_CARE
        """What the slowest requests weigh in the fair objective, beyond what the others do."""
        self._good_ends = 0
        """Of requests, since the last bad one."""
        self._rounds = np.zeros((0, window))
        """Entries of the last rounds, each over the oldest."""
        self._entries = np.zeros(0)
        """How many there were."""
        self._credit = np.zeros(0)
        self._whole = np.zeros((0, 3))
        """Since each request's beginning: tokens, rounds of plain decoding in the same time; and
        whether it was given the promise."""
        self._open = np.zeros((0, 5))
        """Of the round under way: tokens beyond the target's own, the share of the forward that
        drafts cost, seconds that it would have waited anyway, those that handling usually takes;
        and whether any of this was said."""

    def reserve(self, rows: int) -> None:
        self._rounds = with_rows(self._rounds, rows)
        self._entries = with_rows(self._entries, rows)
        self._credit = with_rows(self._credit, rows)
        self._whole = with_rows(self._whole, rows)
        self._open = with_rows(self._open, rows)

    def expect_nothing(self, rows: Ints, waiting_s: float, handling_s: float) -> None:
        """As `expect`, before it is known what the drafts promise: they may turn out empty, and
        the round has been held up even so."""
        self._open[rows] = (0.0, 0.0, waiting_s, handling_s, 1.0)

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
        _close(
            rows,
            seconds,
            verify_s,
            prompts_s,
            drafting_s,
            self._open,
            self._whole,
            self._rounds,
            self._entries,
            self._credit,
        )

    def at_ease(self, rows: Ints) -> bool:
        """A few rounds would bring nobody to its line."""
        return bool((self._credit[rows] > -_EASE * self._overdraft).all())

    def learn_price(self, price: float) -> None:
        """The share of tokens by which the throughput objective would have been ahead in a round,
        by what was expected of both."""
        self._price += _PRICE_MEMORY * (price - self._price)

    def forget(self, row: int) -> None:
        tokens, plain, promised = self._whole[row].tolist()
        if promised and plain >= _FEWEST_ROUNDS:
            self._learn_from(tokens / plain)
        for account in (self._rounds, self._entries, self._credit, self._whole, self._open):
            account[row] = 0.0

    def _learn_from(self, speed: float) -> None:
        """A request has ended, with this speed over plain decoding's. Stochastic approximation: the
        care settles where the share of those below the promise is `exceptions`, or, for its falls
        hasten at times, somewhat more; or else where the price is the most that may be paid."""
        scaled = self.care + _CARE_SCALE
        if self._price > self._most_price:
            self._good_ends = 0
            self.care -= scaled * _FASTEST_FALL
        elif speed < self._promise:
            self._good_ends = 0
            self.care += scaled * _CARE_STEP * (1.0 - self._exceptions)
        else:
            self._good_ends += 1
            overdue = max(0.0, self._exceptions * self._good_ends - _OVERDUE)
            fall = _CARE_STEP * self._exceptions * (1.0 + _HASTE * overdue)
            self.care -= scaled * min(fall, _FASTEST_FALL)
        self.care = min(max(self.care, _LEAST_CARE), _MOST_CARE)

    @property
    def accounts(self) -> Accounts:
        return Accounts(
            self._whole,
            self._credit,
            self._open,
            self._promise,
            self._overdraft,
            self._repay,
            self.care,
            self.care <= _LEAST_CARE and self._price > self._most_price,
        )


class Trusted(NamedTuple):
    """What is known of it, by row, as compiled code takes it."""

    promised: Floats
    accepted: Floats
    open: Floats


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

    @property
    def trusted(self) -> Trusted:
        return Trusted(self._promised, self._accepted, self._open)

    def settle(self, rows: Ints, accepted: Floats) -> None:
        _settle(rows, accepted, self._open, self._promised, self._accepted)

    def forget(self, row: int) -> None:
        for known in (self._promised, self._accepted, self._open):
            known[row] = 0.0


# Rows are picked in compiled code: numpy takes over 1 µs to read or write those of one column.


@njit(cache=True)
def expect(
    rows: Ints,
    gains: Floats,
    drafts_share: float,
    waiting_s: float,
    handling_s: float,
    open_: Floats,
) -> None:
    """A round with drafts: `drafts_share` of its forward, prompts included, is theirs.
    `waiting_s`: what plain rounds take besides their forward; `handling_s`: rounds with drafts
    besides drafting."""
    for number, row in enumerate(rows):
        open_[row, 0] = gains[number]
        open_[row, 1] = drafts_share
        open_[row, 2] = waiting_s
        open_[row, 3] = handling_s
        open_[row, 4] = 1.0


@njit(cache=True)
def _close(
    rows: Ints,
    seconds: Floats,
    verify_s: Floats,
    prompts_s: Floats,
    drafting_s: float,
    open_: Floats,
    whole: Floats,
    rounds: Floats,
    count: Floats,
    credit: Floats,
) -> None:
    entries = _entries(rows, open_, seconds, verify_s, prompts_s, drafting_s)
    _enter(rows, entries, whole, rounds, count, credit)


@njit(cache=True)
def _entries(
    rows: Ints,
    open_: Floats,
    seconds: Floats,
    verify_s: Floats,
    prompts_s: Floats,
    drafting_s: float,
) -> Floats:
    """What each request's round brought it, and how many plain ones fit into its time: two rows.
    Closes it.

    Prompts are left out: they come as requests end, so the faster all decode, the more of them a
    round has, and they would make what drafts cost look like a smaller share of it.
    """
    tokens, plain = entries = np.ones((2, len(rows)))
    for number, row in enumerate(rows):
        gain, drafts_share, waiting_s, usual_s, drafted = open_[row]
        open_[row] = 0.0
        if drafted == 0.0:
            continue
        tokens[number] += gain
        forward_s = verify_s[number] - prompts_s[number]
        plain_s = waiting_s + forward_s - drafts_share * verify_s[number]
        # What nothing explains is the drafts' as well, but for pauses of the whole process. Waits
        # were the usual ones; who waited less gets it back, or noise alone would make debts.
        handling_s = seconds[number] - verify_s[number] - waiting_s - drafting_s
        handling_s = min(max(handling_s, -waiting_s), _MOST_HANDLING * forward_s)
        handling_s = usual_s + _OWN_HANDLING * (handling_s - usual_s)
        took_s = waiting_s + forward_s + drafting_s + handling_s
        # A clock too coarse for the round must not make it look endless.
        plain[number] = took_s / max(plain_s, 0.1 * max(took_s, 1e-9))
    return entries


@njit(cache=True)
def _enter(
    rows: Ints, entries: Floats, whole: Floats, rounds: Floats, count: Floats, credit: Floats
) -> None:
    window = rounds.shape[1]
    for number, row in enumerate(rows):
        tokens, plain = entries[0, number], entries[1, number]
        whole[row, 0] += tokens
        whole[row, 1] += plain
        place = int(count[row]) % window
        credit[row] += tokens - plain - rounds[row, place]
        rounds[row, place] = tokens - plain
        count[row] += 1.0


@njit(cache=True)
def weights_of(rows: Ints, promised: Mask, accounts: Accounts) -> Floats:
    """Of each request in the fair objective: from 1, for the well-off and those who are promised
    nothing, to 1 + care at the promised speed and below. They stand for the multipliers of the
    constraints that nobody be slower than promised."""
    whole, promise = accounts.whole, accounts.promise
    weights = np.ones(len(rows))
    for number, row in enumerate(rows):
        if promised[number]:
            speed = (whole[row, 0] + _ROUNDS_BEFORE) / (whole[row, 1] + _ROUNDS_BEFORE)
            slow = (_WELL_OFF - speed) / (_WELL_OFF - promise)
            weights[number] += max(accounts.care, 0.0) * min(max(slow, 0.0), 1.0)
    return weights


@njit(cache=True)
def power_of(fair: bool, accounts: Accounts) -> float:
    """Of the objective (objective.py): as far from proportional fairness as it may be."""
    return min(max(-accounts.care, 0.0), 1.0) if fair else 1.0


@njit(cache=True)
def caps_of(rows: Ints, binds: Mask, plain_s: float, accounts: Accounts) -> TimeCaps:
    """1 + g + credit + overdraft ≥ T / T_plain for each request that it binds; what it owes
    beyond that is repaid in parts, so that one bad round does not stop the whole batch."""
    slope, offset = np.zeros(len(rows)), np.full(len(rows), np.inf)
    for number, row in enumerate(rows):
        accounts.whole[row, 2] = 1.0 if binds[number] else 0.0
        if binds[number]:
            tokens = accounts.credit[row] + accounts.overdraft
            if accounts.too_dear:
                continue
            slope[number] = plain_s
            offset[number] = plain_s * (tokens if tokens >= 0.0 else accounts.repay * tokens)
    return TimeCaps(slope, offset)


@njit(cache=True)
def trust_of(rows: Ints, trusted: Trusted) -> Floats:
    trust = np.empty(len(rows))
    for number, row in enumerate(rows):
        told = (trusted.accepted[row] + _TRUST_PRIOR) / (trusted.promised[row] + _TRUST_PRIOR)
        trust[number] = min(max(told, _LEAST_TRUST), _MOST_TRUST)
    return trust


@njit(cache=True)
def _settle(rows: Ints, tokens: Floats, open_: Floats, promised: Floats, accepted: Floats) -> None:
    for number, row in enumerate(rows):
        if open_[row] > 0.0:
            promised[row] = _TRUST_FADE * promised[row] + open_[row]
            accepted[row] = _TRUST_FADE * accepted[row] + tokens[number]
            open_[row] = 0.0
