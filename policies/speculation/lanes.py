"""A round's lanes as the planner sees them: what each may bring, and the rule that each gets."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from policies.calibration import IDENTITY, Calibration
from policies.cost import Bent
from policies.speculation.beginning import Beginning, Chances
from policies.speculation.belief import Belief
from policies.speculation.forest import Floats, Ints
from policies.speculation.growth import GrowthRule
from policies.speculation.prefix import Objective
from policies.speculation.prospects import RoundCosts, of_lane
from policies.speculation.slo import Standing

_READING_LASTS = 16
"""Rounds, at most, on which what it takes to read up is spread: what has been read stays known."""


class Lane(NamedTuple):
    """Who may draft on one lane."""

    name: str
    at: Ints
    """Places in the round."""
    belief: Belief
    trust: Floats
    unread: Floats
    step: Bent
    call_s: float
    """Besides its steps."""
    width: int


def chances_of(lanes: Sequence[Lane], standing: Standing, max_depth: int) -> Chances:
    at = np.concatenate([lane.at for lane in lanes])
    left = standing.left[at]
    return Chances(
        request=at,
        lane=np.repeat(np.arange(len(lanes)), [len(lane.at) for lane in lanes]),
        first=np.concatenate([lane.belief.first for lane in lanes]),
        acceptance=np.concatenate([lane.belief.acceptance for lane in lanes]),
        trust=np.concatenate([lane.trust for lane in lanes]),
        found=np.concatenate([lane.belief.found for lane in lanes]),
        unread=np.concatenate([lane.unread for lane in lanes]),
        # Rounds with drafts commit several tokens each.
        lasting=np.clip(left / 4.0, 1.0, _READING_LASTS),
        deepest=np.minimum(left, max_depth).astype(np.int64),
    )


def rule_of(
    number: int,
    lane: Lane,
    names: tuple[str, ...],
    chances: Chances,
    begun: Beginning,
    waiting: Floats,
    costs: RoundCosts,
    objective: Objective,
    calibration: Calibration | None,
) -> GrowthRule:
    """Of the lane with this `number`. What other lanes are about to do stands for what they will
    have done. `names` and `waiting`: of everyone (prospects.py)."""
    others = chances.lane != number
    gains = np.where(others & (begun.depth > 0), begun.gain, 0.0)
    nodes = float(begun.nodes.sum() - begun.nodes[number])
    handled = nodes > 0.0
    return GrowthRule(
        costs=costs._replace(
            draft=lane.step,
            call_s=lane.call_s,
            fixed=costs.fixed + nodes,
            waiting_s=costs.waiting_s + (costs.handling_s if handled else 0.0),
            handling_s=0.0 if handled else costs.handling_s,
            elsewhere_s=float(np.delete(begun.drafting_s, number).max(initial=0.0)),
            room=max(0, costs.room - int(nodes)),
        ),
        objective=objective,
        names=names,
        prospects=of_lane(
            waiting,
            lane.at,
            lane.unread,
            lane.belief.acceptance,
            lane.trust,
            np.bincount(chances.request, gains, len(names)),
        ),
        survival=calibration.survival if calibration else IDENTITY,
        width=lane.width,
    )
