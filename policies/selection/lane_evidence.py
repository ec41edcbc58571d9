"""Tokens and seconds seen of drafters: of each request, on top of everyone's, both fading.

Everyone's is kept apart by load. Where few requests run a round is short and drafts are long, where
many do it is the other way round: slots of another load make whichever drafter has been seen under
this one look far better, or worse, than those that have not, and requests stay where they are.
"""

from math import log2

import numpy as np
from numba import njit

from policies.pooling import DRAFTER, Statistics
from policies.rows import Floats, Ints, with_rows

PLAIN = ""
"""Plain decoding, among the drafters."""
_FADED = 1e-6
"""So few slots of evidence are none."""
_LOADS = 12
"""Classes of load, each twice the one before: around 1, 2, 4, ... requests, 2,048 and more."""
_TOKENS, _SECONDS, _SLOTS = 0, 1, 2
"""Columns of a tally."""
_PLAIN = 0
"""The number of plain decoding among the drafters."""
_NOTHING = -1
_PLAIN_BOUND = "plain_bound"
_NEWS = "news/"
"""Before a drafter's name: among what replicas tell each other."""


class Evidence:
    """A request's own slots weigh against `prior_slots` slots as everyone has had them under that
    drafter; everyone's weigh likewise against what the fleet of drafters does on average.

    Requests are known by row numbers, drafters by their own, which are also the columns of what is
    asked for. What is told is noted, and worked in when something is asked: once a round.
    """

    def __init__(self, prior_slots: float, own_decay: float, pool_decay: float) -> None:
        self._prior_slots = prior_slots
        self._own_decay = own_decay
        self._pool_decay = pool_decay
        self._numbers = {PLAIN: _PLAIN}
        self._own = np.zeros((0, 1, 3))
        """[request, drafter]: a tally."""
        self._load = 0
        """The class of load that is now."""
        self._pool = np.zeros((_LOADS, 1, 3))
        """[load, drafter]: a tally."""
        self._plain_bound = np.zeros((_LOADS, 3))
        """[load]: rounds that drafted, had they not."""
        self._news = np.zeros((_LOADS, 1))
        """[load, drafter]: of how many requests the tally is, roughly. Slots of one request tell
        much the same, so its n-th counts 1/n; of plain decoding, the same for all, each counts."""
        self._others = np.zeros((_LOADS, 1, 3))
        self._others_plain_bound = np.zeros((_LOADS, 3))
        self._others_news = np.zeros((_LOADS, 1))
        """What other replicas have seen of the same."""
        self._notes: list[float] = []
        """Of each: request, drafter, tokens and seconds of a slot, slots, whether they are over;
        and the tokens and seconds of such a round, had it not drafted."""

    def number(self, drafter: str) -> int:
        """New drafters get one."""
        if drafter not in self._numbers:
            self._work_in()
            self._numbers[drafter] = len(self._numbers)
            one_more = ((0, 0), (0, 1), (0, 0))
            self._pool = np.pad(self._pool, one_more)
            self._others = np.pad(self._others, one_more)
            self._own = np.pad(self._own, one_more)
            self._news = np.pad(self._news, one_more[:2])
            self._others_news = np.pad(self._others_news, one_more[:2])
        return self._numbers[drafter]

    def running(self, requests: int) -> None:
        """So many from now on."""
        load = min(round(log2(max(1, requests))), _LOADS - 1)
        if load != self._load:
            self._work_in()
            self._load = load

    def reserve(self, rows: int) -> None:
        """Requests have row numbers below `rows`."""
        self._own = with_rows(self._own, rows)

    def slot(
        self,
        row: int,
        drafter: str | None,
        tokens: float = 0.0,
        seconds: float = 0.0,
        without: float = 0.0,
        without_s: float = 0.0,
    ) -> None:
        """A slot of the request has ended. Of plain decoding, which is the same for every
        request, only the pool learns; None: it tells nothing. Without its drafter the round brought
        `without` tokens in `without_s`: to decode plainly would have brought as much, and taken no
        longer."""
        number = _NOTHING if drafter is None else self.number(drafter)
        self._notes += (row, number, tokens, seconds, 1.0, 1.0, without, without_s)

    def score(
        self, row: int, drafter: str, tokens: float, seconds: float, slots: float = 1.0
    ) -> None:
        """What the drafter would have done in so many slots, `tokens` and `seconds` in each."""
        self._notes += (row, self.number(drafter), tokens, seconds, slots, 0.0, 0.0, 0.0)

    def goodput(self, rows: Ints, draws: Floats, doubt: float) -> Floats:
        """[request, drafter]: tokens per second, as each request doubts it: in the direction that
        it has drawn, by `doubt` after everyone's first news and less after more. Of drafters that
        only other replicas have there are no draws, and is no estimate."""
        self._work_in()
        pool = self._pool[self._load] + self._others[self._load]
        plain_bound = self._plain_bound[self._load] + self._others_plain_bound[self._load]
        doubts = doubt / np.sqrt(1.0 + self.news())
        return _goodput(rows, self._own, pool, plain_bound, self._prior_slots, draws, doubts)

    def own_slots(self, rows: Ints) -> Floats:
        """[request, drafter]"""
        self._work_in()
        return self._own[rows, :, _SLOTS]

    def news(self) -> Floats:
        """[drafter]: how much everyone has told of it, in requests."""
        self._work_in()
        return self._news[self._load] + self._others_news[self._load]

    def forget(self, row: int) -> None:
        self._work_in()
        self._own[row] = 0.0

    def export(self) -> Statistics:
        """Plain decoding is among the drafters. Tallies load behind load."""
        self._work_in()
        drafters = {
            DRAFTER + name: self._pool[:, number].ravel().tolist()
            for name, number in self._numbers.items()
        }
        news = {
            _NEWS + name: self._news[:, number].tolist() for name, number in self._numbers.items()
        }
        return {**drafters, **news, _PLAIN_BOUND: self._plain_bound.ravel().tolist()}

    def pool(self, others: Statistics) -> None:
        """They count for as much as we can remember ourselves at most, under each load: what is
        seen here is about the requests that come here."""
        self._others[:] = self._others_plain_bound[:] = 0.0
        self._others_news[:] = 0.0
        for name, vector in others.items():
            columns, rest = divmod(len(vector), _LOADS)
            if rest or columns != (1 if name.startswith(_NEWS) else 3):
                continue  # of a replica of another version
            if name == _PLAIN_BOUND:
                self._others_plain_bound[:] = np.reshape(vector, (_LOADS, 3))
            elif name.startswith(DRAFTER):
                number = self.number(name.removeprefix(DRAFTER))
                self._others[:, number] = np.reshape(vector, (_LOADS, 3))
            elif name.startswith(_NEWS):
                number = self.number(name.removeprefix(_NEWS))
                self._others_news[:, number] = vector
        remembered = (1 - self._pool_decay) * self._others[:, :, _SLOTS].sum(axis=1)
        too_many = np.maximum(1.0, remembered)[:, None]
        self._others /= too_many[:, None]
        self._others_plain_bound /= too_many
        self._others_news /= too_many

    def _work_in(self) -> None:
        if self._notes:
            notes = np.array(self._notes, np.float64).reshape(-1, 8)
            self._notes = []
            _work_in(
                notes,
                self._own,
                self._pool[self._load],
                self._news[self._load],
                self._plain_bound[self._load],
                self._own_decay,
                self._pool_decay,
            )


