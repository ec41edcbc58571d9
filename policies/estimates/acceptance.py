"""Estimates how likely the next level of a draft is accepted before it is drafted, per request and
lane, shrunk towards the lane's mean.

The evidence is calibrated confidence, not acceptance: it has less noise, and drafted levels that
were never verified count as well. The first level is estimated apart from later ones, because a
lookup finds nothing most of the time, but what it finds often continues for long. Each lane is
credited with the nodes that it has proposed itself; for a lane with a cost, only those count that
no lane without cost (lookup) has proposed, since lookups draft in any case.
"""

from collections.abc import Collection, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numba import njit

from policies.protocols import Candidates, Mask
from policies.rows import with_rows
from policies.speculation.forest import Floats, Forest, Ints

_FADE = 0.9
"""Decay per round of a request, because recent rounds predict the next one best."""
_LANE_MEMORY = 512.0
"""A lane's mean is over about this many levels."""
PRIOR = 0.6
"""Acceptance assumed for a new lane."""
PRIOR_WEIGHT = 1.0
"""Weight, in levels, of a lane's mean as the prior of a request's own estimate."""
_NEW_LANE = 4.0
"""Weight, in levels, of the prior that lanes without cost propose none of a lane's tokens."""

_FIRST, _DRAFTS, _SURVIVED, _REACHED, _ADDED, _FOUND = range(6)
"""Columns of evidence: accepted first levels (expected number); drafts; accepted later levels;
later levels whose parent was accepted; accepted levels that no lane without cost proposed; drafts
that were not empty."""
_COLUMNS = 6


class PairEstimates(NamedTuple):
    """The estimates for pairs of a request and a lane."""

    first: Floats
    """Probability that the first level is accepted."""
    acceptance: Floats
    """Probability that a later level is accepted if its parent is."""
    added: Floats
    """The share of accepted levels that no lane without cost proposes."""
    found: Floats
    """Probability that the draft is not empty."""


class Tables(NamedTuple):
    """All evidence, for compiled code."""

    own: Floats
    """Evidence by [request, lane, column]."""
    pool: Floats
    """Evidence by [lane, column], over all requests."""
    prior: float
    weight: float


class Proposals(NamedTuple):
    """The lanes that have proposed the nodes of a forest, as arrays."""

    counts: Ints
    """The number of lanes of each request."""
    lanes: Ints
    """The numbers of these lanes, request after request."""
    free: Mask
    """For every lane number, whether the lane drafts at no cost."""
    sources: Ints
    """For each node, bit i is set if the i-th lane of its request has proposed it. Empty: every
    lane has proposed every node of its request."""


class AcceptanceEstimates:
    def __init__(self, prior: float = PRIOR, weight: float = PRIOR_WEIGHT) -> None:
        """`prior`: acceptance of a new lane; `weight`: that of the lane's mean, in levels."""
        self._prior, self._weight = prior, weight
        self._numbers: dict[str, int] = {}
        """The number of each lane."""
        self._pool = np.zeros((0, _COLUMNS))
        """Evidence by [lane, column]."""
        self._own = np.zeros((0, 0, _COLUMNS))
        """Evidence by [request, lane, column]."""

    @property
    def tables(self) -> Tables:
        return Tables(self._own, self._pool, self._prior, self._weight)

    def numbers(self, lanes: Sequence[str]) -> Ints:
        """The lanes' numbers in the tables; -1 for a new lane."""
        return np.array([self._numbers.get(name, -1) for name in lanes], np.int64)

    def evidence(self, rows: Ints, lane: str) -> Floats:
        """The decayed number of drafts that each request has had from this lane."""
        return self._of(rows, lane)[:, _DRAFTS]

    def proposals(self, candidates: Candidates, costly: Collection[str]) -> Proposals:
        """The lanes that have proposed each node, by number; new lanes get one. Lanes that are not
        in `costly` draft at no cost."""
        proposers = [*chain.from_iterable(candidates.lanes)]
        for lane in dict.fromkeys(proposers):
            self._numbers.setdefault(lane, len(self._numbers))
        self._add_lanes()
        return Proposals(
            np.array([*map(len, candidates.lanes)], np.int64),
            np.array([self._numbers[lane] for lane in proposers], np.int64),
            np.array([lane not in costly for lane in self._numbers], np.bool_),
            _ALL if candidates.sources is None else candidates.sources,
        )

    def observe_read(self, row: int, lane: str, matched: Mask, covered: Mask) -> None:
        """Counterfactual evidence: whether the lane would have drafted tokens committed without it.
        It is worth as much as the lane's own rounds, and is available for lanes that do not
        draft."""
        self._numbers.setdefault(lane, len(self._numbers))
        self._add_lanes()
        number = self._numbers[lane]
        _replay(matched, covered, self._own[row, number], self._pool[number])

    def observe_miss(self, rows: Ints, lane: str) -> None:
        """Records that the lane was asked to draft for these requests and proposed nothing."""
        self._numbers.setdefault(lane, len(self._numbers))
        self._add_lanes()
        number = self._numbers[lane]
        self._own[rows, number] *= _FADE
        self._own[rows, number, _DRAFTS] += 1.0
        self._pool[number, _DRAFTS] += len(rows)
        _fade(self._pool[number])

    def reserve(self, rows: int) -> None:
        self._own = with_rows(self._own, rows)

    def forget(self, row: int) -> None:
        self._own[row] = 0.0

    def _add_lanes(self) -> None:
        new = len(self._numbers) - len(self._pool)
        if new:
            self._pool = np.pad(self._pool, ((0, new), (0, 0)))
            self._own = np.pad(self._own, ((0, 0), (0, new), (0, 0)))

    def _of(self, rows: Ints, lane: str) -> Floats:
        number = self._numbers.get(lane)
        return np.zeros((len(rows), _COLUMNS)) if number is None else self._own[rows, number]


