"""Which lane is credited with accepted tokens where a lookup drafts beside the selected lane."""

from collections.abc import Sequence

import numpy as np
import pytest

from actors.coordinator.events import Event, Left, Verified
from actors.coordinator.settings import Limits, Policies
from cluster.plan.simulator.acceptance import Acceptance, synthetic
from cluster.plan.simulator.run import Cluster, DrafterSpec, simulate
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Arrival
from policies.catalogue import Calibrations, make_schedule, make_selection
from policies.cost import ForwardCost
from policies.estimates.acceptance import accepted_levels
from policies.protocols import DraftPlan, LaneBatch, RoundContext
from policies.request import RoundOutcome
from policies.speculation.fixed import Fixed

SMALL = DrafterSpec("small", "small", ForwardCost(1e-8, 1e-6, 0.001), capacity=2)
LOOKUP = DrafterSpec("ngram", "ngram", None)


class Observed(Fixed):
    def __init__(self, contexts: list[RoundContext]) -> None:
        super().__init__()
        self._contexts = contexts

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        self._contexts.append(context)
        return super().plan(batches, context, now)


def served(
    *drafters: DrafterSpec, contexts: list[RoundContext] | None = None
) -> tuple[list[RoundOutcome], list[Left]]:
    """Four requests, with a model lane that has capacity for two. `contexts` gets those of all
    rounds."""
    acceptance = Acceptance({("", "small"): synthetic(0.8), ("", "ngram"): synthetic(0.5)})
    cluster = Cluster(ForwardCost(1e-7, 1e-5, 0.02), KvMemory(10_000), drafters, acceptance)
    arrivals = [Arrival(f"r{n}", 0.01 * n, 20, 60, max_tokens=60) for n in range(4)]
    events: list[Event] = []

    def make(calibrations: Calibrations) -> Policies:
        return Policies(
            make_schedule("fcfs"),
            make_selection("fixed"),
            Observed([] if contexts is None else contexts),
        )

    limits = Limits(max_batch=4, kv_tokens=10_000)
    simulate(arrivals, cluster, make, limits, observe=events.append)
    rounds = [event for event in events if isinstance(event, Verified)]
    left = [event for event in events if isinstance(event, Left)]
    return [outcome for event in rounds for outcome in event.outcomes], left


def test_tokens_of_lookups_alone_are_credited_to_no_lane() -> None:
    outcomes, left = served(LOOKUP)
    assert {outcome.lane for outcome in outcomes} == {None}
    assert sum(outcome.accepted for outcome in outcomes) > 20
    assert all(set(event.statistics.by_lane) == {"ngram"} for event in left)


def test_tokens_that_a_lookup_has_proposed_too_are_credited_to_both() -> None:
    outcomes, left = served(SMALL, LOOKUP)
    assert {outcome.lane for outcome in outcomes} == {"small", None}
    assert any(set(event.statistics.by_lane) == {"small", "ngram"} for event in left)


def test_every_drafter_s_acceptance_is_learned_whatever_policies_run() -> None:
    """From drafts and reads, of the lane and of the lookup."""
    contexts: list[RoundContext] = []
    served(SMALL, LOOKUP, contexts=contexts)
    learned = {
        drafter: accepted / levels
        for drafter, evidence in contexts[-1].acceptance.export().items()
        for accepted, levels in [accepted_levels(np.array(evidence))]
    }
    assert learned["small"] == pytest.approx(0.8, abs=0.1)
    assert learned["ngram"] == pytest.approx(0.5, abs=0.1)
