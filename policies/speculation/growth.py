"""The planner in the drafter's loop: whether one more draft step pays, and for whom.

Before each step it values what the next level of each request would add (the mass of its deepest
level × the request's expected acceptance) against what the step costs everyone: the drafter's
forward and the nodes that it adds to the verification. As in selection, the worth is sorted and
the objective evaluated at every number of requests that go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from policies.calibration import Curve
from policies.cost import CostModel
from policies.speculation.forest import Floats, Ints
from policies.speculation.prefix import Objective, TimeCaps, missed_least


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What the rule must know of the round besides the drafts."""

    verify: CostModel
    draft: CostModel | None
    """One step of this lane; None: it drafts for nothing."""
    read: int
    """Committed tokens of the whole batch."""
    fixed: int
    """Tokens that are verified anyway: roots, and what rides along."""
    waiting_s: float
    room: int
    """Draft tokens that the verification has room for."""
    draft_budget: int

    def seconds(self, nodes: int, drafting_s: float) -> float:
        """T of the round with so many draft tokens."""
        return drafting_s + self.waiting_s + self.verify.predict(self.read, self.fixed + nodes)


@dataclass(slots=True, eq=False)
class GrowthRule:
    """A StepRule. Arrays are by position in `names`."""

    costs: RoundCosts
    objective: Objective
    names: tuple[str, ...]
    context: Ints
    acceptance: Floats
    """Expected of the next level, given that the one before is accepted."""
    needs: Floats
    """What A(r) asks beyond the target's own token; -inf: nothing."""
    promised: Floats
    """The gain that each request will have when drafting ends, if its needs are pursued."""
    tpot: Floats
    caps: TimeCaps
    trust: Floats
    """Accepted tokens of each request per token that its confidences promise."""
    survival: Curve
    width: int
    index: dict[str, int] = field(init=False)
    gain: Floats = field(init=False)
    mass: Floats = field(init=False)
    """Of the deepest level: the probability that one of its nodes is accepted."""
    raw: Floats = field(init=False)
    """The same in the drafter's own confidences."""
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

    def worthwhile(self, at: Ints, depth: int) -> NDArray[np.bool_]:
        """Which of these requests draft their level depth + 1."""
        step = self.mass[at] * self.acceptance[at] * self.trust[at]
        fair = self.objective == "fair"
        worth = np.log1p(step / (1.0 + self.gain[at])) if fair else step
        urgent = self.needs > self.gain
        order = np.lexsort((-worth, ~urgent[at]))[: self.begin_at_most(len(at))]
        seconds = np.array(self._seconds(at[order], depth))
        slack_s = np.where(urgent[at], step * self.tpot[at], 0.0)[order]
        least = _for_needs(slack_s, seconds, int(urgent.sum()))
        over = np.maximum(seconds - self._time_cap(at[order], step[order]), 0.0)[least:]
        value = self._objective(worth[order], seconds)[least:]
        value[~missed_least(over, seconds[0])] = -np.inf
        go_on = np.zeros(len(at), np.bool_)
        go_on[order[: least + int(np.argmax(value))]] = True
        return go_on

    def round_s(self, begun: Ints) -> float:
        """T if these requests draft their first level, and no more."""
        return self.costs.seconds(len(begun) * self.width, self._step_s(begun, 0))

    def tightest_cap_s(self) -> float:
        return float(self.caps.at(np.maximum(self.gain, self.promised)).min(initial=np.inf))

    def _absorb(self, at: Ints, frontier: Sequence[NDArray[np.float32]]) -> None:
        """The level that was drafted since, its confidences calibrated."""
        raw = np.array([float(level.sum()) for level in frontier])
        survives = self.survival(raw / np.maximum(self.raw[at], 1e-12))
        self.mass[at] *= np.where(raw > 0.0, survives, 0.0)
        self.gain[at] += self.mass[at] * self.trust[at]
        self.raw[at] = raw
        self.nodes += sum(len(level) for level in frontier)

    def begin_at_most(self, requests: int) -> int:
        """Requests that one more step has room for in both budgets."""
        room = max(0, self.costs.room - self.nodes) // self.width
        return min(requests, room, self.costs.draft_budget // self.width)

    def _seconds(self, going: Ints, depth: int) -> list[float]:
        """T if nobody goes on, the first one does, the first two do, ..."""
        read = np.cumsum(self.context[going] + depth).tolist()
        draft, width = self.costs.draft, self.width
        seconds = [self.costs.seconds(self.nodes, self.drafting_s)]
        for count, context in enumerate(read, start=1):
            step_s = draft.predict(context, count * width) if draft else 0.0
            nodes = self.nodes + count * width
            seconds.append(self.costs.seconds(nodes, self.drafting_s + step_s))
        return seconds

    def _step_s(self, going: Ints, depth: int) -> float:
        if self.costs.draft is None or not len(going):
            return 0.0
        read = int(self.context[going].sum()) + depth * len(going)
        return self.costs.draft.predict(read, len(going) * self.width)

    def _objective(self, worth: Floats, seconds: Floats) -> Floats:
        added = np.concatenate([[0.0], np.cumsum(worth)])
        if self.objective == "fair":
            return added - len(self.names) * np.log(seconds)
        return np.log(len(self.names) + self.gain.sum() + added) - np.log(seconds)

    def _time_cap(self, going: Ints, step: Floats) -> Floats:
        """The tightest cap of any request if the first 0, 1, ... of `going` draft on."""
        resting = self.caps.at(np.maximum(self.gain, self.promised))
        grown = self.caps.at(np.maximum(self.gain[going] + step, self.promised[going]), going)
        others = resting.copy()
        others[going] = np.inf
        waiting = np.minimum.accumulate(resting[going][::-1])[::-1]
        return np.minimum(
            np.minimum(np.append(waiting, np.inf), others.min(initial=np.inf)),
            np.concatenate([[np.inf], np.minimum.accumulate(grown)]),
        )


def _for_needs(slack_s: Floats, seconds: Floats, urgent: int) -> int:
    """How many go on for needs, whatever the objective says: the most for whom the seconds that
    their next tokens earn them outweigh those that the step takes from every urgent request."""
    earned = np.cumsum(slack_s)
    pays = (slack_s > 0.0) & (earned > (seconds[1:] - seconds[0]) * urgent)
    return int(np.flatnonzero(pays)[-1]) + 1 if pays.any() else 0
