"""How likely a draft's next level is accepted before it is drafted: per request, pooled by lane.

Evidence is calibrated confidence, not acceptance: drafted levels that were never verified teach
as well, and there is less noise in it. The first level is told from those behind it: a lookup finds
nothing most of the time, and where it does find something, that goes on for long. Each lane is
credited with the nodes that it has proposed itself; a costly one is worth what it adds to those of
the free ones, which draft in any case.
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
"""Per round of a request: early rounds tell the domain, later ones what it is at now."""
_LANE_MEMORY = 512.0
"""Levels over which a lane's mean is taken."""
PRIOR = 0.6
"""Acceptance of a lane that has not been seen."""
PRIOR_WEIGHT = 1.0
"""Levels for which a lane's mean counts beside a request's own record."""
_NEW_LANE = 4.0
"""Levels that count for a lane adding all that it drafts."""

_FIRST, _ASKED, _SURVIVED, _REACHED, _ADDED, _FOUND = range(6)
"""Columns of evidence: expected first levels that were accepted, of so many drafts; levels behind
those, of so many whose parent was; accepted ones of both kinds that no free lane had proposed;
drafts that were not empty."""
_COLUMNS = 6


class Belief(NamedTuple):
    """In one lane, of each request."""

    first: Floats
    """How likely its first level is accepted."""
    acceptance: Floats
    """Each one behind an accepted one."""
    added: Floats
    """The share of what it gains that free lanes would not have gained."""
    found: Floats
    """How likely it has a draft at all."""


class Tables(NamedTuple):
    """All that is believed, as compiled code takes it."""

    own: Floats
    """[request, lane], rows of evidence."""
    pool: Floats
    """[lane]"""
    prior: float
    weight: float


class Proposals(NamedTuple):
    """Who has drafted the nodes of a forest, as arrays."""

    counts: Ints
    """Of each request's lanes."""
    lanes: Ints
    """One request's behind another's."""
    free: Mask
    """Of every lane, by number: it drafts for nothing."""
    sources: Ints
    """Of each node: bit i is set where its request's i-th lane has proposed it. Empty: all have
    proposed all of theirs."""


class AcceptanceEstimates:
    def __init__(self, prior: float = PRIOR, weight: float = PRIOR_WEIGHT) -> None:
        """`prior`: of an unknown lane's levels; `weight`: levels that the pool counts for."""
        self._prior, self._weight = prior, weight
        self._numbers: dict[str, int] = {}
        """Of the lanes."""
        self._pool = np.zeros((0, _COLUMNS))
        """A row for each lane."""
        self._own = np.zeros((0, 0, _COLUMNS))
        """[request, lane]."""

    @property
    def tables(self) -> Tables:
        return Tables(self._own, self._pool, self._prior, self._weight)

    def numbers(self, lanes: Sequence[str]) -> Ints:
        """Of lanes in the tables; -1: nothing is known of it yet."""
        return np.array([self._numbers.get(name, -1) for name in lanes], np.int64)

    def evidence(self, rows: Ints, lane: str) -> Floats:
        """Drafts that each request has had from this lane."""
        return self._of(rows, lane)[:, _ASKED]

    def proposals(self, candidates: Candidates, costly: Collection[str]) -> Proposals:
        """Who has drafted what, in this object's numbers; new lanes get one. Lanes that are not
        `costly` draft for nothing."""
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

    def read(self, row: int, lane: str, matched: Mask, covered: Mask) -> None:
        """What the lane would have drafted on tokens that others have committed: as evidence as
        good as its own rounds, and it comes also where it is not let draft."""
        self._numbers.setdefault(lane, len(self._numbers))
        self._add_lanes()
        number = self._numbers[lane]
        _replay(matched, covered, self._own[row, number], self._pool[number])

    def miss(self, rows: Ints, lane: str) -> None:
        """The lane was asked and proposed nothing."""
        self._numbers.setdefault(lane, len(self._numbers))
        self._add_lanes()
        number = self._numbers[lane]
        self._own[rows, number] *= _FADE
        self._own[rows, number, _ASKED] += 1.0
        self._pool[number, _ASKED] += len(rows)
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
    """How likely a level of the lane is accepted, be it the first or a later one."""
    accepted, reached = tables.weight * tables.prior, tables.weight
    if number >= 0:
        pool = tables.pool[number]
        accepted += pool[_FIRST] + pool[_SURVIVED]
        reached += pool[_ASKED] + pool[_REACHED]
    return accepted / reached


