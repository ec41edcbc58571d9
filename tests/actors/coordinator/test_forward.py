"""What goes into a forward that is nearly full."""

from actors.coordinator.settings import Limits
from cluster.plan.simulator.acceptance import Acceptance, synthetic
from cluster.plan.simulator.run import Cluster, DrafterSpec, named_policies, simulate
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Arrival
from policies.cost import ForwardCost


def test_drafts_never_keep_a_prompt_from_being_read() -> None:
    """Three requests with drafts leave fewer tokens than a prompt's share has parts."""
    cluster = Cluster(
        ForwardCost(0, 0, 0.01),
        KvMemory(4096),
        [DrafterSpec("small", "small", ForwardCost(0, 0, 0.001))],
        Acceptance({("", "small"): synthetic(0.3)}),
    )
    long = [Arrival(f"long{number}", 0.0, 2, 200, 200) for number in range(3)]
    report = simulate(
        [*long, Arrival("late", 0.2, 10, 5, 5)],
        cluster,
        named_policies("fixed", "fixed", "fcfs"),
        Limits(max_batch=4, forward_tokens=6, kv_tokens=4096),
    )
    late = next(request for request in report.served if request.arrival.name == "late")
    assert late.ttft_s < 0.3, "a token of its prompt is read in every forward"
