"""A fleet that serves before its drafters, known from an earlier one, are loaded; on Ray."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.coordinator.events import Drafted, LaneDown, LaneJoined
from actors.hosts.fleet import Fleet, start_fleet
from actors.hosts.spawn import Actors, Group
from actors.hosts.specs import DrafterSpec
from cluster.zoo.paths import model_path
from tests.actors.hosts.cluster import cluster, processes, until
from tests.actors.hosts.test_fleet import LIMITS, LOOKUP, TARGET_SPEC, Reading, Served, plain

__all__ = ["plain"]
"""A fixture."""


class SlowGroup(Group):
    """Its drafters are started only when `may_load` is set."""

    async def launch_drafter(self, *arguments: Any) -> Actors:
        await MAY_LOAD.wait()
        return await super().launch_drafter(*arguments)


MAY_LOAD = asyncio.Event()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with cluster(), asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> DrafterSpec:
    path = tmp_path_factory.mktemp("drafter") / "tiny"
    shutil.copytree(model_path("tiny"), path)
    return DrafterSpec("tiny", checkpoint=path, instances=2, placement="actor")


@pytest.fixture(scope="module")
def before(
    loop: asyncio.Runner, drafter: DrafterSpec, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Fleet, Path]]:
    profiles = tmp_path_factory.mktemp("profiles")
    fleet = loop.run(start_fleet(TARGET_SPEC, [drafter, LOOKUP], profiles, Group("one"), LIMITS))
    yield fleet, profiles
    loop.run(fleet.close())


def test_streams_do_not_wait_for_known_drafters_which_draft_when_they_are_loaded(
    loop: asyncio.Runner,
    before: tuple[Fleet, Path],
    drafter: DrafterSpec,
    plain: list[list[int]],
) -> None:
    async def main() -> None:
        first, profiles = before
        assert not any(lane.loading for lane in first.lanes), "the first fleet waits for all"
        MAY_LOAD.clear()
        fleet = await start_fleet(
            TARGET_SPEC,
            [drafter, LOOKUP],
            profiles,
            SlowGroup("two"),
            LIMITS,
            known=first.facts,
        )
        served = Served(fleet)
        assert await Reading(served, "early").whole() == plain
        assert served.coordinator.lanes_down == ["tiny/0", "tiny/1"]
        assert set(processes("two")) == {"verifier"}
        assert [lane.view for lane in fleet.lanes] == [lane.view for lane in first.lanes]
        assert fleet.facts == first.facts, "for those that start after this one"
        reading = Reading(served, "joined")
        MAY_LOAD.set()
        assert await reading.whole() == plain
        await until(lambda: not served.coordinator.lanes_down)
        assert {event.lane for event in served.seen(LaneJoined)} == {"tiny/0", "tiny/1"}
        assert not served.seen(LaneDown)
        assert await Reading(served, "later").whole() == plain
        assert {"tiny/0", "tiny/1"} <= {event.lane for event in served.seen(Drafted)}
        await served.close()

    loop.run(main())


def test_a_known_drafter_with_other_settings_is_waited_for(
    loop: asyncio.Runner, before: tuple[Fleet, Path], drafter: DrafterSpec
) -> None:
    async def main() -> None:
        first, profiles = before
        changed = replace(drafter, instances=1, capacity=3)
        fleet = await start_fleet(
            TARGET_SPEC, [changed], profiles, Group("three"), LIMITS, known=first.facts
        )
        assert not any(lane.loading for lane in fleet.lanes)
        assert set(processes("three")) == {"verifier", "tiny"}
        await fleet.close()

    loop.run(main())


def test_streams_go_on_without_a_known_drafter_whose_checkpoint_is_gone(
    loop: asyncio.Runner,
    before: tuple[Fleet, Path],
    drafter: DrafterSpec,
    plain: list[list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        first, profiles = before
        assert drafter.checkpoint is not None
        fleet = await start_fleet(
            TARGET_SPEC, [drafter], profiles, Group("four"), LIMITS, known=first.facts
        )
        shutil.rmtree(drafter.checkpoint)
        served = Served(fleet)
        await until(lambda: "drafter tiny/1 cannot be loaded" in caplog.text)
        assert await Reading(served, "without").whole() == plain
        assert served.coordinator.alive
        await served.close()

    loop.run(main())
