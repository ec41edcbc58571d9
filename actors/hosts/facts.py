"""What a coordinator has to know of its models to plan with them: found by loading and measuring.

Replicas share it through the router (actors/router/router.py), as plain numbers. A replica whose
drafters others have loaded serves before its own are loaded; one whose target others have measured
does not measure it again, beside other work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.hosts.protocol import TargetCosts
from actors.hosts.specs import DrafterSpec, TargetSpec
from engine.draft_profile import DraftCosts
from policies.cost import ForwardCost, SwitchCost

Facts = Mapping[str, Sequence[float]]
"""What is known of each model, by its key."""


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    costs: DraftCosts
    size: float
    """The number of parameters."""
    feature_layers: tuple[int, ...] = ()
    """The target's layers whose hidden states it reads."""

    def numbers(self) -> list[float]:
        step = self.costs.step
        line = [step.alpha, step.gamma, step.delta]
        return [*line, self.costs.token_budget, self.size, *self.feature_layers]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "DrafterFacts":
        alpha, gamma, delta, budget, size, *layers = numbers
        costs = DraftCosts(ForwardCost(alpha, gamma, delta), int(budget))
        return cls(costs, size, tuple(map(int, layers)))


def numbers_of_target(costs: TargetCosts) -> list[float]:
    return [*costs.verify.piecewise, costs.token_budget, *costs.switch]


def costs_of_target(numbers: Sequence[float]) -> TargetCosts:
    alpha, gamma, delta, knee, gamma_more, step_from, step_to, budget, *switch = numbers
    verify = ForwardCost(alpha, gamma, delta, knee, gamma_more, step_from, step_to)
    return TargetCosts(verify, int(budget), SwitchCost(*switch))


def target_key(target: TargetSpec) -> str:
    """Contains the target's whole section of the config, so any change there gives another key."""
    return repr(target)


def drafter_key(target: Path, spec: DrafterSpec) -> str:
    """The same of a drafter; `target`: its target's checkpoint."""
    return f"{target} {spec!r}"
