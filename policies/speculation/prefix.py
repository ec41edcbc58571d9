"""The planner's choice: nodes in the order of their worth, the objective at every prefix.

A verified node costs one token of the forward, whichever it is, so a round's time depends on how
many nodes are kept, and for each number the best set is a prefix of one order. Per request the
best k nodes are its k most probable, and each adds less to log(1 + gain) than the one before;
merging such sequences by what the next node adds is optimal for every k.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from policies.protocols import Mask
from policies.speculation.forest import Floats, Forest, Ints

Objective = Literal["fair", "throughput"]

_TOLERANCE = 0.01
"""Of a plain round: drafts that cost next to nothing are not thrown away where a cap is missed
anyway, because drafting has taken its time."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeCaps:
    """For each request, how long the round may take if it gains g: slope·(1 + g) + offset."""

    slope: Floats
    offset: Floats
    """inf: as long as it likes."""

    @classmethod
    def none(cls, requests: int) -> "TimeCaps":
        return cls(np.zeros(requests), np.full(requests, np.inf))

    def beside(self, other: "TimeCaps") -> "TimeCaps":
        """Both, for requests that have a cap in at most one of them."""
        return TimeCaps(self.slope + other.slope, np.minimum(self.offset, other.offset))

    def at(self, gain: Floats, request: Ints | slice = slice(None)) -> Floats:
        return self.slope[request] * (1.0 + gain) + self.offset[request]


@dataclass(frozen=True, slots=True, eq=False)
class Gains:
    """The nodes of a forest request by request, each request's most probable first."""

    nodes: Ints
    owner: Ints
    path: Floats
    before: Floats
    """What the node's request gains from its nodes before it."""
    place: Ints
    """0 for the most probable node of a request."""

    @classmethod
    def of(cls, forest: Forest) -> "Gains":
        nodes = np.lexsort((-forest.path, forest.owner))
        owner, path = forest.owner[nodes], forest.path[nodes]
        first = (np.cumsum(forest.sizes) - forest.sizes)[owner]
        gained = np.concatenate([[0.0], np.cumsum(path)])
        return cls(nodes, owner, path, gained[:-1] - gained[first], np.arange(len(nodes)) - first)

    def ranked(self, objective: Objective, most: int) -> "Ranking":
        """By worth; `most`: nodes that the budget lets through."""
        return self._in_order(np.argsort(-self._worth(objective), kind="stable")[:most], 0)

    def needs_first(
        self, objective: Objective, urgent: Ints, urgency: Floats, most: int
    ) -> "Ranking":
        """Before all others the `urgent` best of each request, the greatest `urgency` first."""
        needed = self.place < urgent[self.owner]
        line = np.where(needed, -urgency[self.owner], np.inf)
        order = np.lexsort((-self._worth(objective), line))[:most]
        return self._in_order(order, int(needed[order].sum()))

    def _worth(self, objective: Objective) -> Floats:
        return self.path / (1.0 + self.before) if objective == "fair" else self.path

    def _in_order(self, order: Ints, urgent: int) -> "Ranking":
        return Ranking(
            self.nodes[order], self.owner[order], self.path[order], self.before[order], urgent
        )


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The nodes of a forest, the most worthwhile first; any prefix is whole down to the roots."""

    nodes: Ints
    owner: Ints
    path: Floats
    before: Floats
    urgent: int
    """The first so many are there for needs."""

    def objective(self, kind: Objective, requests: int, seconds: Floats) -> Floats:
        """At every prefix: Σ log(1 + gain) - n·log T, or the logarithm of (n + Σ gain) / T."""
        if kind == "fair":
            utility = _running_sum(np.log1p(self.path / (1.0 + self.before)))
            return utility - requests * np.log(seconds)
        return np.log(requests + _running_sum(self.path)) - np.log(seconds)

    def time_cap(self, caps: TimeCaps) -> Floats:
        """At every prefix, the tightest cap of any request.

        A request's cap rises with each of its nodes. A node's own place holds the cap that is in
        force until it is taken, so the tightest at a prefix is the least in the places behind it.
        """
        gain = np.bincount(self.owner, self.path, len(caps.slope)).astype(np.float64)
        final = caps.at(gain).min(initial=np.inf)
        until_taken = caps.at(self.before, self.owner)
        behind = np.minimum.accumulate(until_taken[::-1])[::-1]
        return np.minimum(np.append(behind, np.inf), final)


@dataclass(frozen=True, slots=True)
class Choice:
    nodes: Ints
    seconds: float
    gain: Floats
    """Expected of each request beyond the target's own token."""
    needs_over_harm: bool
    """Needs were served at the price of a no-harm cap."""


def best_prefix(
    ranking: Ranking, objective: Floats, seconds: Floats, slo: TimeCaps, no_harm: TimeCaps
) -> Choice:
    """Needs, then SLOs, then no harm, then the objective; prefixes shorter than the needs do not
    count. A cap that no prefix keeps is missed as little as can be, within `_TOLERANCE`."""
    over_slo = np.maximum(seconds - ranking.time_cap(slo), 0.0)[ranking.urgent :]
    over_harm = np.maximum(seconds - ranking.time_cap(no_harm), 0.0)[ranking.urgent :]
    allowed = missed_least(over_slo, seconds[0])
    allowed[allowed] = missed_least(over_harm[allowed], seconds[0])
    best = int(np.argmax(np.where(allowed, objective[ranking.urgent :], -np.inf)))
    length = ranking.urgent + best
    harmed = bool(over_harm[best] > 0.0)
    return Choice(
        ranking.nodes[:length],
        float(seconds[length]),
        np.bincount(ranking.owner[:length], ranking.path[:length], len(slo.slope)).astype(float),
        harmed and ranking.urgent > 0,
    )


def missed_least(over_s: Floats, plain_s: float) -> Mask:
    """Which choices keep their cap, or where none does miss it by the least."""
    least = over_s.min()
    return over_s <= (least + _TOLERANCE * plain_s if least > 0.0 else 0.0)


def urgent_nodes(
    gains: Gains, needs: Floats, least: Floats, worth_s: Floats, node_s: float, most: int
) -> tuple[Ints, Ints]:
    """How many of its best nodes each request needs, and whose need is out of reach.

    `needs` hold if the round takes as long as the objective would like, `least` if nothing is
    drafted: between them, the SLO's cap on the round decides. Of a need out of reach, nodes count
    that earn more (a token is worth `worth_s`, the TPOT) than the `node_s` that they cost each
    needy request.
    """
    urgent = np.zeros(len(needs), np.int64)
    needy = np.flatnonzero(needs > 1.0).tolist()
    hopeless: list[int] = []
    ends = np.cumsum(np.bincount(gains.owner, minlength=len(needs)))
    for number in needy:
        own = slice(int(ends[number - 1]) if number else 0, int(ends[number]))
        path = gains.path[own]
        reached = np.concatenate([[0.0], gains.before[own] + path])
        if reached[-1] >= needs[number] - 1.0:
            wanted = int(np.searchsorted(reached, needs[number] - 1.0))
        elif reached[-1] >= least[number] - 1.0:
            wanted = int(np.searchsorted(reached, least[number] - 1.0))
        else:
            hopeless.append(number)
            wanted = int(np.sum(path * worth_s[number] > node_s * len(needy)))
        urgent[number] = min(wanted, most)
    return urgent, np.array(hopeless, np.int64)


def _running_sum(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])
