"""A timeline has what happened, on tracks that Perfetto can draw."""

from collections import defaultdict

from actors.coordinator.events import CaughtUp, Drafted, Verified
from benchmarks.simulator.clock import run
from deployments.metrics import VERIFIER
from deployments.replica.timeline import Timeline
from tests.actors.coordinator.test_loop import Service, serve_all


def test_every_round_is_on_its_tracks_and_no_two_forwards_overlap() -> None:
    async def main() -> None:
        service = Service()
        await serve_all(service)
        timeline = Timeline(["near", "far", "ngram"], now=0.0)
        for happened in service.events:
            timeline.observe(happened)
        events = timeline.events("one", process=3)
        assert {event["pid"] for event in events} == {3}
        tracks = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["name"] == "thread_name"
        }
        spans = defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                spans[tracks[event["tid"]]].append(event)
        assert len(spans[VERIFIER]) == len(service.seen(Verified))
        of_near = [e for e in service.events if isinstance(e, Drafted | CaughtUp)]
        assert len(spans["near"]) == sum(event.lane == "near" for event in of_near)
        for track in (VERIFIER, "near", "far"):
            ends = 0
            for span in spans[track]:
                assert span["ts"] >= ends
                ends = span["ts"] + span["dur"]
        rounds = sum(len(event.outcomes) for event in service.seen(Verified))
        assert sum(len(spans[str(number)]) for number in range(6)) == rounds

    run(main())


def test_a_long_recording_is_bounded() -> None:
    timeline = Timeline([], now=0.0, most=3)
    for number in range(10):
        timeline.observe(Verified(float(number), 0.1, 0.0, 9, 1, 0, ()))
    spans = [event for event in timeline.events("one", 0) if event["ph"] == "X"]
    assert len(spans) <= 4
