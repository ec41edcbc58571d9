"""The metrics of a coordinator's run in virtual time agree with what the run shows otherwise."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from actors.coordinator.events import (
    Drafted,
    Event,
    LaneDown,
    LaneUp,
    Late,
    Left,
    Switched,
    Verified,
    VerifierDown,
)
from actors.coordinator.settings import Limits
from deployments.replica.metrics import Metrics
from policies.request import Slo
from tests.actors.coordinator.test_loop import GREEDY, PROMPTS, WARM, Service, plainly, read

DRAFTERS = {"near": "near", "far": "far", "ngram": "ngram"}
LONG = [replace(GREEDY if number % 2 else WARM, max_tokens=60) for number in range(len(PROMPTS))]


def totals(events: Sequence[Event]) -> dict[str, float]:
    """Each series' value, by name, and by name and label values."""
    metrics = Metrics("one", DRAFTERS, {"chat": Slo(ttft_s=1.0)})
    for event in events:
        metrics.observe(event)
    values: dict[str, float] = {}
    for family in metrics.families():
        for sample in family.samples:
            labels = [value for label, value in sample.labels.items() if label != "replica"]
            name = sample.name.removeprefix("spindle_").removesuffix("_total")
            for key in {name, "/".join([name, *labels])}:
                values[key] = values.get(key, 0.0) + sample.value
    return values


async def serve(service: Service, speculate: bool = True) -> list[list[int]]:
    """All streams, each with the class `chat`, which all of them meet."""
    submit = service.coordinator.submit
    streams = await asyncio.gather(
        *(
            read(submit(str(number), prompt, params, slo=Slo(1.0), speculate=speculate))
            for number, (prompt, params) in enumerate(zip(PROMPTS, LONG, strict=True))
        )
    )
    await service.end()
    return list(streams)


async def test_counts_are_those_of_the_rounds() -> None:
    service = Service()
    streams = await serve(service)
    values = totals(service.events)
    outcomes = [outcome for event in service.seen(Verified) for outcome in event.outcomes]
    proposed = sum(event.tokens for event in service.seen(Drafted))
    assert values["committed_tokens"] == sum(map(len, streams))
    assert values["drafted_tokens"] == proposed
    assert values["verified_tokens"] == sum(outcome.drafted for outcome in outcomes)
    assert values["accepted_tokens"] == sum(outcome.accepted for outcome in outcomes)
    for drafter in DRAFTERS:
        by = [f"{kind}_tokens/{drafter}" for kind in ("drafted", "verified", "accepted")]
        drafted, verified, accepted = (
            sum(value for key, value in values.items() if key.startswith(name + "/")) for name in by
        )
        assert drafted >= verified >= accepted > 0, drafter
    switched = service.seen(Switched)
    assert values["switches"] == len(switched) > 0
    prepared = sum(event.read_ahead > 0 for event in switched)
    assert values["prepared_switches"] == prepared > 0
    assert values["catch_up_saved_seconds"] == pytest.approx(sum(e.saved_s for e in switched))
    assert values["catch_up_saved_seconds"] > 0
    assert values["rounds"] == len(outcomes)
    cached = [event.statistics.cached for event in service.seen(Left)]
    assert values["cached_tokens"] == sum(one or 0 for one in cached)
    assert values["prompts"] == len([one for one in cached if one is not None])
    assert values["promises/yes/chat"] == values["promises"] == len(PROMPTS)


async def test_the_estimated_speed_up_is_that_of_serving_the_same_plainly() -> None:
    seconds = []
    for speculate in (True, False):
        service = Service(limits=Limits(max_batch=8, kv_tokens=1024))
        assert await serve(service, speculate) == plainly(PROMPTS, LONG)
        left = service.seen(Left)
        seconds.append(sum(event.at_s - (event.view.first_token_s or 0.0) for event in left))
        if speculate:
            values = totals(service.events)
    slots = values["slot_seconds"] - sum(
        value for key, value in values.items() if key.endswith("/prompts")
    )
    assert values["plain_seconds"] / slots == pytest.approx(seconds[1] / seconds[0], rel=0.1)


async def test_plain_rounds_are_measured_and_compared_with_the_cost_model() -> None:
    service = Service(limits=Limits(max_batch=8, kv_tokens=1024))
    assert await serve(service, speculate=False) == plainly(PROMPTS, LONG)
    rounds = [event for event in service.seen(Verified) if not event.prefill_tokens]
    values = totals(service.events)
    assert values["probe_seconds/clock"] == pytest.approx(
        sum(outcome.seconds for event in rounds for outcome in event.outcomes)
    )
    assert values["probe_seconds/model"] == pytest.approx(values["probe_seconds/clock"], rel=0.2)


def test_losses_and_what_is_late_are_counted_by_host() -> None:
    values = totals(
        [
            Late(0.5, "near"),
            LaneDown(1.0, "near", "killed"),
            VerifierDown(2.0, "killed"),
            LaneUp(9.0, "near", 8.0),
        ]
    )
    assert values["late_calls/near"] == values["losses/near"] == values["restarts/near"] == 1
    assert values["recovery_seconds/near"] == values["recovery_seconds"] == 8
    assert (values["down/near"], values["down/verifier"]) == (0, 1)
