"""Lanes on which nobody is expected to draft with profit: how long they are left alone, and what
is spent on finding out whether that still holds."""

from dataclasses import dataclass

import numpy as np

from policies.estimates.acceptance import AcceptanceEstimates
from policies.protocols import LaneBatch, Mask
from policies.rows import Rows
from policies.speculation.forest import Ints
from policies.speculation.planner.step_rule import PlannerStepRule

_LONGEST_REST = 12
"""Rounds for which a lane that did not pay is not thought about: to think costs time as well. Not
many, for what its drafter has to read grows meanwhile, and with it the cost of coming back."""
_AWAKENING = 0.25
"""The part of a batch that is new when no lane rests any more."""


@dataclass(slots=True)
class _Rest:
    rounds: int = 1
    left: int = 1


class LaneBackoff:
    """`explore`: the share of the time that may go into drafts that are not expected to pay, on
    all lanes."""

    def __init__(self, explore: float, beliefs: AcceptanceEstimates) -> None:
        self._explore = explore
        self._acceptance = beliefs
        self._saved_s: dict[str, float] = {}
        """By lane: seconds that may be spent on finding out."""
        self._rests: dict[str, _Rest] = {}

    def is_awake(self, batch: LaneBatch, known: Rows) -> bool:
        """A lane that rests is woken where many are new, or an SLO's needs may have grown."""
        if batch.lane is None or not batch.requests:
            return False
        rest = self._rests.get(batch.lane)
        if rest is None or rest.left == 0:
            return True
        new = sum(known.get(one.name) is None for one in batch.requests)
        if new >= _AWAKENING * len(batch.requests):
            return True
        if any(one.slo.tpot_s is not None for one in batch.requests):
            return True
        rest.left -= 1
        return False

    def rest(self, lane: str) -> None:
        """Nobody drafts there in this round: longer each time."""
        rest = self._rests.setdefault(lane, _Rest())
        rest.left = rest.rounds
        rest.rounds = min(rest.rounds + 1, _LONGEST_REST)

    def wake(self, lane: str) -> None:
        self._rests.pop(lane, None)

    def save(self, lane: str, plain_s: float) -> None:
        """Sets seconds aside; a round without drafts takes `plain_s`."""
        rounds = self._rests[lane].rounds if lane in self._rests else 1
        saved_s = self._saved_s.setdefault(lane, 0.0)
        saved_s += self._explore / len(self._saved_s) * plain_s * rounds
        self._saved_s[lane] = min(saved_s, plain_s)

    def explorers(
        self,
        lane: str,
        at: Ints,
        rows: Ints,
        able: Mask,
        begins: Mask,
        rule: PlannerStepRule,
    ) -> Mask:
        """Who drafts although it is not expected to pay: those known least, as far as the
        seconds set aside for it go. Without it a drafter that once looked bad stays so."""
        saved_s = self._saved_s[lane]
        chosen = np.zeros(len(begins), np.bool_)
        idle = np.flatnonzero(able & ~begins)
        if not len(idle):
            return chosen
        known = self._acceptance.evidence(rows[at[idle]], lane)
        idle = idle[np.argsort(known, kind="stable")]
        begun = np.flatnonzero(begins)
        idle = idle[: max(0, rule.at_most(int(able.sum())) - len(begun))]
        without_s, cap_s = rule.round_s(at[begun]), rule.tightest_cap_s()
        while len(idle):
            with_s = rule.round_s(at[np.concatenate([begun, idle])])
            if with_s - without_s <= saved_s and with_s <= cap_s:
                self._saved_s[lane] = saved_s - (with_s - without_s)
                chosen[idle] = True
                break
            idle = idle[: len(idle) // 2]
        return chosen
