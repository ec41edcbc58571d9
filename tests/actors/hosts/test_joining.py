"""A fleet that serves before its drafters, known from an earlier one, are loaded; on Ray."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.coordinator.events import Drafted, LaneDown, LaneJoined
from actors.hosts.facts import Facts, drafter_key, target_key
from actors.hosts.fleet import Fleet
from actors.hosts.spawn import Actor, Group
from actors.hosts.specs import DrafterSpec
from cluster.built_in_models import model_path
from policies.request import LaneView
from tests.actors.hosts.cluster import processes, until
from tests.actors.hosts.test_fleet import LOOKUP, TARGET_SPEC, Reading, Served, plain, quick_fleet

__all__ = ["plain"]
"""A fixture."""

TARGET = replace(TARGET_SPEC, placement="inline")
"""Only drafters join later: it needs no process."""


class SlowGroup(Group):
    """Its drafters are started only when `may_load` is set."""

    async def launch_drafter(self, *arguments: Any) -> Actor:
        await MAY_LOAD.wait()
        return await super().launch_drafter(*arguments)


MAY_LOAD = asyncio.Event()


@pytest.fixture(scope="module")
def loop(ray_cluster: None) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> DrafterSpec:
    path = tmp_path_factory.mktemp("drafter") / "tiny"
    shutil.copytree(model_path("tiny"), path)
    return DrafterSpec("tiny", checkpoint=path, instances=2, placement="actor")


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@dataclass(frozen=True, slots=True)
class Earlier:
    facts: Facts
    views: list[LaneView]


@pytest.fixture(scope="module")
def earlier(loop: asyncio.Runner, drafter: DrafterSpec, profiles: Path) -> Earlier:
    """What a fleet has found. Its drafter is inline, which takes no process, and described as that
    of the fleets below."""
    inline = replace(drafter, placement="inline")

    async def load() -> Fleet:
        fleet = await quick_fleet(TARGET, [inline, LOOKUP], profiles)
        await fleet.close()
        return fleet

    fleet = loop.run(load())
    target, key = target_key(TARGET), partial(drafter_key, TARGET.checkpoint)
    facts = {target: fleet.facts[target], key(drafter): fleet.facts[key(inline)]}
    return Earlier(facts, [lane.view for lane in fleet.lanes])


def test_streams_do_not_wait_for_known_drafters_which_draft_when_they_are_loaded(
    loop: asyncio.Runner,
    earlier: Earlier,
    drafter: DrafterSpec,
    profiles: Path,
    plain: list[list[int]],
) -> None:
    async def main() -> None:
        MAY_LOAD.clear()
        group = SlowGroup("two")
        fleet = await quick_fleet(TARGET, [drafter, LOOKUP], profiles, group, known=earlier.facts)
        served = Served(fleet)
        assert await Reading(served, "early").whole() == plain
        assert served.coordinator.lanes_down == ["tiny/0", "tiny/1"]
        assert not processes("two")
        assert [lane.view for lane in fleet.lanes] == earlier.views
        assert fleet.facts == earlier.facts, "for those that start after this one"
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
    loop: asyncio.Runner, earlier: Earlier, drafter: DrafterSpec, profiles: Path
) -> None:
    async def main() -> None:
        changed = replace(drafter, instances=1, capacity=3)
        fleet = await quick_fleet(TARGET, [changed], profiles, Group("three"), known=earlier.facts)
        assert not any(lane.loading for lane in fleet.lanes)
        assert set(processes("three")) == {"tiny"}
        await fleet.close()

    loop.run(main())


def test_streams_go_on_without_a_known_drafter_whose_checkpoint_is_gone(
    loop: asyncio.Runner,
    earlier: Earlier,
    drafter: DrafterSpec,
    profiles: Path,
    plain: list[list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        assert drafter.checkpoint is not None
        fleet = await quick_fleet(TARGET, [drafter], profiles, Group("four"), known=earlier.facts)
        shutil.rmtree(drafter.checkpoint)
        served = Served(fleet)
        await until(lambda: "drafter tiny/1 cannot be loaded" in caplog.text)
        assert await Reading(served, "without").whole() == plain
        assert served.coordinator.alive
        await served.close()

    loop.run(main())