@njit(cache=True)
def _goodput(
    rows: Ints,
    own: Floats,
    pool: Floats,
    plain_bound: Floats,
    prior_slots: float,
    draws: Floats,
    doubts: Floats,
) -> Floats:
    """`doubts`: by drafter."""
    # Until drafters have been tried they are as good as decoding plainly, whatever that is.
    fleet = pool[_PLAIN + 1 :].sum(axis=0)
    plain = pool[_PLAIN] + plain_bound
    if plain[_SLOTS] > _FADED:
        fleet += (prior_slots / plain[_SLOTS]) * plain
    elif fleet[_SLOTS] <= _FADED:
        fleet = np.ones(3)
    drafters = min(len(pool), draws.shape[1])
    goodput = np.empty((len(rows), drafters))
    for drafter in range(drafters):
        bounded = drafter == _PLAIN and plain_bound[_SLOTS] > _FADED
        above = plain_bound if bounded else fleet
        prior = pool[drafter] + (prior_slots / above[_SLOTS]) * above
        weight = prior_slots / prior[_SLOTS]
        for number, row in enumerate(rows):
            tokens = own[row, drafter, _TOKENS] + weight * prior[_TOKENS]
            seconds = own[row, drafter, _SECONDS] + weight * prior[_SECONDS]
            wrong = np.exp(doubts[drafter] * draws[row, drafter])
            goodput[number, drafter] = tokens / seconds * wrong
    return goodput


@njit(cache=True)
def _work_in(
    notes: Floats,
    own: Floats,
    pool: Floats,
    news: Floats,
    plain_bound: Floats,
    own_decay: float,
    pool_decay: float,
) -> None:
    for note in notes:
        row, drafter, ended = int(note[0]), int(note[1]), note[5] > 0.0
        slot, slots, without = (note[2], note[3], 1.0), note[4], (note[6], note[7], 1.0)
        if ended:
            news *= pool_decay
        if drafter != _NOTHING:
            before = 0.0 if drafter == _PLAIN else own[row, drafter, _SLOTS]
            news[drafter] += slots / (before + slots)
        # Loops: arrays of three take longer to make than to add.
        for column in range(3):
            if ended:
                plain_bound[column] *= pool_decay
                for number in range(len(pool)):
                    pool[number, column] *= pool_decay
                    own[row, number, column] *= own_decay
            if drafter != _NOTHING:
                pool[drafter, column] += slots * slot[column]
                if drafter != _PLAIN:
                    own[row, drafter, column] += slots * slot[column]
            if without[0] > 0.0:
                plain_bound[column] += without[column]
