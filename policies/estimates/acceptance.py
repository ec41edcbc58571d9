"""Estimates how likely the next level of a draft is accepted before it is drafted, per request and
drafter, shrunk towards the drafter's mean over all requests of all replicas with the same LoRA
adapter. Both the choice of lanes and the planner read them (`RoundContext.acceptance`).

The evidence is calibrated confidence, not acceptance: it has less noise, and drafted levels that
were never verified count as well. The first level is estimated apart from later ones, because a
lookup finds nothing most of the time, but what it finds often continues for long. Each drafter is
credited with the nodes that it has proposed itself; for one with a cost, only those count that no
free drafter (lookup) has proposed, since lookups draft in any case.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numba import njit

from policies.flat_trees import FlatTrees, Mask, path_confidences
from policies.pooling import Statistics
from policies.request import LaneView
from policies.rows import Floats, Ints, Rows, with_rows

_FADE = 0.9
"""Decay per round of a request, because recent rounds predict the next one best."""
_MEMORY = 512.0
"""A drafter's mean is over about this many levels of this replica, and as many of others."""
_PRIOR = 0.6
"""Acceptance assumed for a new drafter."""
_PRIOR_WEIGHT = 1.0
"""Weight, in levels, of a drafter's mean as the prior of a request's own estimate, and of `_PRIOR`
as that of the mean."""
_NEW_DRAFTER = 4.0
"""Weight, in levels, of the prior that free drafters propose none of a drafter's tokens."""
_MOST_ADAPTERS = 64
"""Adapters that are learned apart; further ones share the evidence of requests without any."""

_FIRST, _DRAFTS, _SURVIVED, _REACHED, _ADDED = range(5)
"""Columns of evidence: accepted first levels (expected number); drafts, empty ones included;
accepted later levels; later levels whose parent was accepted; accepted levels that no free drafter
proposed."""
COLUMNS = 5


class Estimate(NamedTuple):
    """What a drafter's draft for a request is expected to be worth."""

    first: float
    """Probability that the first level is accepted."""
    later: float
    """Probability that a later level is accepted if its parent is."""
    added: float
    """The share of accepted levels that no free drafter proposes."""


class Tables(NamedTuple):
    """All evidence, for compiled code."""

    own: Floats
    """Evidence by [request, drafter, column]."""
    pool: Floats
    """Evidence by [adapter, drafter, column], over all requests; adapter 0: none."""
    adapters: Ints
    """By request, its adapter."""
    free: Mask
    """For each drafter, whether it drafts at no cost, and so for every request."""


