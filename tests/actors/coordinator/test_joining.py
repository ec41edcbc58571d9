"""Lanes whose drafters are still being loaded when the coordinator starts, in virtual time."""

import asyncio
from dataclasses import replace

import pytest

from actors.coordinator.events import Drafted, LaneDown, LaneJoined, Verified
from engine.errors import UnsupportedModel
from tests.actors.coordinator.test_loop import GREEDY, PARAMS, PROMPTS, Service, plainly, read

LOADS_S = 0.3
LONG = [replace(params, max_tokens=60) for params in PARAMS]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.coordinator.lanes.JOINS_AFTER_S", 0.0)


def loads_slowly(service: Service, seconds: float = LOADS_S) -> None:
    async def load() -> None:
        await asyncio.sleep(seconds)

    service.near.recover = load  # type: ignore[method-assign]


async def test_requests_are_served_before_a_drafter_is_loaded_which_then_drafts_for_them() -> None:
    service = Service(loading=True)
    loads_slowly(service)
    assert service.coordinator.lanes_down == ["near"]
    streams = [
        service.coordinator.submit(str(number), prompt, params)
        for number, (prompt, params) in enumerate(zip(PROMPTS, LONG, strict=True))
    ]
    assert await asyncio.gather(*map(read, streams)) == plainly(PROMPTS, LONG)
    (joined,) = service.seen(LaneJoined)
    assert joined.lane == "near"
    assert joined.seconds == pytest.approx(LOADS_S)
    assert service.coordinator.lanes_down == []
    assert not service.seen(LaneDown), "nothing was lost"
    assert any(event.at_s < joined.at_s for event in service.seen(Verified))
    drafted = [event.at_s for event in service.seen(Drafted) if event.lane == "near"]
    assert drafted, "requests that were under way move to it"
    assert min(drafted) >= joined.at_s
    await service.end()


async def test_a_request_that_names_a_drafter_that_is_being_loaded_decodes_plainly_before() -> None:
    service = Service(loading=True)
    loads_slowly(service)
    stream = service.coordinator.submit("a", [7, 8, 9], LONG[0], drafter="near")
    assert await read(stream) == plainly([[7, 8, 9]], [LONG[0]])[0]
    assert 0 < stream.statistics.by_lane["near"] < stream.statistics.rounds
    await service.end()


async def test_a_drafter_that_cannot_be_loaded_harms_nobody_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Service(loading=True)

    async def broken() -> None:
        raise UnsupportedModel("llama", "its weights are gone")

    service.near.recover = broken  # type: ignore[method-assign]
    streams = [service.coordinator.submit(name, [5, 6], GREEDY) for name in ("one", "two")]
    assert await asyncio.gather(*map(read, streams)) == plainly([[5, 6]] * 2, [GREEDY] * 2)
    assert service.coordinator.alive
    assert service.coordinator.lanes_down == ["near"]
    await service.end()
    assert "drafter near cannot be loaded" in caplog.text
    assert "its weights are gone" in caplog.text
