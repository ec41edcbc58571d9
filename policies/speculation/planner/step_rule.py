"""The planner in the drafter's loop: whether one more draft step pays, and for whom.

Before each step but the first it values what the next level of each request would add (the mass of
its deepest level × the request's expected acceptance) against what the step costs everyone: the
drafter's forward and the nodes that it adds to the verification. As in selection, the worth is
sorted and the objective evaluated at every number of requests that go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from policies.cost import PiecewiseLinear, forward_seconds
from policies.estimates.calibration import Curve, interpolate
from policies.protocols import Mask
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.best_prefix import missed_by
from policies.speculation.planner.objective import value_of, worth_of
from policies.speculation.planner.round_inputs import (
    Prospects,
    RoundCosts,
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
class PlannerStepRule:
    """A StepRule of one lane. Columns of its arrays are by position in `names`."""

    costs: RoundCosts
    power: float
    """Of the objective."""
    names: tuple[str, ...]
    """Of everyone who waits for the verdict."""
    prospects: Floats
    survival: Curve
    width: int
    index: dict[str, int] = field(init=False, default_factory=dict)
    """Of `names`, once drafting has begun: a rule is sent without it."""
    drafted: Floats = field(init=False)
    nodes: int = field(init=False)
    drafting_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.nodes, self.drafting_s = 0, 0.0
        self.drafted = np.zeros((3, len(self.names)))
        self.drafted[1:] = 1.0

    def __call__(
        self, depth: int, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]
    ) -> Sequence[bool]:
        if depth == 0:
            self.index = {name: number for number, name in enumerate(self.names)}
            self._begin()
        at = np.array([self.index[name] for name in requests], np.int64)
        if depth == 0:
            # The plan has decided who begins.
            go_on = np.ones(len(at), np.bool_)
        else:
            self._absorb(at, frontier)
            go_on = self.worthwhile(at, depth)
        self.drafting_s += self._step_s(at[go_on], depth)
        return go_on.tolist()

    def worthwhile(self, at: Ints, depth: int) -> Mask:
        """Which of these requests, all at this depth, draft one level more."""
        return _going_on(
            at,
            depth,
            self.at_most(len(at)),
            self.width,
            self.power,
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
        return float(_caps(self.drafted, self.prospects).min(initial=np.inf))

    def _absorb(self, at: Ints, frontier: Sequence[NDArray[np.float32]]) -> None:
        """The level that was drafted since, its confidences calibrated."""
        sizes = np.array([len(level) for level in frontier], np.int64)
        confidence = np.concatenate(frontier)
        _absorb(at, sizes, confidence, self.drafted, self.survival, self.prospects)
        self.nodes += len(confidence)

    def at_most(self, requests: int) -> int:
        """Requests that one more step has room for."""
        return min(requests, max(0, self.costs.room - self.nodes) // self.width)

    def _step_s(self, going: Ints, depth: int) -> float:
        """The first one with what the call takes besides its steps."""
        call_s = self.costs.call_s if depth == 0 and len(going) else 0.0
        return call_s + _step_s(going, depth, self.width, self.costs.draft, self.prospects)


@njit(cache=True)
def _step_s(going: Ints, depth: int, width: int, draft: PiecewiseLinear, rows: Floats) -> float:
    prospects = prospects_in(rows)
    read = tokens = 0.0
    for request in going:
        read += prospects.everyone.context[request] + depth
        tokens += width if depth else prospects.unread[request]
    return forward_seconds(draft, read, tokens) if len(going) else 0.0


@njit(cache=True)
def _caps(drafted_rows: Floats, prospects_rows: Floats) -> Floats:
    """How long the round may take for each, with what has been drafted."""
    prospects = prospects_in(prospects_rows)
    return _cap(_drafted_in(drafted_rows).gain, prospects)


@njit(cache=True)
def _cap(gain: Floats, prospects: Prospects) -> Floats:
    everyone = prospects.everyone
    reached = np.maximum(gain + prospects.elsewhere, everyone.promised)
    return everyone.slope * (1.0 + reached) + everyone.offset


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
        survives = interpolate(survival.confidence, survival.probability, share)
        drafted.mass[request] *= survives if raw > 0.0 else 0.0
        drafted.gain[request] += drafted.mass[request] * trust[request]
        drafted.raw[request] = raw


@njit(cache=True)
def _going_on(
    at: Ints,
    depth: int,
    most: int,
    width: int,
    power: float,
    costs: RoundCosts,
    nodes: int,
    drafting_s: float,
    drafted_rows: Floats,
    prospects_rows: Floats,
) -> Mask:
    drafted, prospects = _drafted_in(drafted_rows), prospects_in(prospects_rows)
    line = _in_line(at, most, power, drafted, prospects)
    seconds = _seconds(line, depth, width, costs, nodes, drafting_s, prospects)
    go_on = np.zeros(len(at), np.bool_)
    count = _how_many(line, seconds, power, costs.weights, drafted, prospects)
    go_on[line.place[:count]] = True
    return go_on


class _Line(NamedTuple):
    """Requests that may go on, those with needs first, then the most worthwhile."""

    place: Ints
    """In what was asked for."""
    request: Ints
    step: Floats
    """What the next level should bring each."""
    worth: Floats
    """To the objective."""


@njit(cache=True)
def _in_line(at: Ints, most: int, power: float, drafted: Drafted, prospects: Prospects) -> _Line:
    step = drafted.mass[at] * prospects.acceptance[at] * prospects.trust[at]
    gain = drafted.gain[at] + prospects.elsewhere[at]
    weight = prospects.everyone.weight[at]
    worth = np.empty(len(at))
    for number in range(len(at)):
        worth[number] = weight[number] * worth_of(power, gain[number], step[number])
    by_worth = np.argsort(-worth, kind="mergesort")
    urgent = (prospects.everyone.needs[at] > gain)[by_worth]
    place = np.concatenate((by_worth[urgent], by_worth[~urgent]))[:most]
    return _Line(place, at[place], step[place], worth[place])


@njit(cache=True)
def _seconds(
    line: _Line,
    depth: int,
    width: int,
    costs: RoundCosts,
    nodes: int,
    drafting_s: float,
    prospects: Prospects,
) -> Floats:
    """T if nobody goes on, the first one in line does, the first two do, ..."""
    seconds = np.empty(len(line.place) + 1)
    seconds[0] = round_seconds(costs, float(nodes), drafting_s)
    read = 0.0
    for place, request in enumerate(line.request):
        read += prospects.everyone.context[request] + depth
        rows = float((place + 1) * width)
        step_s = forward_seconds(costs.draft, read, rows)
        seconds[place + 1] = round_seconds(costs, nodes + rows, drafting_s + step_s)
    return seconds


@njit(cache=True)
def _how_many(
    line: _Line,
    seconds: Floats,
    power: float,
    weights: float,
    drafted: Drafted,
    prospects: Prospects,
) -> int:
    """The best number of requests to go on, `seconds` being T for each number."""
    least = _for_needs(line, seconds, drafted.gain, prospects)
    over = np.maximum(seconds - _tightest_cap(line, drafted.gain, prospects), 0.0)
    limit = missed_by(over[least:].min(), seconds[0])
    worth = 0.0
    for request in range(len(drafted.gain)):
        gain = drafted.gain[request] + prospects.elsewhere[request]
        worth += prospects.everyone.weight[request] * worth_of(power, 0.0, gain)
    worth += line.worth[:least].sum()
    best, most = least, -np.inf
    for count in range(least, len(seconds)):
        if count > least:
            worth += line.worth[count - 1]
        if over[count] <= limit:
            value = value_of(power, worth, weights, seconds[count])
            if value > most:
                best, most = count, value
    return best


@njit(cache=True)
def _for_needs(line: _Line, seconds: Floats, gain: Floats, prospects: Prospects) -> int:
    """How many go on for needs, whatever the objective says: the most for whom the seconds that
    their next tokens earn them outweigh those that the step takes from every urgent request."""
    everyone = prospects.everyone
    urgent = everyone.needs > gain + prospects.elsewhere
    waiting = urgent.sum()
    least, earned_s = 0, 0.0
    for place in range(len(line.request)):
        request = line.request[place]
        slack_s = line.step[place] * everyone.token_s[request]
        if urgent[request] and slack_s > 0.0:
            earned_s += slack_s
            if earned_s > (seconds[place + 1] - seconds[0]) * waiting:
                least = place + 1
    return least


@njit(cache=True)
def _tightest_cap(line: _Line, gain: Floats, prospects: Prospects) -> Floats:
    """The tightest cap of any request if the first 0, 1, ... in line draft on."""
    resting = _cap(gain, prospects)
    others = resting.copy()
    others[line.request] = np.inf
    count = len(line.request)
    tightest = np.full(count + 1, others.min())
    waiting = np.inf
    for place in range(count - 1, -1, -1):
        waiting = min(waiting, resting[line.request[place]])
        tightest[place] = min(tightest[place], waiting)
    grown = gain.copy()
    grown[line.request] += line.step
    reached = _cap(grown, prospects)
    least = np.inf
    for place in range(count):
        least = min(least, reached[line.request[place]])
        tightest[place + 1] = min(tightest[place + 1], least)
    return tightest
