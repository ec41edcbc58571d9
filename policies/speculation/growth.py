"""The planner in the drafter's loop: whether one more draft step pays, and for whom.

Before each step it values what the next level of each request would add (the mass of its deepest
level × the request's expected acceptance) against what the step costs everyone: the drafter's
forward and the nodes that it adds to the verification. As in selection, the worth is sorted and
the objective evaluated at every number of requests that go on.
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
from policies.speculation.prefix import Objective, TimeCaps, missed_by
from policies.speculation.slo import Standing, needs_at, slo_caps


class RoundCosts(NamedTuple):
    """What the rule must know of the round besides the drafts."""

    verify: Bent
    draft: Bent
    """One step of this lane."""
    read: float
    """Committed tokens of the whole batch."""
    fixed: int
    """Tokens that are verified anyway: roots, and what rides along."""
    waiting_s: float
    handling_s: float
    """Of a round with drafts."""
    room: int
    """Draft tokens that the verification has room for."""
    draft_budget: int

    def seconds(self, nodes: int, drafting_s: float) -> float:
        """T of the round with so many draft tokens."""
        return round_seconds(self, float(nodes), drafting_s)


@njit(cache=True)
def round_seconds(costs: RoundCosts, nodes: float, drafting_s: float) -> float:
    verify_s = bent_seconds(costs.verify, costs.read, costs.fixed + nodes)
    handling_s = costs.handling_s if nodes > 0.0 else 0.0
    return drafting_s + handling_s + costs.waiting_s + verify_s


class Prospects(NamedTuple):
    """What each request of the batch may expect, as arrays."""

    context: Floats
    unread: Floats
    """Tokens that the first draft step reads."""
    acceptance: Floats
    """Of the next level, given that the one before is accepted."""
    needs: Floats
    """What A(r) asks beyond the target's own token; -inf: nothing."""
    promised: Floats
    """The gain that each request will have when drafting ends, if its needs are pursued."""
    token_s: Floats
    """What a token sooner is worth to an SLO."""
    caps: TimeCaps
    trust: Floats
    """Tokens that this lane adds per token that its confidences promise."""


def prospects(
    standing: Standing,
    unread: Sequence[int],
    acceptance: Floats,
    trust: Floats,
    no_harm: TimeCaps,
    now: float,
    verdict_s: float,
    depth: int,
) -> Prospects:
    """`verdict_s`: when the next one is to be expected; `depth`: the greatest."""
    needs, promised, token_s, slope, offset = _prospects(
        standing, acceptance, no_harm, now, verdict_s, depth
    )
    caps = TimeCaps(slope, offset)
    reads = np.array(unread, np.float64) if unread else np.ones(len(acceptance))
    return Prospects(standing.context, reads, acceptance, needs, promised, token_s, caps, trust)


@njit(cache=True)
def _prospects(
    standing: Standing,
    acceptance: Floats,
    no_harm: TimeCaps,
    now: float,
    verdict_s: float,
    depth: int,
) -> Floats:
    needs = needs_at(standing, verdict_s) - 1.0
    level, chain = np.ones_like(acceptance), np.zeros_like(acceptance)
    for _ in range(depth):
        level *= acceptance
        chain += level
    within_reach = needs <= chain
    slope, offset = slo_caps(standing, now)
    # What is out of reach is lost in this round, whatever it costs the others.
    offset = np.where(within_reach, offset, np.inf)
    return np.stack(
        (
            needs,
            np.where(within_reach, np.maximum(needs, 0.0), 0.0),
            np.where(np.isnan(standing.tpot_s), 0.0, standing.tpot_s),
            slope + no_harm.slope,
            np.minimum(offset, no_harm.offset),
        )
    )


class Drafted(NamedTuple):
    """How far a round's drafting has come."""

    gain: Floats
    mass: Floats
    """Of the deepest level: the probability that one of its nodes is accepted."""
    raw: Floats
    """The same in the drafter's own confidences."""
    nodes: int
    drafting_s: float


