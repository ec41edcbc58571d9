"""The planner in the drafter's loop: whether one more draft step pays, and for whom.

Before each step it values what the next level of each request would add (the mass of its deepest
level × the request's expected acceptance) against what the step costs everyone: the drafter's
forward and the nodes that it adds to the verification. Before the first one it looks further
ahead, for part of the cost comes but once: handling, and what the drafter has not read. As in
selection, the worth is sorted and the objective evaluated at every number of requests that go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from policies.calibration import Curve, interpolated
from policies.cost import Bent, bent_seconds
from policies.protocols import Mask
from policies.speculation.forest import Floats, Ints
from policies.speculation.prefix import Objective, missed_by
from policies.speculation.prospects import (
    Prospects,
    RoundCosts,
    chain,
    prospects_in,
    round_seconds,
)


class Drafted(NamedTuple):
    """How far a round's drafting has come, likewise the rows of one array."""

    gain: Floats
    mass: Floats
    """Of the deepest level: the probability that one of its nodes is accepted."""
    raw: Floats
    """The same in the drafter's own confidences."""


@njit(cache=True)
def _drafted_in(rows: Floats) -> Drafted:
    return Drafted(rows[0], rows[1], rows[2])


@dataclass(slots=True, eq=False)
class GrowthRule:
    """A StepRule. Columns of its arrays are by position in `names`."""

    costs: RoundCosts
    objective: Objective
    names: tuple[str, ...]
    prospects: Floats
    survival: Curve
    width: int
    deepest: int
    """Levels that a draft has at most."""
    index: dict[str, int] = field(init=False)
    drafted: Floats = field(init=False)
    nodes: int = field(init=False)
    drafting_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.index = {name: number for number, name in enumerate(self.names)}
        self._begin()

    def _begin(self) -> None:
        self.nodes, self.drafting_s = 0, 0.0
        self.drafted = np.zeros((3, len(self.names)))
        self.drafted[1:] = 1.0

    def __call__(
        self, depth: int, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]
    ) -> Sequence[bool]:
        at = np.array([self.index[name] for name in requests], np.int64)
        if depth == 0:
            self._begin()
            # The plan has decided who begins.
            go_on = np.ones(len(at), np.bool_)
        else:
            self._absorb(at, frontier)
            go_on = self.worthwhile(at, depth)
        self.drafting_s += self._step_s(at[go_on], depth)
        return go_on.tolist()

    def worthwhile(self, at: Ints, depth: int) -> Mask:
        """Which of these requests draft their level depth + 1."""
        return _going_on(
            at,
            depth,
            self.deepest,
            self.begin_at_most(len(at)),
            self.width,
            self.objective == "fair",
            self.costs,
            self.nodes,
            self.drafting_s,
            self.drafted,
            self.prospects,
        )

    def round_s(self, begun: Ints) -> float:
        """T if these requests draft their first level, and no more."""
        return self.costs.seconds(len(begun) * self.width, self._step_s(begun, 0))

    def tightest_cap_s(self) -> float:
        prospects = prospects_in.py_func(self.prospects)
        gain = _drafted_in.py_func(self.drafted).gain
        caps = prospects.caps.at(np.maximum(gain, prospects.promised))
        return float(caps.min(initial=np.inf))

    def _absorb(self, at: Ints, frontier: Sequence[NDArray[np.float32]]) -> None:
        """The level that was drafted since, its confidences calibrated."""
        sizes = np.array([len(level) for level in frontier], np.int64)
        confidence = np.concatenate(frontier)
        _absorb(at, sizes, confidence, self.drafted, self.survival, self.prospects)
        self.nodes += len(confidence)

    def begin_at_most(self, requests: int) -> int:
        """Requests that one more step has room for in both budgets."""
        room = max(0, self.costs.room - self.nodes) // self.width
        return min(requests, room, self.costs.draft_budget // self.width)

    def _step_s(self, going: Ints, depth: int) -> float:
        return _step_s(going, depth, self.width, self.costs.draft, self.prospects)


@njit(cache=True)
def _step_s(going: Ints, depth: int, width: int, draft: Bent, rows: Floats) -> float:
    prospects = prospects_in(rows)
    read = tokens = 0.0
    for request in going:
        read += prospects.context[request] + depth
        tokens += width if depth else prospects.unread[request]
    return bent_seconds(draft, read, tokens) if len(going) else 0.0


@njit(cache=True)
def _absorb(
    at: Ints,
    sizes: Ints,
    confidence: NDArray[np.float32],
    rows: Floats,
    survival: Curve,
    prospects: Floats,
) -> None:
    drafted, trust = _drafted_in(rows), prospects_in(prospects).trust
    begin = 0
    for number, request in enumerate(at):
        raw = confidence[begin : begin + sizes[number]].sum()
        begin += sizes[number]
        share = raw / max(drafted.raw[request], 1e-12)
        survives = interpolated(survival.confidence, survival.probability, share)
        drafted.mass[request] *= survives if raw > 0.0 else 0.0
        drafted.gain[request] += drafted.mass[request] * trust[request]
        drafted.raw[request] = raw


@njit(cache=True)
def _going_on(
    at: Ints,
    depth: int,
    deepest: int,
    most: int,
    width: int,
    fair: bool,
    costs: RoundCosts,
    nodes: int,
    drafting_s: float,
    drafted_rows: Floats,
    prospects_rows: Floats,
) -> Mask:
    drafted, prospects = _drafted_in(drafted_rows), prospects_in(prospects_rows)
    # Needs are met level by level.
    ahead = 1 if depth or np.any(prospects.needs > drafted.gain) else deepest
    go_on = np.zeros(len(at), np.bool_)
    best, levels = -np.inf, 1
    while levels <= ahead:
        fit = min(most, len(at), max(0, costs.room - nodes) // (width * levels))
        line = _in_line(at, depth, levels, fit, fair, drafted, prospects)
        seconds = _seconds(line, depth, levels, width, costs, nodes, drafting_s, prospects)
        count, value = _how_many(line, seconds, fair, drafted, prospects)
        if value > best:
            best = value
            go_on[:] = False
            go_on[line.place[:count]] = True
        levels *= 2
    return go_on


class _Line(NamedTuple):
    """Requests that may go on, those with needs first, then the most worthwhile."""

    place: Ints
    """In what was asked for."""
    request: Ints
    step: Floats
    """What the next level, or the next ones, should bring each."""
    worth: Floats
    """To the objective."""


@njit(cache=True)
def _in_line(
    at: Ints,
    depth: int,
    levels: int,
    most: int,
    fair: bool,
    drafted: Drafted,
    prospects: Prospects,
) -> _Line:
    nearest = prospects.acceptance if depth else prospects.first
    reached = nearest * chain(prospects.acceptance, levels)
    step = drafted.mass[at] * reached[at] * prospects.trust[at]
    worth = np.log1p(step / (1.0 + drafted.gain[at])) if fair else step
    by_worth = np.argsort(-worth, kind="mergesort")
    urgent = (prospects.needs[at] > drafted.gain[at])[by_worth]
    place = np.concatenate((by_worth[urgent], by_worth[~urgent]))[:most]
    return _Line(place, at[place], step[place], worth[place])


@njit(cache=True)
def _seconds(
    line: _Line,
    depth: int,
    levels: int,
    width: int,
    costs: RoundCosts,
    nodes: int,
    drafting_s: float,
    prospects: Prospects,
) -> Floats:
    """T if nobody goes on, the first one in line does, the first two do, ..."""
    seconds = np.empty(len(line.place) + 1)
    seconds[0] = round_seconds(costs, float(nodes), drafting_s)
    read = tokens = 0.0
    for place, request in enumerate(line.request):
        read += prospects.context[request] + depth
        tokens += width if depth else prospects.unread[request]
        rows = float((place + 1) * width)
        steps_s = bent_seconds(costs.draft, read, tokens)
        steps_s += (levels - 1) * bent_seconds(costs.draft, read, rows)
        seconds[place + 1] = round_seconds(costs, nodes + levels * rows, drafting_s + steps_s)
    return seconds


@njit(cache=True)
def _how_many(
    line: _Line, seconds: Floats, fair: bool, drafted: Drafted, prospects: Prospects
) -> tuple[int, float]:
    """The best number of requests to go on, `seconds` being T for each number, and its value."""
    least = _for_needs(line, seconds, drafted.gain, prospects)
    over = np.maximum(seconds - _tightest_cap(line, drafted.gain, prospects), 0.0)
    limit = missed_by(over[least:].min(), seconds[0])
    requests = len(drafted.gain)
    total = requests + drafted.gain.sum()
    added = line.worth[:least].sum()
    best, most = least, -np.inf
    for count in range(least, len(seconds)):
        if count > least:
            added += line.worth[count - 1]
        if over[count] <= limit:
            if fair:
                value = added - requests * np.log(seconds[count])
            else:
                value = np.log((total + added) / seconds[count])
            if value > most:
                best, most = count, value
    return best, most


@njit(cache=True)
def _for_needs(line: _Line, seconds: Floats, gain: Floats, prospects: Prospects) -> int:
    """How many go on for needs, whatever the objective says: the most for whom the seconds that
    their next tokens earn them outweigh those that the step takes from every urgent request."""
    urgent = prospects.needs > gain
    waiting = urgent.sum()
    least, earned_s = 0, 0.0
    for place in range(len(line.request)):
        request = line.request[place]
        slack_s = line.step[place] * prospects.token_s[request]
        if urgent[request] and slack_s > 0.0:
            earned_s += slack_s
            if earned_s > (seconds[place + 1] - seconds[0]) * waiting:
                least = place + 1
    return least


@njit(cache=True)
def _tightest_cap(line: _Line, gain: Floats, prospects: Prospects) -> Floats:
    """The tightest cap of any request if the first 0, 1, ... in line draft on."""
    promised, caps = prospects.promised, prospects.caps
    resting = caps.slope * (1.0 + np.maximum(gain, promised)) + caps.offset
    others = resting.copy()
    others[line.request] = np.inf
    count = len(line.request)
    tightest = np.full(count + 1, others.min())
    waiting = np.inf
    for place in range(count - 1, -1, -1):
        waiting = min(waiting, resting[line.request[place]])
        tightest[place] = min(tightest[place], waiting)
    grown = np.inf
    for place in range(count):
        request = line.request[place]
        reached = max(gain[request] + line.step[place], promised[request])
        grown = min(grown, caps.slope[request] * (1.0 + reached) + caps.offset[request])
        tightest[place + 1] = min(tightest[place + 1], grown)
    return tightest