class AcceptanceEstimates:
    def __init__(self, lanes: Sequence[LaneView], free: Collection[str] = ()) -> None:
        """`free`: the lanes that draft at no cost."""
        self._drafters = list(dict.fromkeys(lane.drafter for lane in lanes))
        self._numbers = {lane.name: self._drafters.index(lane.drafter) for lane in lanes}
        """By lane, the number of its drafter: lanes with the same drafter share its evidence."""
        self._free = np.zeros(len(self._drafters), np.bool_)
        self._free[[self._numbers[lane] for lane in free]] = True
        self._rows = Rows()
        self._own = np.zeros((0, len(self._drafters), COLUMNS))
        self._adapters = {"": 0}
        self._adapter = np.zeros(0, np.int64)
        """By row."""
        self._pool = np.zeros((1, len(self._drafters), COLUMNS))
        self._others = np.zeros_like(self._pool)
        """The `pool` of other replicas."""

    @property
    def tables(self) -> Tables:
        return Tables(self._own, self._pool + self._others, self._adapter, self._free)

    def numbers(self, lanes: Sequence[str]) -> Ints:
        """The numbers of the lanes' drafters in the tables."""
        return np.array([self._numbers[name] for name in lanes], np.int64)

    def rows(self, requests: Sequence[str]) -> Ints:
        """The requests' rows in the tables; new requests get one."""
        rows = self._rows.of(requests)
        self._own = with_rows(self._own, len(self._rows))
        self._adapter = with_rows(self._adapter, len(self._rows))
        return rows

    def adapt(self, request: str, adapter: str) -> None:
        """The target runs this new request with a LoRA adapter, so drafters that know nothing of it
        are right less often."""
        if adapter not in self._adapters and len(self._adapters) <= _MOST_ADAPTERS:
            self._adapters[adapter] = len(self._adapters)
            self._pool = with_rows(self._pool, len(self._adapters))
            self._others = with_rows(self._others, len(self._adapters))
        row = self.rows([request])  # first, since it may enlarge the table
        self._adapter[row] = self._adapters.get(adapter, 0)

    def drafts(self, rows: Ints, numbers: Ints) -> Floats:
        """[request, drafter]: the decayed number of drafts that the request has had from it."""
        return self._own[rows[:, None], numbers, _DRAFTS]

    def credit(
        self,
        requests: Sequence[str],
        trees: FlatTrees,
        lanes: Sequence[Sequence[str]],
        sources: Ints | None,
    ) -> None:
        """Adds drafted trees with calibrated confidences: the fields of `Candidates`."""
        _credit(
            self.rows(requests),
            np.array([*map(len, lanes)], np.int64),
            self.numbers([*chain.from_iterable(lanes)]),
            _NO_SOURCES if sources is None else sources,
            trees,
            self._free,
            self._own,
            self._pool,
            self._adapter,
        )

    def observe_read(
        self, request: str, lane: str, matched: Sequence[bool], covered: Sequence[bool]
    ) -> None:
        """A counterfactual draft: `lane` has caught up on output tokens; `matched` are those that
        it would have drafted itself, `covered` those that free drafters had proposed. Worth as much
        as the lane's own rounds, and available for lanes that do not draft."""
        row, number = self._rows.get(request), self._numbers[lane]
        # It may come late, when the request has been forgotten.
        own = np.zeros(COLUMNS) if row is None else self._own[row, number]
        adapter = 0 if row is None else self._adapter[row]
        _replay(np.array(matched), np.array(covered), own, self._pool[adapter, number])

    def observe_miss(self, requests: Sequence[str], lane: str) -> None:
        """The lane was asked to draft for these requests and proposed nothing."""
        rows, number = self.rows(requests), self._numbers[lane]
        self._own[rows, number] *= _FADE
        self._own[rows, number, _DRAFTS] += 1.0
        for adapter, count in zip(*np.unique(self._adapter[rows], return_counts=True), strict=True):
            self._pool[adapter, number, _DRAFTS] += count
            _fade(self._pool[adapter, number])

    def forget(self, request: str) -> None:
        row = self._rows.drop(request)
        if row is not None:
            self._own[row] = 0.0
            self._adapter[row] = 0

    def export(self) -> Statistics:
        """By drafter and adapter, the evidence over all requests."""
        return {name: self._pool[place].tolist() for name, place in self._places()}

    def pool(self, others: Statistics) -> None:
        """Adds the evidence of other replicas, at most as much as this replica can remember, since
        its own is about its own requests. Unknown drafters are left out, and vectors of another
        length, from another version."""
        self._others[:] = 0.0
        for name, place in self._places():
            if len(others.get(name, ())) == COLUMNS:
                evidence = np.array(others[name])
                _, levels = accepted_levels(evidence)
                self._others[place] = evidence * min(1.0, _MEMORY / max(levels, 1.0))

    def _places(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """The name of each drafter, and of each with an adapter, and its place in the tables."""
        for adapter, place in self._adapters.items():
            for number, drafter in enumerate(self._drafters):
                yield f"{drafter} {adapter}".rstrip(), (place, number)


_NO_SOURCES = np.zeros(0, np.int64)  # every lane has proposed every node of its request


@njit(cache=True)
def accepted_levels(evidence: Floats) -> tuple[float, float]:
    """The accepted levels, the first or a later one, and those whose parent was accepted."""
    return evidence[_FIRST] + evidence[_SURVIVED], evidence[_DRAFTS] + evidence[_REACHED]


@njit(cache=True)
def level_accepted(tables: Tables, number: int) -> float:
    """Probability that any level of the drafter is accepted, the first or a later one, with any
    adapter."""
    accepted, levels = accepted_levels(tables.pool[:, number].sum(0))
    return (accepted + _PRIOR_WEIGHT * _PRIOR) / (levels + _PRIOR_WEIGHT)


@njit(cache=True)
def estimate(tables: Tables, row: int, number: int) -> Estimate:
    """The estimate for the request with this row and the drafter with this number."""
    weight, seen = _PRIOR_WEIGHT, tables.own[row, number]
    of_all = tables.pool[tables.adapters[row], number]
    first = (of_all[_FIRST] + weight * _PRIOR) / (of_all[_DRAFTS] + weight)
    later = (of_all[_SURVIVED] + weight * _PRIOR) / (of_all[_REACHED] + weight)
    added = of_all[_ADDED] + _NEW_DRAFTER
    added /= of_all[_FIRST] + of_all[_SURVIVED] + _NEW_DRAFTER
    return Estimate(
        (seen[_FIRST] + weight * first) / (seen[_DRAFTS] + weight),
        (seen[_SURVIVED] + weight * later) / (seen[_REACHED] + weight),
        (seen[_ADDED] + weight * added) / (seen[_FIRST] + seen[_SURVIVED] + weight),
    )


@njit(cache=True)
def _add(seen: Floats, own: Floats, pool: Floats) -> None:
    for column in range(COLUMNS):
        own[column] = own[column] * _FADE + seen[column]
        pool[column] += seen[column]
    _fade(pool)


@njit(cache=True)
def _fade(pool: Floats) -> None:
    """Halves a drafter's evidence when there is enough of it, so that recent levels count more."""
    if accepted_levels(pool)[1] > _MEMORY:
        for column in range(COLUMNS):
            pool[column] /= 2


@njit(cache=True)
def _replay(matched: Mask, covered: Mask, own: Floats, pool: Floats) -> None:
    """Splits the tokens into the rounds that the lane would have had: each ends with the first
    token that does not match, which would be the target's own."""
    position = 0
    while position < len(matched):
        seen = np.zeros(COLUMNS)
        seen[_DRAFTS] = 1.0
        first = position
        while position < len(matched) and matched[position]:
            seen[_FIRST if position == first else _SURVIVED] += 1.0
            seen[_ADDED] += 0.0 if covered[position] else 1.0
            position += 1
        seen[_REACHED] = min(position, len(matched) - 1) - first
        position += 1
        _add(seen, own, pool)


@njit(cache=True)
def _credit(
    rows: Ints,
    counts: Ints,
    proposers: Ints,
    sources: Ints,
    trees: FlatTrees,
    free: Mask,
    own: Floats,
    pool: Floats,
    adapters: Ints,
) -> None:
    """Adds drafted trees; the mass of a level is the probability that one of its nodes is accepted.
    `counts`: each request's number of proposers; `proposers`: the drafters of all, in order."""
    path = path_confidences(trees)
    mass, added = np.empty(len(path) + 1), np.empty(len(path) + 1)
    seen = np.ones(COLUMNS)  # one draft
    first_proposer = 0
    for number in range(len(rows)):
        begin, end = trees.starts[number], trees.starts[number + 1]
        drafters = proposers[first_proposer : first_proposer + counts[number]]
        everyone = (1 << len(drafters)) - 1
        from_free = 0
        for bit, drafter in enumerate(drafters):
            if free[drafter]:
                from_free |= 1 << bit
        for bit, drafter in enumerate(drafters):
            deepest = 0
            for node in range(begin, end):
                by = sources[node] if len(sources) else everyone
                if by >> bit & 1:
                    depth = trees.depth[node]
                    while deepest < depth:
                        deepest += 1
                        mass[deepest] = added[deepest] = 0.0
                    mass[depth] += path[node]
                    if free[drafter] or not by & from_free:
                        added[depth] += path[node]
            if deepest:
                later = parents = adding = 0.0
                for level in range(1, deepest + 1):
                    likely = min(mass[level], 1.0)
                    adding += min(added[level], 1.0)
                    later += likely if level > 1 else 0.0
                    parents += likely if level < deepest else 0.0
                seen[_FIRST], seen[_SURVIVED] = min(mass[1], 1.0), later
                seen[_REACHED], seen[_ADDED] = parents, adding
                row = rows[number]
                _add(seen, own[row, drafter], pool[adapters[row], drafter])
        first_proposer += counts[number]
