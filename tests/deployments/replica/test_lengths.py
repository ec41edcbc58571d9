"""Output lengths, from the config's schedule to the predictions of a replica's service."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from actors.coordinator.events import Arrived, Event
from actors.hosts.fleet import start_fleet
from cluster.config import AppConfig
from deployments.replica.service import Service
from engine.sampling.params import SamplingParams
from policies.request import RequestView

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
LONG = replace(PARAMS, max_tokens=400)


@pytest.mark.parametrize(("schedule", "learned"), [("laps_sd", True), ("default", False)])
def test_lengths_are_predicted_where_they_are_used(
    schedule: str, learned: bool, tmp_path: Path
) -> None:
    config = AppConfig.model_validate(
        {
            "target": {"placement": "inline", "dtype": "float32"},
            "policies": {"schedule": {"name": schedule}},
        }
    )

    async def main() -> RequestView:
        fleet = await start_fleet(config.target, [], tmp_path, measure_s=0.1)
        service = Service(config, fleet)
        events: list[Event] = []
        service.add_observer(events.append)
        for number in range(10):
            gone = service.coordinator.submit(f"cancelled {number}", [5, 6, 7], LONG)
            async for _ in service.coordinator.submit(str(number), [5, 6, 7], PARAMS):
                pass
            gone.close()  # which teaches nothing
            await asyncio.sleep(0.05)
        await service.coordinator.close()
        await fleet.close()
        return [event.view for event in events if isinstance(event, Arrived)][-1]

    last = asyncio.run(main())
    assert last.predicted_len == (6 if learned else None)
