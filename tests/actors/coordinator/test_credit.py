"""Which lane is credited with accepted tokens where a lookup drafts beside the selected lane."""

from actors.coordinator.events import Event, Left, Verified
from actors.coordinator.settings import Limits
from cluster.plan.simulator.acceptance import Acceptance, synthetic
from cluster.plan.simulator.run import Cluster, DrafterSpec, named_policies, simulate
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Arrival
from policies.cost import ForwardCost
from policies.request import RoundOutcome

SMALL = DrafterSpec("small", "small", ForwardCost(1e-8, 1e-6, 0.001), capacity=2)
LOOKUP = DrafterSpec("ngram", "ngram", None)
LIMITS = Limits(max_batch=4, kv_tokens=10_000)


def served(*drafters: DrafterSpec) -> tuple[list[RoundOutcome], list[Left]]:
    """Four requests, with a model lane that has capacity for two."""
    acceptance = Acceptance({("", "small"): synthetic(0.8), ("", "ngram"): synthetic(0.5)})
    cluster = Cluster(ForwardCost(1e-7, 1e-5, 0.02), KvMemory(10_000), drafters, acceptance)
    arrivals = [Arrival(f"r{n}", 0.01 * n, 20, 60, max_tokens=60) for n in range(4)]
    events: list[Event] = []
    policies = named_policies("fixed", "fixed", "fcfs")
    simulate(arrivals, cluster, policies, LIMITS, observe=events.append)
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
