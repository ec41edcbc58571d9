"""A round's lanes as the planner sees them: what each may bring, and the rule that each gets."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from policies.calibration import IDENTITY, Calibration
from policies.cost import Bent
from policies.speculation.beginning import Beginning
from policies.speculation.belief import Belief
from policies.speculation.forest import Floats, Ints
from policies.speculation.growth import GrowthRule
from policies.speculation.prefix import Objective
from policies.speculation.prospects import CALL_S, Calls, Chances, RoundCosts, of_lanes
from policies.speculation.slo import Standing

_READING_LASTS = 16
"""Rounds, at most, on which what it takes to read up is spread: what has been read stays known."""


class Lanes(NamedTuple):
    """Those that may draft, and who may draft there: pairs of a request and a lane, lane behind
    lane."""

    names: Sequence[str]
    starts: Sequence[int]
    """Lane l has the pairs from starts[l] up to starts[l + 1]."""
    steps: Sequence[Bent]
    calls: Calls
    chances: Chances

    def pairs(self, lane: int) -> slice:
        return slice(self.starts[lane], self.starts[lane + 1])

    def at(self, lane: int) -> Ints:
        """The lane's requests, as places in the round."""
        return self.chances.request[self.pairs(lane)]


def chances_of(
    request: Ints,
    lane: Ints,
    belief: Belief,
    trust: Floats,
    unread: Floats,
    standing: Standing,
    max_depth: int,
) -> Chances:
    """Arguments by pair, but for `standing`."""
    lasting, deepest = _room_for_drafts(request, standing.left, max_depth)
    return Chances(
        request=request,
        lane=lane,
        first=belief.first,
        acceptance=belief.acceptance,
        trust=trust,
        found=belief.found,
        unread=unread,
        lasting=lasting,
        deepest=deepest,
    )


@njit(cache=True)
def _room_for_drafts(request: Ints, left: Floats, max_depth: int) -> tuple[Floats, Ints]:
    """Of each pair, rounds in which having read pays, and levels that the output has room for."""
    lasting, deepest = np.empty(len(request)), np.empty(len(request), np.int64)
    for pair, place in enumerate(request):
        # Rounds with drafts commit several tokens each.
        lasting[pair] = min(max(left[place] / 4.0, 1.0), _READING_LASTS)
        deepest[pair] = int(min(left[place], max_depth))
    return lasting, deepest


def rules_of(
    lanes: Lanes,
    places: Mapping[str, int],
    begun: Beginning,
    waiting: Floats,
    costs: RoundCosts,
    objective: Objective,
    calibrations: Mapping[str, Calibration],
) -> list[GrowthRule]:
    """One for each lane. What other lanes are about to do stands for what they will have done.
    `places` and `waiting`: of everyone (prospects.py)."""
    prospects = of_lanes(waiting, lanes.chances, begun.depth, begun.gain, len(lanes.names))
    nodes, drafting_s = begun.nodes.tolist(), begun.drafting_s.tolist()
    call_s = lanes.calls.step[:, CALL_S].tolist()
    widths = lanes.calls.width.tolist()
    names = tuple(places)
    rules = []
    for lane, name in enumerate(lanes.names):
        others = sum(nodes) - nodes[lane]
        handled = others > 0.0
        calibration = calibrations.get(name)
        rules.append(
            GrowthRule(
                costs=costs._replace(
                    draft=lanes.steps[lane],
                    call_s=call_s[lane],
                    fixed=costs.fixed + others,
                    waiting_s=costs.waiting_s + (costs.handling_s if handled else 0.0),
                    handling_s=0.0 if handled else costs.handling_s,
                    elsewhere_s=max(drafting_s[:lane] + drafting_s[lane + 1 :], default=0.0),
                    room=max(0, costs.room - int(others)),
                ),
                objective=objective,
                names=names,
                prospects=prospects[lane],
                survival=calibration.survival if calibration else IDENTITY,
                width=widths[lane],
            )
        )
    return rules
