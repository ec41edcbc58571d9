"""A timeline has what happened, on tracks that Perfetto can draw."""

import json
from collections import defaultdict
from typing import Any

import pytest

from actors.coordinator.events import CaughtUp, Drafted, Event, Verified
from benchmarks.browser import MISSING, chromium_path
from benchmarks.simulator.clock import run
from deployments.metrics import VERIFIER
from deployments.replica.timeline import Timeline
from tests.actors.coordinator.test_loop import Service, serve_all
from tests.perfetto import opened


def test_every_round_is_on_its_tracks_and_no_two_forwards_overlap() -> None:
    async def main() -> None:
        service = Service()
        await serve_all(service)
        timeline = Timeline(["near", "far", "ngram"], now=0.0)
        for happened in service.events:
            timeline.observe(happened)
        events = timeline.events("one", process=3)
        assert {event["pid"] for event in events} == {4}
        check_format(events)
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
        rounds = sum(len(event.outcomes) for event in service.seen(Verified))
        assert sum(len(spans[str(number)]) for number in range(6)) == rounds

    run(main())


@pytest.mark.skipif(chromium_path() is None, reason=MISSING)
def test_perfetto_reads_every_span_on_its_track_as_it_was() -> None:
    happened: list[Event] = []

    async def main() -> None:
        service = Service()
        await serve_all(service)
        happened.extend(service.events)

    run(main())
    timelines = [Timeline(["near", "far", "ngram"], now=0.0) for _ in range(2)]
    for event in happened:
        for timeline in timelines:
            timeline.observe(event)
    events = [e for n, timeline in enumerate(timelines) for e in timeline.events(f"r{n}", n)]
    check_perfetto(events)


def check_perfetto(events: list[dict[str, Any]]) -> None:
    """Perfetto's own reader finds nothing to complain of, and each span and instant where and when
    it was written, none inside another."""
    named: dict[str, dict[int, str]] = {"process_name": {}, "thread_name": {}}
    for event in events:
        if event["name"] in named:
            of = event["pid"] if event["name"] == "process_name" else event["tid"]
            named[event["name"]][of] = event["args"]["name"]
    written = sorted(
        (
            named["process_name"][event["pid"]],
            named["thread_name"][event["tid"]],
            event["name"],
            1000 * event["ts"],
            1000 * event.get("dur", 0),
        )
        for event in events
        if event["ph"] != "M"
    )
    with opened(events) as perfetto:
        assert perfetto.problems() == []
        rows = perfetto.query(
            "select p.name as process, t.name as track, s.name as name, s.ts as ts, s.dur as dur, "
            "s.depth as depth from slice s join thread_track tt on s.track_id = tt.id "
            "join thread t using (utid) join process p using (upid)"
        )
    read = sorted(
        (row["process"], row["track"], row["name"], int(row["ts"]), int(row["dur"])) for row in rows
    )
    assert read == written
    assert all(row["depth"] == "0" or row["dur"] == "0" for row in rows)


def check_format(events: list[dict[str, Any]]) -> None:
    """What "Trace Event Format" (Chrome) requires of these phases, and Perfetto besides: spans of a
    track do not overlap, no process or thread has the number 0, and every track has a name."""
    json.dumps(events, allow_nan=False)
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    ends: dict[int, int] = {}
    for event in events:
        assert event["pid"] > 0 < event["tid"]
        assert event["ph"] in "MXi"
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            continue
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
        assert event["tid"] in named
        if event["ph"] == "X":
            assert event["ts"] >= ends.get(event["tid"], 0)
            ends[event["tid"]] = event["ts"] + event["dur"]
        else:
            assert event["s"] == "t"


def test_spans_that_touch_do_not_overlap_by_a_rounding() -> None:
    timeline = Timeline(["near"], now=0.0)
    for number in range(1, 2000):
        timeline.observe(Drafted(number / 3e5, "near", 1 / 3e5, 1, 1))
    events = timeline.events("one", process=0)
    check_format(events)
    assert sum(event["ph"] == "X" for event in events) == 1999


def test_a_long_recording_is_bounded() -> None:
    timeline = Timeline([], now=0.0, most=3)
    for number in range(10):
        timeline.observe(Verified(float(number), 0.1, 0.0, 9, 1, 0, ()))
    spans = [event for event in timeline.events("one", 0) if event["ph"] == "X"]
    assert len(spans) <= 4
