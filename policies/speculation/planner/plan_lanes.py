"""A round's lanes as the planner sees them: what each may bring, and the rule that each gets."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from policies.cost import FREE, PiecewiseLinear
from policies.estimates.calibration import IDENTITY, Calibration
from policies.protocols import LaneBatch, RoundContext
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.plan import Thought
from policies.speculation.planner.round_inputs import RoundCosts
from policies.speculation.planner.step_rule import PlannerStepRule


class Lanes(NamedTuple):
    """Those that may draft, and who may draft there: pairs of a request and a lane, lane behind
    lane."""

    names: Sequence[str]
    starts: Sequence[int]
    """Lane l has the pairs from starts[l] up to starts[l + 1]."""
    steps: Sequence[PiecewiseLinear]
    call_s: Sequence[float]
    request: Ints
    """Of each pair, its place in the round."""
    unread: Floats
    """Of each pair, tokens that the first draft step reads."""

    @classmethod
    def of(
        cls, batches: Sequence[LaneBatch], places: Mapping[str, int], context: RoundContext
    ) -> "Lanes":
        names = [batch.lane or "" for batch in batches]
        unread = [count for batch in batches for count in batch.unread or [1] * len(batch.requests)]
        return cls(
            names,
            [*accumulate([len(batch.requests) for batch in batches], initial=0)],
            [context.draft[name].piecewise if name in context.draft else FREE for name in names],
            [context.call_s.get(name, 0.0) for name in names],
            np.array([places[one.name] for batch in batches for one in batch.requests], np.int64),
            np.maximum(np.array(unread, np.float64), 1.0),
        )

    def pairs(self, lane: int) -> slice:
        return slice(self.starts[lane], self.starts[lane + 1])


def rules_of(
    lanes: Lanes,
    names: tuple[str, ...],
    thought: Thought,
    costs: RoundCosts,
    calibrations: Mapping[str, Calibration],
) -> list[PlannerStepRule]:
    """One for each lane. What other lanes are about to do stands for what they will have done.
    `names`: of everyone."""
    nodes, drafting_s, widths, _ = thought.lanes.tolist()
    rules = []
    for lane, name in enumerate(lanes.names):
        others = sum(nodes) - nodes[lane]
        handled = others > 0.0
        calibration = calibrations.get(name)
        rules.append(
            PlannerStepRule(
                costs=RoundCosts(
                    verify=costs.verify,
                    draft=lanes.steps[lane],
                    call_s=lanes.call_s[lane],
                    read=thought.read,
                    fixed=costs.fixed + others,
                    waiting_s=costs.waiting_s + (costs.handling_s if handled else 0.0),
                    handling_s=0.0 if handled else costs.handling_s,
                    elsewhere_s=max(drafting_s[:lane] + drafting_s[lane + 1 :], default=0.0),
                    room=max(0, costs.room - int(others)),
                    weights=thought.weights,
                ),
                power=thought.power,
                names=names,
                prospects=thought.prospects[lane],
                survival=calibration.survival if calibration else IDENTITY,
                width=int(widths[lane]),
            )
        )
    return rules