_ALL = np.zeros(0, np.int64)


@njit(cache=True)
def level_accepted(tables: Tables, number: int) -> float:
    """Probability that any level of the lane is accepted, the first or a later one."""
    accepted, reached = tables.weight * tables.prior, tables.weight
    if number >= 0:
        pool = tables.pool[number]
        accepted += pool[_FIRST] + pool[_SURVIVED]
        reached += pool[_DRAFTS] + pool[_REACHED]
    return accepted / reached


@njit(cache=True)
def estimates_of(
    tables: Tables, rows: Ints, requests: Ints, lanes: Ints, numbers: Ints
) -> PairEstimates:
    """The estimates for pairs: pair p is of the request with row rows[requests[p]] and the lane
    with number numbers[lanes[p]]."""
    prior, weight = tables.prior, tables.weight
    estimated = np.empty((4, len(requests)))
    unseen = np.zeros(_COLUMNS)
    for pair, request in enumerate(requests):
        row, number = rows[request], numbers[lanes[pair]]
        of_all = tables.pool[number] if number >= 0 else unseen
        seen = tables.own[row, number] if number >= 0 else unseen
        first = (of_all[_FIRST] + weight * prior) / (of_all[_DRAFTS] + weight)
        next_ = (of_all[_SURVIVED] + weight * prior) / (of_all[_REACHED] + weight)
        share = of_all[_ADDED] + _NEW_LANE
        share /= of_all[_FIRST] + of_all[_SURVIVED] + _NEW_LANE
        found = (of_all[_FOUND] + weight) / (of_all[_DRAFTS] + weight)
        accepted = seen[_FIRST] + seen[_SURVIVED]
        estimated[0, pair] = (seen[_FIRST] + weight * first) / (seen[_DRAFTS] + weight)
        estimated[1, pair] = (seen[_SURVIVED] + weight * next_) / (seen[_REACHED] + weight)
        estimated[2, pair] = (seen[_ADDED] + weight * share) / (accepted + weight)
        estimated[3, pair] = (seen[_FOUND] + weight * found) / (seen[_DRAFTS] + weight)
    return PairEstimates(estimated[0], estimated[1], estimated[2], estimated[3])


@njit(cache=True)
def _add(seen: Floats, own: Floats, pool: Floats) -> None:
    for column in range(_COLUMNS):
        own[column] = own[column] * _FADE + seen[column]
        pool[column] += seen[column]
    _fade(pool)


@njit(cache=True)
def _fade(pool: Floats) -> None:
    """Halves a lane's evidence when there is enough of it, so that recent levels count more."""
    if pool[_DRAFTS] + pool[_REACHED] > _LANE_MEMORY:
        for column in range(_COLUMNS):
            pool[column] /= 2


@njit(cache=True)
def _replay(matched: Mask, covered: Mask, own: Floats, pool: Floats) -> None:
    """Splits the tokens into the rounds that the lane would have had: each draft ends with the
    first token that does not match, which would be the target's own, and the next round begins
    after it."""
    position = 0
    while position < len(matched):
        seen = np.zeros(_COLUMNS)
        seen[_DRAFTS] = seen[_FOUND] = 1.0
        first = position
        while position < len(matched) and matched[position]:
            seen[_FIRST if position == first else _SURVIVED] += 1.0
            seen[_ADDED] += 0.0 if covered[position] else 1.0
            position += 1
        seen[_REACHED] = min(position, len(matched) - 1) - first
        position += 1
        _add(seen, own, pool)


@njit(cache=True)
def credit(rows: Ints, proposals: Proposals, forest: Forest, tables: Tables) -> None:
    """Adds drafted trees to the evidence; the mass of a level is the probability that one of its
    nodes is accepted."""
    free, sources = proposals.free, proposals.sources
    mass, added = np.empty(len(forest.path) + 1), np.empty(len(forest.path) + 1)
    seen = np.ones(_COLUMNS)  # one draft, which is not empty
    first_lane = 0
    for number in range(len(rows)):
        begin, end = forest.starts[number], forest.starts[number + 1]
        lanes = proposals.lanes[first_lane : first_lane + proposals.counts[number]]
        everyone = (1 << len(lanes)) - 1
        from_free = 0
        for bit, lane in enumerate(lanes):
            if free[lane]:
                from_free |= 1 << bit
        for bit, lane in enumerate(lanes):
            deepest = 0
            for node in range(begin, end):
                by = sources[node] if len(sources) else everyone
                if by >> bit & 1:
                    depth = forest.depth[node]
                    while deepest < depth:
                        deepest += 1
                        mass[deepest] = added[deepest] = 0.0
                    mass[depth] += forest.path[node]
                    if free[lane] or not by & from_free:
                        added[depth] += forest.path[node]
            if deepest:
                later = parents = adding = 0.0
                for level in range(1, deepest + 1):
                    likely = min(mass[level], 1.0)
                    adding += min(added[level], 1.0)
                    later += likely if level > 1 else 0.0
                    parents += likely if level < deepest else 0.0
                seen[_FIRST], seen[_SURVIVED] = min(mass[1], 1.0), later
                seen[_REACHED], seen[_ADDED] = parents, adding
                _add(seen, tables.own[rows[number], lane], tables.pool[lane])
        first_lane += len(lanes)
