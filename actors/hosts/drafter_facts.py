"""What a coordinator has to know of a drafter to plan with it, which its loading finds out.

Replicas tell each other through the router (actors/router/router.py): one that starts where others
have loaded the same drafters serves before its own are loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from actors.hosts.specs import DrafterSpec
from engine.draft_profile import DraftCosts
from policies.cost import LinearCost


class FactsMessage(TypedDict):
    """DrafterFacts as plain built-ins."""

    step: Sequence[float]
    token_budget: int
    size: float
    feature_layers: Sequence[int]


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    costs: DraftCosts
    size: float
    """The number of parameters."""
    feature_layers: tuple[int, ...] = ()
    """The target's layers whose hidden states it reads."""

    def message(self) -> FactsMessage:
        line = self.costs.step
        return FactsMessage(
            step=(line.alpha, line.gamma, line.delta),
            token_budget=self.costs.token_budget,
            size=self.size,
            feature_layers=self.feature_layers,
        )

    @classmethod
    def of(cls, message: FactsMessage) -> "DrafterFacts":
        costs = DraftCosts(LinearCost(*message["step"]), message["token_budget"])
        return cls(costs, message["size"], tuple(message["feature_layers"]))


def facts_key(target: Path, spec: DrafterSpec) -> str:
    """Under which replicas share what they know: it changes with everything that the config says
    of the drafter."""
    return f"{target} {spec!r}"
