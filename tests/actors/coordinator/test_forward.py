"""What goes into a forward that is nearly full."""

from collections.abc import Sequence

from actors.coordinator.settings import Limits
from cluster.plan.simulator.acceptance import Acceptance, synthetic
from cluster.plan.simulator.run import Cluster, DrafterSpec, named_policies, simulate
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Arrival
from policies.cost import ForwardCost

CLUSTER = Cluster(
    ForwardCost(0, 0, 0.01),
    KvMemory(4096),
    [DrafterSpec("small", "small", ForwardCost(0, 0, 0.001))],
    Acceptance({("", "small"): synthetic(0.3)}),
)


def ttft_s(name: str, arrivals: Sequence[Arrival], forward_tokens: int) -> float:
    """The tokens of the request with this name."""
    report = simulate(
        arrivals,
        CLUSTER,
        named_policies("fixed", "fixed", "fcfs"),
        Limits(max_batch=4, forward_tokens=forward_tokens, kv_tokens=4096),
    )
    return next(one.ttft_s for one in report.served if one.arrival.name == name)


def test_drafts_never_keep_a_prompt_from_being_read() -> None:
    """Three requests with drafts leave fewer tokens than a prompt's share has parts."""
    long = [Arrival(f"long{number}", 0.0, 2, 200, 200) for number in range(3)]
    late = ttft_s("late", [*long, Arrival("late", 0.2, 10, 5, 5)], forward_tokens=6)
    assert late < 0.3, "a token of its prompt is read in every forward"


def test_a_tenants_short_prompt_is_read_before_anothers_long_one_that_came_later() -> None:
    long = [Arrival(f"long{number}", 0.0, 2, 400, 400) for number in range(2)]
    short = Arrival("short", 0.2, 10, 5, 5, tenant="a")
    huge = Arrival("huge", 0.201, 400, 5, 5, tenant="b")
    assert ttft_s("short", [*long, short, huge], forward_tokens=4) < 0.5