@dataclass(slots=True, eq=False)
class GrowthRule:
    """A StepRule. Arrays are by position in `names`."""

    costs: RoundCosts
    objective: Objective
    names: tuple[str, ...]
    prospects: Prospects
    survival: Curve
    width: int
    index: dict[str, int] = field(init=False)
    gain: Floats = field(init=False)
    mass: Floats = field(init=False)
    raw: Floats = field(init=False)
    nodes: int = field(init=False)
    drafting_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.index = {name: number for number, name in enumerate(self.names)}
        self._begin()

    def _begin(self) -> None:
        self.nodes, self.drafting_s = 0, 0.0
        self.gain = np.zeros(len(self.names))
        self.mass = np.ones(len(self.names))
        self.raw = np.ones(len(self.names))

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
            self.begin_at_most(len(at)),
            self.width,
            self.objective == "fair",
            self.costs,
            Drafted(self.gain, self.mass, self.raw, self.nodes, self.drafting_s),
            self.prospects,
        )

    def round_s(self, begun: Ints) -> float:
        """T if these requests draft their first level, and no more."""
        return self.costs.seconds(len(begun) * self.width, self._step_s(begun, 0))

    def tightest_cap_s(self) -> float:
        return float(
            self.prospects.caps.at(np.maximum(self.gain, self.prospects.promised)).min(
                initial=np.inf
            )
        )

    def _absorb(self, at: Ints, frontier: Sequence[NDArray[np.float32]]) -> None:
        """The level that was drafted since, its confidences calibrated."""
        drafted = Drafted(self.gain, self.mass, self.raw, self.nodes, self.drafting_s)
        sizes = np.array([len(level) for level in frontier], np.int64)
        confidence = np.concatenate(frontier)
        _absorb(at, sizes, confidence, drafted, self.survival, self.prospects.trust)
        self.nodes += len(confidence)

    def begin_at_most(self, requests: int) -> int:
        """Requests that one more step has room for in both budgets."""
        room = max(0, self.costs.room - self.nodes) // self.width
        return min(requests, room, self.costs.draft_budget // self.width)

    def _step_s(self, going: Ints, depth: int) -> float:
        if not len(going):
            return 0.0
        read = float(self.prospects.context[going].sum()) + depth * len(going)
        tokens = len(going) * self.width if depth else float(self.prospects.unread[going].sum())
        return self.costs.draft.predict(read, tokens)


@njit(cache=True)
def _absorb(
    at: Ints,
    sizes: Ints,
    confidence: NDArray[np.float32],
    drafted: Drafted,
    survival: Curve,
    trust: Floats,
) -> None:
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
    most: int,
    width: int,
    fair: bool,
    costs: RoundCosts,
    drafted: Drafted,
    prospects: Prospects,
) -> Mask:
    line = _in_line(at, fair, drafted, prospects)
    count = min(most, len(at))
    line = _Line(line.place[:count], line.request[:count], line.step[:count], line.worth[:count])
    # T if nobody goes on, the first one does, the first two do, ...
    seconds = np.empty(count + 1)
    seconds[0] = round_seconds(costs, float(drafted.nodes), drafted.drafting_s)
    read = tokens = 0.0
    for place in range(count):
        read += prospects.context[line.request[place]] + depth
        rows = float((place + 1) * width)
        tokens += width if depth else prospects.unread[line.request[place]]
        step_s = bent_seconds(costs.draft, read, tokens)
        seconds[place + 1] = round_seconds(costs, drafted.nodes + rows, drafted.drafting_s + step_s)
    go_on = np.zeros(len(at), np.bool_)
    go_on[line.place[: _how_many(line, seconds, fair, drafted, prospects)]] = True
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
def _in_line(at: Ints, fair: bool, drafted: Drafted, prospects: Prospects) -> _Line:
    step = drafted.mass[at] * prospects.acceptance[at] * prospects.trust[at]
    worth = np.log1p(step / (1.0 + drafted.gain[at])) if fair else step
    by_worth = np.argsort(-worth, kind="mergesort")
    urgent = (prospects.needs[at] > drafted.gain[at])[by_worth]
    place = np.concatenate((by_worth[urgent], by_worth[~urgent]))
    return _Line(place, at[place], step[place], worth[place])


@njit(cache=True)
def _how_many(
    line: _Line, seconds: Floats, fair: bool, drafted: Drafted, prospects: Prospects
) -> int:
    """The best number of requests to go on, `seconds` being T for each number."""
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
    return best


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
