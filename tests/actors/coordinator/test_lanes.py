"""Which requests take a place on a lane."""

import asyncio
from collections.abc import Callable

import pytest

from actors.coordinator.background_tasks import Tasks
from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.lanes import Lanes
from actors.coordinator.request_state import RequestState
from actors.coordinator.settings import Lane, Limits, Shared
from policies.cost import ForwardCost
from policies.request import LaneView
from policies.selection.fixed import Fixed
from tests.actors.coordinator.fake_hosts import PacedDrafter
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


def assigned(first: RequestState, second: RequestState) -> dict[str, str | None]:
    """On one lane that has a place for one."""

    failures: list[Exception] = []

    async def main() -> dict[str, str | None]:
        view = LaneView(HEAD, HEAD, capacity=1)
        free = ForwardCost(0, 0, 0.001)
        estimates = Estimates(Costs(free, {HEAD: free}, 64, {}, 64), [view])
        lane = Lane(view, PacedDrafter(lambda: make_drafter(HEAD, 0.0)))
        tasks = Tasks(failures.append)
        shared = Shared(Limits(), estimates, lambda _event: None, tasks, lambda: None)
        lanes = Lanes([lane], shared)
        return dict(lanes.assign([first, second], Fixed(), estimates.context(), now=0.0))

    found = asyncio.run(main())
    assert not failures
    return found


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
