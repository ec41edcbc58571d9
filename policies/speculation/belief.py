"""How likely a draft's next level is accepted before it is drafted: per request, pooled by lane.

Evidence is calibrated confidence, not acceptance: drafted levels that were never verified teach
as well, and there is less noise in it. Each lane is credited with the nodes that it has proposed
itself; a costly one is worth what it adds to those of the free ones, which draft in any case.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numba import njit

from policies.protocols import Candidate, Mask
from policies.rows import with_rows
from policies.speculation.forest import Floats, Forest, Ints

_FADE = 0.9
"""Per round of a request: early rounds tell the domain, later ones what it is at now."""
_LANE_MEMORY = 512.0
"""Levels over which a lane's mean is taken."""
_NEW_LANE = 4.0
"""Levels that count for a lane adding all that it drafts."""

_SURVIVED, _REACHED, _ADDED = 0, 1, 2
"""Columns of evidence: expected levels that were accepted; those whose parent was; accepted ones
that no free lane had proposed."""


class Beliefs:
    def __init__(self, prior: float, weight: float) -> None:
        """`prior`: acceptance of an unknown lane; `weight`: levels that the pool counts for."""
        self._prior, self._weight = prior, weight
        self._numbers: dict[str, int] = {}
        """Of the lanes."""
        self._pool = np.zeros((0, 3))
        """A row for each lane."""
        self._own = np.zeros((0, 0, 3))
        """[request, lane]."""

    def of(self, rows: Ints, lane: str) -> Floats:
        """Of each request: how likely the lane's next level is accepted, and the share of what
        the lane gains that free lanes would not have gained without it."""
        everyone = self._of_all(lane)
        return _beliefs(self._of(rows, lane), self.of_lane(lane), everyone, self._weight)

    def of_lane(self, lane: str) -> float:
        pool, weight = self._of_all(lane), self._weight
        return float((pool[_SURVIVED] + weight * self._prior) / (pool[_REACHED] + weight))

    def evidence(self, rows: Ints, lane: str) -> Floats:
        """Levels that each request has shown on this lane."""
        return self._of(rows, lane)[:, _REACHED]

    def observe(
        self, rows: Ints, candidates: Sequence[Candidate], forest: Forest, costly: Collection[str]
    ) -> None:
        """Drafted trees: the mass of each level is the probability that it is accepted. Lanes that
        are not `costly` draft for nothing."""
        proposers = [lane for one in candidates for lane in one.lanes]
        for lane in proposers:
            self._numbers.setdefault(lane, len(self._numbers))
        self._add_lanes()
        by_all = np.array([(1 << len(one.lanes)) - 1 for one in candidates])
        sources = by_all[forest.owner]
        for number, one in enumerate(candidates):
            if one.sources is not None:
                sources[forest.starts[number] : forest.starts[number + 1]] = one.sources
        _credit(
            rows,
            np.array([len(one.lanes) for one in candidates]),
            np.array([self._numbers[lane] for lane in proposers], np.int64),
            np.array([lane not in costly for lane in self._numbers], np.bool_),
            forest,
            sources,
            self._own,
            self._pool,
        )

    def miss(self, rows: Ints, lane: str) -> None:
        """The lane was asked and proposed nothing."""
        self._numbers.setdefault(lane, len(self._numbers))
        self._add_lanes()
        number = self._numbers[lane]
        self._own[rows, number] *= _FADE
        self._own[rows, number, _REACHED] += 1.0
        self._pool[number, _REACHED] += len(rows)
        if self._pool[number, _REACHED] > _LANE_MEMORY:
            self._pool[number] /= 2

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
        return np.zeros((len(rows), 3)) if number is None else self._own[rows, number]

    def _of_all(self, lane: str) -> Floats:
        number = self._numbers.get(lane)
        return np.zeros(3) if number is None else self._pool[number]


@njit(cache=True)
def _beliefs(own: Floats, acceptance: float, everyone: Floats, weight: float) -> Floats:
    survived, reached, added = own[:, _SURVIVED], own[:, _REACHED], own[:, _ADDED]
    share = (everyone[_ADDED] + _NEW_LANE) / (everyone[_SURVIVED] + _NEW_LANE)
    return np.stack(
        (
            (survived + weight * acceptance) / (reached + weight),
            (added + weight * share) / (survived + weight),
        )
    )


@njit(cache=True)
def _credit(
    rows: Ints,
    proposers: Ints,
    lanes: Ints,
    free: Mask,
    forest: Forest,
    sources: Ints,
    own: Floats,
    pool: Floats,
) -> None:
    """`proposers`: how many `lanes` are each candidate's."""
    first_lane = 0
    for number in range(len(rows)):
        begin, end = forest.starts[number], forest.starts[number + 1]
        from_free = 0
        for bit in range(proposers[number]):
            if free[lanes[first_lane + bit]]:
                from_free |= 1 << bit
        for bit in range(proposers[number]):
            lane = lanes[first_lane + bit]
            mass = np.zeros(end - begin + 1)
            added = np.zeros(end - begin + 1)
            deepest = 0
            for node in range(begin, end):
                if sources[node] >> bit & 1:
                    depth = forest.depth[node]
                    deepest = max(deepest, depth)
                    mass[depth] += forest.path[node]
                    if free[lane] or not sources[node] & from_free:
                        added[depth] += forest.path[node]
            if deepest:
                mass, added = np.minimum(mass, 1.0), np.minimum(added, 1.0)
                seen = np.array([mass.sum(), 1.0 + mass[:deepest].sum(), added.sum()])
                own[rows[number], lane] = _FADE * own[rows[number], lane] + seen
                pool[lane] += seen
                if pool[lane, _REACHED] > _LANE_MEMORY:
                    pool[lane] /= 2
        first_lane += proposers[number]
