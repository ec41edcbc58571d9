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

from policies.cost import ForwardCost, forward_seconds
from policies.estimates.calibration import Curve, interpolate
from policies.protocols import Mask
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.best_prefix import Items, Requests, best_prefix, item_order
from policies.speculation.planner.round_costs import ADDED, NEXT, RoundCosts, round_seconds


class LaneCosts(NamedTuple):
    step: ForwardCost
    call_s: float
    """Time of a draft call besides its steps."""


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

    costs: RoundCosts
    lane: LaneCosts
    names: tuple[str, ...]
    """All requests of the micro-batch."""
    requests: Requests
    chances: Floats
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
        self.nodes, self.drafting_s = 0, self.lane.call_s

    def __call__(
        self, depth: int, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]
    ) -> Sequence[bool]:
        if depth == 0:
            self.index = {name: place for place, name in enumerate(self.names)}
            self._reset()
        at = np.array([self.index[name] for name in requests], np.int64)
        if depth == 0:
            continues = np.ones(len(at), np.bool_)  # the call itself costs most
        else:
            sizes = np.array([len(level) for level in frontier], np.int64)
            confidence = np.concatenate(frontier)
            _absorb(at, sizes, confidence, self.drafted, self.survival, self.chances)
            self.nodes += len(confidence)
            continues = _continuing(
                at,
                depth,
                self.width,
                self.costs,
                self.lane,
                self.nodes,
                self.drafting_s,
                self.drafted,
                self.chances,
                self.requests,
            )
        self.drafting_s += self._step_s(at[continues], depth)
        return continues.tolist()

    def _step_s(self, going: Ints, depth: int) -> float:
        if not len(going):
            return 0.0
        tokens = len(going) * (self.width if depth else 1)
        context = self.requests.context[going].sum() + len(going) * depth
        return self.lane.step.predict(context, tokens)


@njit(cache=True)
def _absorb(
    at: Ints,
    sizes: Ints,
    confidence: NDArray[np.float32],
    drafted: _Drafted,
    survival: Curve,
    chances: Floats,
) -> None:
    """Adds the level drafted last, with calibrated confidences."""
    begin = 0
    for number, request in enumerate(at):
        raw = confidence[begin : begin + sizes[number]].sum()
        begin += sizes[number]
        share = raw / max(drafted.raw[request], 1e-12)
        survives = interpolate(survival.confidence, survival.probability, share)
        drafted.mass[request] *= survives if raw > 0.0 else 0.0
        drafted.gain[request] += drafted.mass[request] * chances[ADDED, request]
        drafted.raw[request] = raw


@njit(cache=True)
def _continuing(
    at: Ints,
    depth: int,
    width: int,
    costs: RoundCosts,
    lane: LaneCosts,
    nodes: int,
    drafting_s: float,
    drafted: _Drafted,
    chances: Floats,
    requests: Requests,
) -> Mask:
    expected = requests.expected + drafted.gain
    gain, urgent = np.empty(len(at)), np.empty(len(at), np.bool_)
    for number, request in enumerate(at):
        gain[number] = drafted.mass[request] * chances[NEXT, request] * chances[ADDED, request]
        urgent[number] = expected[request] < requests.min_gain[request]
    fitting = max(0, costs.room - nodes) // width
    order = item_order(gain, at, urgent, requests.need)[:fitting]
    items = Items(at[order], gain[order], min(urgent.sum(), len(order)))
    seconds = np.empty(len(order) + 1)
    seconds[0] = round_seconds(costs, nodes, drafting_s)
    context = 0.0
    for number, request in enumerate(items.owner):
        context += requests.context[request] + depth
        rows = (number + 1.0) * width
        step_s = forward_seconds(lane.step, context, rows)
        seconds[number + 1] = round_seconds(costs, nodes + rows, drafting_s + step_s)
    so_far = Requests(
        requests.context,
        requests.need,
        requests.token_s,
        requests.slo,
        expected,
        requests.min_gain,
        requests.first_token_limit_s,
    )
    taken = best_prefix(items, so_far, seconds)
    continues = np.zeros(len(at), np.bool_)
    continues[order[:taken]] = True
    return continues