@njit(cache=True)
def believed(tables: Tables, rows: Ints, requests: Ints, lanes: Ints, numbers: Ints) -> Belief:
    """Of pairs: a request, which has this of the rows, and a lane, of this of the numbers."""
    prior, weight = tables.prior, tables.weight
    told = np.empty((4, len(requests)))
    unseen = np.zeros(_COLUMNS)
    for pair, request in enumerate(requests):
        row, number = rows[request], numbers[lanes[pair]]
        of_all = tables.pool[number] if number >= 0 else unseen
        seen = tables.own[row, number] if number >= 0 else unseen
        first = (of_all[_FIRST] + weight * prior) / (of_all[_ASKED] + weight)
        next_ = (of_all[_SURVIVED] + weight * prior) / (of_all[_REACHED] + weight)
        share = of_all[_ADDED] + _NEW_LANE
        share /= of_all[_FIRST] + of_all[_SURVIVED] + _NEW_LANE
        found = (of_all[_FOUND] + weight) / (of_all[_ASKED] + weight)
        accepted = seen[_FIRST] + seen[_SURVIVED]
        told[0, pair] = (seen[_FIRST] + weight * first) / (seen[_ASKED] + weight)
        told[1, pair] = (seen[_SURVIVED] + weight * next_) / (seen[_REACHED] + weight)
        told[2, pair] = (seen[_ADDED] + weight * share) / (accepted + weight)
        told[3, pair] = (seen[_FOUND] + weight * found) / (seen[_ASKED] + weight)
    return Belief(told[0], told[1], told[2], told[3])


@njit(cache=True)
def _note(seen: Floats, own: Floats, pool: Floats) -> None:
    for column in range(_COLUMNS):
        own[column] = own[column] * _FADE + seen[column]
        pool[column] += seen[column]
    _fade(pool)


@njit(cache=True)
def _fade(pool: Floats) -> None:
    """So that the last ones count: the lane may have got better or worse."""
    if pool[_ASKED] + pool[_REACHED] > _LANE_MEMORY:
        for column in range(_COLUMNS):
            pool[column] /= 2


@njit(cache=True)
def _replay(matched: Mask, covered: Mask, own: Floats, pool: Floats) -> None:
    """Rounds in which the lane drafts as long as it is right: the token behind it is the
    target's own, and the next round begins there."""
    position = 0
    while position < len(matched):
        seen = np.zeros(_COLUMNS)
        seen[_ASKED] = seen[_FOUND] = 1.0
        first = position
        while position < len(matched) and matched[position]:
            seen[_FIRST if position == first else _SURVIVED] += 1.0
            seen[_ADDED] += 0.0 if covered[position] else 1.0
            position += 1
        seen[_REACHED] = min(position, len(matched) - 1) - first
        position += 1
        _note(seen, own, pool)


@njit(cache=True)
def credit(rows: Ints, proposals: Proposals, forest: Forest, tables: Tables) -> None:
    """Drafted trees teach: the mass of each level is the probability that it is accepted."""
    free, sources = proposals.free, proposals.sources
    mass, added = np.empty(len(forest.path) + 1), np.empty(len(forest.path) + 1)
    seen = np.ones(_COLUMNS)  # asked and found once
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
                _note(seen, tables.own[rows[number], lane], tables.pool[lane])
        first_lane += len(lanes)
