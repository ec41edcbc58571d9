"""Which lanes are planned together, and which requests the barrier makes wait."""

import pytest

from actors.coordinator.microbatches import ready_together, verified_together, waiting_for
from actors.coordinator.request_state import DRAFTED, READY, RequestState
from actors.coordinator.settings import Limits
from actors.coordinator.stream import Statistics, Stream
from cluster.plan.simulator.acceptance import Acceptance, synthetic
from cluster.plan.simulator.run import Cluster, DrafterSpec, named_policies, simulate
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Arrival
from engine.request import TargetLimits, admit
from engine.sampling.params import SamplingParams
from policies.cost import ForwardCost
from policies.microbatch import MicroBatchParams
from policies.request import RequestView

LIMITS = TargetLimits(vocab_size=100, max_context=100, stop_token_ids=())


def request(name: str, cohort: int) -> RequestState:
    served = admit(name, [1], SamplingParams(max_tokens=9), LIMITS)
    stream = Stream(name, Statistics(), on_close=lambda: None, on_acknowledge=lambda: None)
    view = RequestView(name, 0.0, 1, 9)
    return RequestState(served, view, stream, cohort=cohort, prefilled=True)


def test_requests_without_a_lane_wait_for_their_own_micro_batch_only() -> None:
    drafted, first, second = request("drafted", 0), request("first", 0), request("second", 1)

    groups = list(verified_together({"lane": [drafted], None: [first, second]}))

    assert groups == [{"lane": [drafted], None: [first]}, {None: [second]}]
    running = [drafted, first, second, other := request("other", 1)]
    assert [waiting_for(group, running) for group in groups] == [[], [other]]


def test_micro_batches_that_are_ready_at_once_take_turns() -> None:
    first, second, third = running = [request(str(cohort), cohort) for cohort in range(3)]
    for one in running:
        one.stage = DRAFTED
    turns = [ready_together(running, last) for last in (-1, 0, 1, 2)]
    assert turns == [[first], [second], [third], [first]]
    second.stage = READY
    assert ready_together(running, 0) == [third], "one that is incomplete is passed over"


@pytest.mark.parametrize("lanes", [0, 1])
def test_requests_that_draft_nothing_take_turns_too(lanes: int) -> None:
    """Whether the selection puts them on a lane or not. When the short one has left, the others are
    cut into two micro-batches."""
    lane = DrafterSpec("small", "small", ForwardCost(0, 0, 0.1), apart=False)
    acceptance = Acceptance({("", "small"): synthetic(0.5)})
    report = simulate(
        [Arrival(name, 0.0, 8, tokens, 99) for name, tokens in (("a", 60), ("b", 60), ("c", 5))],
        Cluster(ForwardCost(0, 0, 0.01), KvMemory(4096), [lane] * lanes, acceptance),
        named_policies("off", "fixed", "fcfs"),
        Limits(kv_tokens=4096),
        pipeline=MicroBatchParams(parts=2),
    )
    first, second = sorted(request.finished_s for request in report.served)[1:]
    assert second - first < 0.03
