"""What a replica does for some seconds, as events of Chrome's trace format (docs/operating.md).

Perfetto shows them: a track for the verifier, for each lane, for the coordinator's selection of
nodes, and for each request with its rounds.
"""

from collections.abc import Iterable
from typing import Any

from actors.coordinator.events import (
    CaughtUp,
    Drafted,
    Event,
    LaneDown,
    LaneJoined,
    LaneUp,
    Late,
    Left,
    Preempted,
    Switched,
    Verified,
    VerifierDown,
    VerifierUp,
)
from deployments.metrics import COORDINATOR, VERIFIER

TraceEvent = dict[str, Any]
_TRACKS = 1_000_000
"""More than a replica has."""
MOST_EVENTS = 100_000
"""Later ones are left out, so that no recording takes all memory."""


class Timeline:
    def __init__(self, lanes: Iterable[str], now: float, most: int = MOST_EVENTS) -> None:
        self._begun_s = now
        self._most = most
        self._events: list[TraceEvent] = []
        self._ends: dict[str, int] = {}
        """Where the last span of each track ends."""
        self._tracks = {name: number for number, name in enumerate((VERIFIER, COORDINATOR, *lanes))}

    def observe(self, event: Event) -> None:
        if len(self._events) >= self._most:
            return
        match event:
            case Verified():
                self._verified(event)
            case Drafted():
                counts = {"requests": event.requests, "tokens": event.tokens}
                self._span(event.lane, "draft", event.at_s, event.seconds, counts)
            case CaughtUp():
                counts = {"tokens": event.tokens}
                self._span(event.lane, "catch up", event.at_s, event.seconds, counts)
            case Late():
                self._instant(event.lane, "late", event.at_s)
            case LaneDown():
                self._instant(event.lane, "lost", event.at_s)
            case LaneUp():
                self._instant(event.lane, "back", event.at_s)
            case LaneJoined():
                self._instant(event.lane, "loaded", event.at_s)
            case VerifierDown():
                self._instant(VERIFIER, "lost", event.at_s)
            case VerifierUp():
                self._instant(VERIFIER, "back", event.at_s)
            case Switched():
                self._instant(event.request, f"from {event.before} to {event.lane}", event.at_s)
            case Preempted():
                self._instant(event.request, "preempted", event.at_s)
            case Left() if not event.internal:
                self._instant(event.view.name, event.finish or "cancelled or failed", event.at_s)

    def events(self, replica: str, process: int) -> list[TraceEvent]:
        """All of them and the names of their tracks, in the order in which they are to stand;
        `process`: the replica's number, from 0."""
        # Perfetto takes process 0 and thread 0 for a kernel's idle task, and numbers of threads for
        # those of the whole machine.
        pid, first = process + 1, (process + 1) * _TRACKS
        named: list[TraceEvent] = [
            {"ph": "M", "name": "process_name", "tid": first, "args": {"name": replica}}
        ]
        for track, number in self._tracks.items():
            tid = first + number
            named += [
                {"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": track}},
                {
                    "ph": "M",
                    "name": "thread_sort_index",
                    "tid": tid,
                    "args": {"sort_index": number},
                },
            ]
        moved = ({**event, "tid": first + event["tid"]} for event in self._events)
        return [{**event, "pid": pid} for event in (*named, *moved)]

    def _verified(self, event: Verified) -> None:
        outcomes = event.outcomes
        counts = {
            "requests": len(outcomes),
            "tokens": event.tokens,
            "prompt_tokens": event.prefill_tokens,
            "committed": sum(outcome.committed for outcome in outcomes),
            "accepted": sum(outcome.accepted for outcome in outcomes),
        }
        begun_s = event.at_s - event.seconds
        self._span(COORDINATOR, "select", begun_s + event.select_s, event.select_s, {})
        self._span(VERIFIER, "verify", event.at_s, event.seconds, counts)
        for outcome in outcomes:
            of_round = {
                "lane": outcome.lane,
                "verified": outcome.drafted,
                "accepted": outcome.accepted,
                "committed": outcome.committed,
                "draft_ms": round(1000 * outcome.draft_s, 3),
                "verify_ms": round(1000 * outcome.verify_s, 3),
            }
            self._span(outcome.request, "round", event.at_s, outcome.seconds, of_round)

    def _span(
        self, track: str, name: str, ended_s: float, seconds: float, counts: dict[str, Any]
    ) -> None:
        ended = self._at(ended_s)
        # Perfetto drops a span that begins before its predecessor ends, even by a rounding error.
        begun = max(self._at(ended_s - seconds), self._ends.get(track, 0))
        self._ends[track] = max(begun, ended)
        self._add(track, name, begun, {"ph": "X", "dur": max(0, ended - begun), "args": counts})

    def _instant(self, track: str, name: str, at_s: float) -> None:
        self._add(track, name, self._at(at_s), {"ph": "i", "s": "t"})

    def _at(self, at_s: float) -> int:
        """In microseconds of the recording."""
        return max(0, round(1e6 * (at_s - self._begun_s)))

    def _add(self, track: str, name: str, at: int, event: TraceEvent) -> None:
        number = self._tracks.setdefault(track, len(self._tracks))
        self._events.append({"name": name, "ts": at, "tid": number, **event})
