"""Which requests take a place on a lane."""

import asyncio
from collections.abc import Callable, Collection

import pytest

from actors.coordinator.background_tasks import Tasks
from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.lanes import Lanes
from actors.coordinator.request_state import RequestState
from actors.coordinator.settings import Lane, Limits, Policies, Shared
from actors.hosts.protocol import HostLost
from cluster.plan.simulator.acceptance import Acceptance, synthetic
from cluster.plan.simulator.device import Faults
from cluster.plan.simulator.run import Cluster, DrafterSpec, simulate
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Arrival
from policies.cost import ForwardCost
from policies.request import LaneView
from policies.scheduling.fcfs import fcfs
from policies.selection.fixed import Fixed
from policies.speculation.fixed import Fixed as FixedLength
from tests.actors.coordinator.fake_hosts import PacedDrafter
from tests.actors.coordinator.policies import Touring
from tests.actors.coordinator.test_loop import make_drafter
from tests.actors.coordinator.test_microbatches import request

HEAD = "head"


def off(one: RequestState) -> None:
    one.speculate = False


def failed(one: RequestState) -> None:
    one.failed_lanes.add(HEAD)


def without_features(one: RequestState) -> None:
    one.lacks_features.add(HEAD)


def barred(one: RequestState) -> None:
    one.drafter_losses = 2


def lanes_of(host: PacedDrafter) -> tuple[Lanes, Estimates]:
    """One lane that has a place for one."""

    def fail(error: Exception) -> None:
        raise error

    view = LaneView(HEAD, HEAD, capacity=1)
    free = ForwardCost(0, 0, 0.001)
    estimates = Estimates(Costs(free, {HEAD: free}, 64, {}, 64), [view])
    shared = Shared(Limits(), estimates, lambda _event: None, Tasks(fail), lambda: None)
    return Lanes([Lane(view, host)], shared), estimates


def assigned(first: RequestState, second: RequestState) -> dict[str, str | None]:
    async def main() -> dict[str, str | None]:
        lanes, estimates = lanes_of(PacedDrafter(lambda: make_drafter(HEAD, 0.0)))
        return dict(lanes.assign([first, second], Fixed(), estimates.context(), now=0.0))

    return asyncio.run(main())


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("cannot_draft", [off, failed, without_features, barred])
def test_a_request_for_which_no_lane_can_draft_takes_no_place(
    cannot_draft: Callable[[RequestState], None], named: bool
) -> None:
    """Whether it names its drafter or not."""
    first = request("first", 0)
    first.drafter = HEAD if named else None
    found = assigned(first, request("second", 0))
    assert (found["first"], found["second"]) == (HEAD, None)
    cannot_draft(first)
    found = assigned(first, request("second", 0))
    assert (found.get("first"), found["second"]) == (None, HEAD)


def test_a_lost_host_that_hangs_is_not_asked_to_forget() -> None:
    """As the thread of an inline drafter, which is not started again."""

    class Hanging(PacedDrafter):
        async def forget(self, requests: Collection[str]) -> None:
            await asyncio.Event().wait()

        async def recover(self) -> None:
            raise HostLost("it hangs")

    async def main() -> None:
        lanes, _ = lanes_of(Hanging(lambda: make_drafter(HEAD, 0.0)))
        lanes.lose(lanes[HEAD], HostLost("it hangs"))
        async with asyncio.timeout(1):
            await lanes.forget(["gone"])

    asyncio.run(main())


@pytest.mark.parametrize("at_s", [1.5, 1.55, 1.6, 1.65])
def test_no_request_waits_until_a_lane_that_died_while_it_read_is_back(at_s: float) -> None:
    """It would draft for the request next, and no verification is under way."""
    never_back = Faults([at_s], recovery_s=1000)
    drafters = [
        DrafterSpec("fast", "fast", ForwardCost(0, 0, 0.001)),
        DrafterSpec("slow", "slow", ForwardCost(0, 0.02, 0.001), faults=never_back),
    ]
    acceptance = Acceptance({("", one.drafter): synthetic(0.3) for one in drafters})
    report = simulate(
        [Arrival("it", 0.0, 8, 60, 60)],
        Cluster(ForwardCost(0, 0, 0.02), KvMemory(4096), drafters, acceptance),
        lambda _calibrations: Policies(fcfs(), Touring(10), FixedLength()),
        Limits(kv_tokens=4096),
    )
    assert report.served[0].latency_s < 3.0
