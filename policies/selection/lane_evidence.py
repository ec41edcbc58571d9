"""Observed tokens and seconds with each drafter: of each request, and pooled over requests; both
decay.

Pooled evidence is kept separately by load. With few requests rounds are short and drafts long, with
many it is the other way round. If loads were mixed, a drafter with slots under the present load
would look far better, or worse, than those with slots under another one only.
"""

from math import log2

import numpy as np
from numba import njit

from policies.pooling import DRAFTER, Statistics
from policies.rows import Floats, Ints, with_rows

PLAIN = ""
"""The name of plain decoding among the drafters."""
_NO_EVIDENCE = 1e-6
"""Fewer slots count as none."""
_LOADS = 12
"""Classes of load: around 1, 2, 4, ... 1,024 requests, and 2,048 and more."""
_TOKENS, _SECONDS, _SLOTS = 0, 1, 2
"""Columns of a tally."""
_PLAIN = 0
"""The number of plain decoding among the drafters."""
_NO_DRAFTER = -1
_PLAIN_BOUND = "plain_bound"
_REQUESTS = "requests/"
"""Prefix of a drafter's name in exported statistics."""


class Evidence:
    """Goodput estimates with two levels of shrinkage: a request's own slots weigh against
    `prior_slots` slots at the pooled goodput of the drafter, which weighs likewise against the mean
    of all drafters.

    Requests are given by row numbers, drafters by `number`, which are also the columns of results.
    Observations are buffered and applied together when a result is needed, about once per round.
    """

    def __init__(self, prior_slots: float, own_decay: float, pool_decay: float) -> None:
        self._prior_slots = prior_slots
        self._own_decay = own_decay
        self._pool_decay = pool_decay
        self._numbers = {PLAIN: _PLAIN}
        self._own = np.zeros((0, 1, 3))
        """[request, drafter]: a tally."""
        self._load = 0
        """The present class of load."""
        self._pool = np.zeros((_LOADS, 1, 3))
        """[load, drafter]: a tally."""
        self._plain_bound = np.zeros((_LOADS, 3))
        """[load]: a tally of what rounds with drafts would have been without their lane's draft, a
        lower bound on plain decoding."""
        self._requests = np.zeros((_LOADS, 1))
        """[load, drafter]: the effective number of requests in the tally. The slots of one request
        are alike, so its n-th slot counts 1/n; with plain decoding, where requests do not differ,
        every slot counts 1."""
        self._others = np.zeros((_LOADS, 1, 3))
        self._others_plain_bound = np.zeros((_LOADS, 3))
        self._others_requests = np.zeros((_LOADS, 1))
        """The same of other replicas."""
        self._pending: list[float] = []
        """Observations to apply, of eight numbers each: request, drafter, tokens and seconds per
        slot, number of slots, whether these were real slots of the request, and the tokens and
        seconds of the slot without its lane's draft."""

    def number(self, drafter: str) -> int:
        """The drafter's number; new drafters get one."""
        if drafter not in self._numbers:
            self._apply_pending()
            self._numbers[drafter] = len(self._numbers)
            one_more = ((0, 0), (0, 1), (0, 0))
            self._pool = np.pad(self._pool, one_more)
            self._others = np.pad(self._others, one_more)
            self._own = np.pad(self._own, one_more)
            self._requests = np.pad(self._requests, one_more[:2])
            self._others_requests = np.pad(self._others_requests, one_more[:2])
        return self._numbers[drafter]

    def set_load(self, requests: int) -> None:
        """Sets the number of running requests."""
        load = min(round(log2(max(1, requests))), _LOADS - 1)
        if load != self._load:
            self._apply_pending()
            self._load = load

    def reserve(self, rows: int) -> None:
        """Makes room for row numbers below `rows`."""
        self._own = with_rows(self._own, rows)

    def observe_slot(
        self,
        row: int,
        drafter: str | None,
        tokens: float = 0.0,
        seconds: float = 0.0,
        without: float = 0.0,
        without_s: float = 0.0,
    ) -> None:
        """A slot of the request has ended; drafter None: without evidence on any drafter.

        Plain decoding, which is the same for every request, is only pooled. Without its lane's
        draft the round would have gained `without` tokens in `without_s`: plain decoding would have
        gained as many and taken no longer.
        """
        number = _NO_DRAFTER if drafter is None else self.number(drafter)
        self._pending += (row, number, tokens, seconds, 1.0, 1.0, without, without_s)

    def observe_score(
        self, row: int, drafter: str, tokens: float, seconds: float, slots: float = 1.0
    ) -> None:
        """A counterfactual score: `slots` slots of the drafter, of `tokens` and `seconds` each."""
        self._pending += (row, self.number(drafter), tokens, seconds, slots, 0.0, 0.0, 0.0)

    def goodput(self, rows: Ints, draws: Floats, doubt: float) -> Floats:
        """[request, drafter]: tokens per second, times exp(draw · error), where the relative error
        of pooled evidence falls from `doubt` with the root of the number of requests. Drafters that
        only other replicas have are left out, as there are no draws for them."""
        self._apply_pending()
        pool = self._pool[self._load] + self._others[self._load]
        plain_bound = self._plain_bound[self._load] + self._others_plain_bound[self._load]
        errors = doubt / np.sqrt(1.0 + self.effective_requests())
        return _goodput(rows, self._own, pool, plain_bound, self._prior_slots, draws, errors)

    def own_slots(self, rows: Ints) -> Floats:
        """[request, drafter]: the slots of the request's own evidence."""
        self._apply_pending()
        return self._own[rows, :, _SLOTS]

    def effective_requests(self) -> Floats:
        """[drafter]: the effective number of requests in the pooled evidence under this load."""
        self._apply_pending()
        return self._requests[self._load] + self._others_requests[self._load]

    def forget(self, row: int) -> None:
        self._apply_pending()
        self._own[row] = 0.0

    def export(self) -> Statistics:
        """By drafter, including plain decoding: tallies and effective requests under each load."""
        self._apply_pending()
        drafters = {
            DRAFTER + name: self._pool[:, number].ravel().tolist()
            for name, number in self._numbers.items()
        }
        requests = {
            _REQUESTS + name: self._requests[:, number].tolist()
            for name, number in self._numbers.items()
        }
        return {**drafters, **requests, _PLAIN_BOUND: self._plain_bound.ravel().tolist()}

    def pool(self, others: Statistics) -> None:
        """Adds the evidence of other replicas, scaled down under each load to the most slots that
        this replica can remember, because its own evidence is about its own requests."""
        self._others[:] = self._others_plain_bound[:] = 0.0
        self._others_requests[:] = 0.0
        for name, vector in others.items():
            columns, rest = divmod(len(vector), _LOADS)
            if rest or columns != (1 if name.startswith(_REQUESTS) else 3):
                continue  # from a replica of another version
            if name == _PLAIN_BOUND:
                self._others_plain_bound[:] = np.reshape(vector, (_LOADS, 3))
            elif name.startswith(DRAFTER):
                number = self.number(name.removeprefix(DRAFTER))
                self._others[:, number] = np.reshape(vector, (_LOADS, 3))
            elif name.startswith(_REQUESTS):
                number = self.number(name.removeprefix(_REQUESTS))
                self._others_requests[:, number] = vector
        # With decay d per slot, a tally holds at most 1 / (1 - d) slots.
        fullness = (1 - self._pool_decay) * self._others[:, :, _SLOTS].sum(axis=1)
        divisor = np.maximum(1.0, fullness)[:, None]
        self._others /= divisor[:, None]
        self._others_plain_bound /= divisor
        self._others_requests /= divisor

    def _apply_pending(self) -> None:
        if self._pending:
            observations = np.array(self._pending, np.float64).reshape(-1, 8)
            self._pending = []
            _apply(
                observations,
                self._own,
                self._pool[self._load],
                self._requests[self._load],
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
    errors: Floats,
) -> Floats:
    """`errors`: by drafter."""
    # The prior of all drafters together is the goodput of plain decoding.
    all_drafters = pool[_PLAIN + 1 :].sum(axis=0)
    plain = pool[_PLAIN] + plain_bound
    if plain[_SLOTS] > _NO_EVIDENCE:
        all_drafters += (prior_slots / plain[_SLOTS]) * plain
    elif all_drafters[_SLOTS] <= _NO_EVIDENCE:
        all_drafters = np.ones(3)
    drafters = min(len(pool), draws.shape[1])
    goodput = np.empty((len(rows), drafters))
    for drafter in range(drafters):
        bounded = drafter == _PLAIN and plain_bound[_SLOTS] > _NO_EVIDENCE
        pool_prior = plain_bound if bounded else all_drafters
        prior = pool[drafter] + (prior_slots / pool_prior[_SLOTS]) * pool_prior
        weight = prior_slots / prior[_SLOTS]
        for number, row in enumerate(rows):
            tokens = own[row, drafter, _TOKENS] + weight * prior[_TOKENS]
            seconds = own[row, drafter, _SECONDS] + weight * prior[_SECONDS]
            factor = np.exp(errors[drafter] * draws[row, drafter])
            goodput[number, drafter] = tokens / seconds * factor
    return goodput


@njit(cache=True)
def _apply(
    observations: Floats,
    own: Floats,
    pool: Floats,
    requests: Floats,
    plain_bound: Floats,
    own_decay: float,
    pool_decay: float,
) -> None:
    for seen in observations:
        row, drafter, ended = int(seen[0]), int(seen[1]), seen[5] > 0.0
        slot, slots, without = (seen[2], seen[3], 1.0), seen[4], (seen[6], seen[7], 1.0)
        if ended:
            requests *= pool_decay
        if drafter != _NO_DRAFTER:
            before = 0.0 if drafter == _PLAIN else own[row, drafter, _SLOTS]
            requests[drafter] += slots / (before + slots)
        # Loops, because arrays of three take longer to allocate than to add.
        for column in range(3):
            if ended:
                plain_bound[column] *= pool_decay
                for number in range(len(pool)):
                    pool[number, column] *= pool_decay
                    own[row, number, column] *= own_decay
            if drafter != _NO_DRAFTER:
                pool[drafter, column] += slots * slot[column]
                if drafter != _PLAIN:
                    own[row, drafter, column] += slots * slot[column]
            if without[0] > 0.0:
                plain_bound[column] += without[column]
