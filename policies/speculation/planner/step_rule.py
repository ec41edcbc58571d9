"""The planner's step rule, which runs in the drafter's process: which requests draft one more
level.

Before each step except the first, the next level of each request is an item of the best-prefix
search. Its gain is the probability of the deepest level drafted so far, from the drafter's
calibrated confidences, times the request's usual acceptance.
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
from policies.speculation.planner.best_prefix import Items, Requests, best_prefix, item_order
from policies.speculation.planner.objective import worth_of
from policies.speculation.planner.round_inputs import RoundCosts, round_seconds


class LaneOutlook(NamedTuple):
    """What one lane can add for each request of the round."""

    unread: Floats
    """Committed tokens that the first draft step processes."""
    next: Floats
    """Probability that a later level is accepted, given that the one before it is."""
    added: Floats
    """Tokens that the lane adds per accepted token: lookups may propose the same ones."""


class _Drafted(NamedTuple):
    """What each request has drafted so far."""

    gain: Floats
    mass: Floats
    """Calibrated probability that a node of the deepest level is accepted."""
    raw: Floats
    """The same before calibration."""


@dataclass(slots=True, eq=False)
class PlannerStepRule:
    """The StepRule of one lane; its arrays have one element for each of `names`."""

    fair: bool
    costs: RoundCosts
    step: PiecewiseLinear
    call_s: float
    names: tuple[str, ...]
    """All requests of the micro-batch."""
    requests: Requests
    outlook: LaneOutlook
    survival: Curve
    width: int
    index: dict[str, int] = field(init=False, default_factory=dict)
    """Index of each name; built at the first step, so that it is not sent with the rule."""
    drafted: _Drafted = field(init=False)
    nodes: int = field(init=False)
    drafting_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        count = len(self.names)
        self.drafted = _Drafted(np.zeros(count), np.ones(count), np.ones(count))
        self.nodes, self.drafting_s = 0, 0.0

    def __call__(
        self, depth: int, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]
    ) -> Sequence[bool]:
        if depth == 0:
            self.index = {name: place for place, name in enumerate(self.names)}
            self._reset()
        at = np.array([self.index[name] for name in requests], np.int64)
        if depth == 0:
            continues = np.ones(
                len(at), np.bool_
            )  # the plan has already decided which requests draft
        else:
            sizes = np.array([len(level) for level in frontier], np.int64)
            confidence = np.concatenate(frontier)
            _absorb(at, sizes, confidence, self.drafted, self.survival, self.outlook)
            self.nodes += len(confidence)
            continues = _continuing(
                self.fair,
                at,
                depth,
                self.width,
                self.costs,
                self.step,
                self.nodes,
                self.drafting_s,
                self.drafted,
                self.outlook,
                self.requests,
            )
        self.drafting_s += self.step_s(at[continues], depth)
        return continues.tolist()

    def exploration_s(self, drafting: Ints, idle: Ints) -> tuple[list[float], float]:
        """The time that one level for the first 1, 2, 4, ... of the `idle` requests adds to a round
        in which `drafting` requests draft; and the slack, by which the round may be longer within
        all caps."""
        without_s = self._round_s(drafting)
        cost_s, count = [], 1
        while count <= len(idle):
            with_s = self._round_s(np.concatenate([drafting, idle[:count]]))
            cost_s.append(with_s - without_s)
            count *= 2
        gain = 1.0 + np.maximum(self.requests.expected, self.requests.min_gain)
        caps = (self.requests.slo, self.requests.no_harm)
        cap_s = min(float((cap.slope * gain + cap.offset).min()) for cap in caps)
        return cost_s, cap_s - without_s

    def _round_s(self, drafting: Ints) -> float:
        """Time of a round in which these requests draft one level."""
        nodes = len(drafting) * self.width
        if nodes > self.costs.room:
            return np.inf
        return round_seconds.py_func(self.costs, float(nodes), self.step_s(drafting, 0))

    def step_s(self, going: Ints, depth: int) -> float:
        """Time of one draft step of these requests; the first one includes the call's own time."""
        if not len(going):
            return 0.0
        tokens = self.outlook.unread[going].sum() if depth == 0 else len(going) * self.width
        context = self.requests.context[going].sum() + len(going) * depth
        return self.step.predict(context, tokens) + (self.call_s if depth == 0 else 0.0)


@njit(cache=True)
def _absorb(
    at: Ints,
    sizes: Ints,
    confidence: NDArray[np.float32],
    drafted: _Drafted,
    survival: Curve,
    outlook: LaneOutlook,
) -> None:
    """Adds the level drafted last, with calibrated confidences."""
    begin = 0
    for number, request in enumerate(at):
        raw = confidence[begin : begin + sizes[number]].sum()
        begin += sizes[number]
        share = raw / max(drafted.raw[request], 1e-12)
        survives = interpolate(survival.confidence, survival.probability, share)
        drafted.mass[request] *= survives if raw > 0.0 else 0.0
        drafted.gain[request] += drafted.mass[request] * outlook.added[request]
        drafted.raw[request] = raw


@njit(cache=True)
def _continuing(
    fair: bool,
    at: Ints,
    depth: int,
    width: int,
    costs: RoundCosts,
    step: PiecewiseLinear,
    nodes: int,
    drafting_s: float,
    drafted: _Drafted,
    outlook: LaneOutlook,
    requests: Requests,
) -> Mask:
    expected = requests.expected + drafted.gain
    gain = drafted.mass[at] * outlook.next[at] * outlook.added[at]
    worth, urgent = np.empty(len(at)), np.empty(len(at), np.bool_)
    for number, request in enumerate(at):
        worth[number] = requests.weight[request] * worth_of(fair, expected[request], gain[number])
        urgent[number] = expected[request] < requests.min_gain[request]
    fitting = max(0, costs.room - nodes) // width
    order = item_order(worth, at, urgent, requests.need)[:fitting]
    items = Items(at[order], gain[order], worth[order], min(urgent.sum(), len(order)))
    seconds = np.empty(len(order) + 1)
    seconds[0] = round_seconds(costs, nodes, drafting_s)
    context = 0.0
    for number, request in enumerate(items.owner):
        context += requests.context[request] + depth
        rows = (number + 1.0) * width
        step_s = forward_seconds(step, context, rows)
        seconds[number + 1] = round_seconds(costs, nodes + rows, drafting_s + step_s)
    so_far = Requests(
        requests.context,
        requests.weight,
        requests.need,
        requests.token_s,
        requests.slo,
        requests.no_harm,
        expected,
        requests.min_gain,
    )
    taken = best_prefix(fair, items, so_far, seconds, seconds)
    continues = np.zeros(len(at), np.bool_)
    continues[order[:taken]] = True
    return continues
