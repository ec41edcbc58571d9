"""Every metric that Spindle exports, declared only here (docs/metrics.md).

`/metrics` prefixes each name with `spindle_`, Ray with `ray_spindle_`; both append `_total` to
counters.
"""

from collections.abc import Iterable, Mapping

from actors.coordinator.events import (
    CaughtUp,
    Drafted,
    Event,
    LaneUp,
    Left,
    Preempted,
    Switched,
    Verified,
    VerifierUp,
)
from deployments.replica.autoscaling_signals import met_slo, tpot_s
from deployments.series import Counter, Family, Gauge, Histogram
from policies.request import RoundOutcome

VERIFIER = "verifier"
LOOKUPS = "lookups"
"""Tag value for rounds in which only lookup drafters proposed tokens."""

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "committed_tokens": ("Output tokens committed: their rate is goodput", ()),
    "drafted_tokens": ("Draft tokens that were verified", ("drafter",)),
    "accepted_tokens": ("Draft tokens that the target agreed with", ("drafter",)),
    "rounds": ("Verdicts with tokens, one for each request in a forward", ()),
    "forwards": ("Forwards of the target", ()),
    "prefilled_tokens": ("Prompt tokens that the target has read", ()),
    "busy_seconds": ("Seconds in which a lane or the verifier worked", ("host",)),
    "idle_seconds": ("Seconds in which it had nothing to do", ("host",)),
    "caught_up_tokens": ("Committed tokens that lanes have read in idle time", ("host",)),
    "switches": ("Requests that moved to another lane", ()),
    "preemptions": ("Requests that lost their place in the batch", ()),
    "restarts": ("Hosts that were lost and are back", ("host",)),
    "recovery_seconds": ("From losing a host to its return", ("host",)),
    "requests": ("Requests that have left: stop, length, cancelled or failed", ("outcome",)),
    "promises": ("Requests with an SLO that have finished: kept yes or no", ("kept",)),
}
_SECONDS = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60]
_SECONDS_PER_TOKEN = [0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1]
HISTOGRAMS: Mapping[str, tuple[str, list[float]]] = {
    "ttft_seconds": ("From arrival at the replica to the first token", _SECONDS),
    "tpot_seconds": ("Per output token behind the first", _SECONDS_PER_TOKEN),
    "queue_seconds": ("From arrival until a request first ran", _SECONDS),
}
GAUGES: Mapping[str, str] = {
    "running": "Requests that have begun",
    "waiting": "Requests that have not run yet",
}


INGRESS_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "responses": (
        "Requests that have ended at the ingress, by HTTP status, over gRPC and handles as well; "
        "499: the client left",
        ("status",),
    ),
    "resubmissions": ("Choices that went to another replica after the loss of theirs", ()),
    "replicas_started": ("Replicas that have begun to take calls", ()),
    "replicas_left": (
        "Replicas that take no calls any more: lost (died or hung), or stopped by Serve (replaced "
        "or scaled down)",
        ("reason",),
    ),
}
LOST, STOPPED = "lost", "stopped"
"""Why a replica has left."""
_STATUSES = (200, 400, 401, 403, 404, 413, 429, 499, 500, 503)
_OUTCOMES = ("stop", "length", "cancelled", "failed")


def exported_names() -> set[str]:
    """The metric names that Prometheus stores."""
    counters = {f"{name}_total" for name in (*COUNTERS, *INGRESS_COUNTERS)}
    histograms = {f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "count", "sum")}
    return {f"ray_spindle_{name}" for name in counters | histograms | set(GAUGES)}


class IngressMetrics:
    """The metrics of the ingress."""

    def __init__(self) -> None:
        self._counters = {
            name: Counter(name, text, labels, {})
            for name, (text, labels) in INGRESS_COUNTERS.items()
        }
        for status in _STATUSES:
            self._counters["responses"].start(status=str(status))
        for name, (_, labels) in INGRESS_COUNTERS.items():
            if not labels:
                self._counters[name].start()
        for reason in (LOST, STOPPED):
            self._counters["replicas_left"].start(reason=reason)

    def responded(self, status: int) -> None:
        self._counters["responses"].add(status=str(status))

    def resubmitted(self, choices: int) -> None:
        self._counters["resubmissions"].add(choices)

    def replicas_started(self, number: int) -> None:
        self._counters["replicas_started"].add(number)

    def replica_left(self, reason: str) -> None:
        self._counters["replicas_left"].add(reason=reason)

    def families(self) -> list[Family]:
        return [counter.family() for counter in self._counters.values()]


class Metrics:
    """The metrics of one replica; `observe` takes its coordinator's events."""

    def __init__(self, replica: str, drafters: Mapping[str, str]) -> None:
        """`drafters`: drafter name by lane."""
        self._drafters = drafters
        self._lane_free_since: dict[str, float] = {}
        own = {"replica": replica}
        self._counters = {
            name: Counter(name, text, labels, own) for name, (text, labels) in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(name, text, bounds, own) for name, (text, bounds) in HISTOGRAMS.items()
        }
        self._gauges = {name: Gauge(name, text, own) for name, text in GAUGES.items()}
        self._start_counters()

    def _start_counters(self) -> None:
        values: dict[tuple[str, ...], Iterable[str]] = {
            ("drafter",): {*self._drafters.values(), LOOKUPS},
            ("host",): [*self._drafters, VERIFIER],
            ("outcome",): _OUTCOMES,
            ("kept",): ("yes", "no"),
        }
        for name, (_, labels) in COUNTERS.items():
            if not labels:
                self._counters[name].start()
            for value in values.get(labels, ()):
                self._counters[name].start(**{labels[0]: value})

    def families(self) -> list[Family]:
        counters = [counter.family() for counter in self._counters.values()]
        histograms = [histogram.family() for histogram in self._histograms.values()]
        return counters + histograms + [gauge.family() for gauge in self._gauges.values()]

    def set_load(self, running: float, waiting: float) -> None:
        self._gauges["running"].set(running)
        self._gauges["waiting"].set(waiting)

    def observe(self, event: Event) -> None:
        match event:
            case Verified():
                self._verified(event)
            case Drafted():
                self._worked(event.lane, event.at_s, event.seconds)
            case CaughtUp():
                self._worked(event.lane, event.at_s, event.seconds)
                self._count("caught_up_tokens", event.tokens, host=event.lane)
            case Switched():
                self._count("switches")
            case Preempted():
                self._count("preemptions")
            case LaneUp():
                self._recovered(event.lane, event.seconds)
            case VerifierUp():
                self._recovered(VERIFIER, event.seconds)
            case Left() if not event.internal:
                self._left(event)

    def _verified(self, event: Verified) -> None:
        self._count("forwards")
        self._count("prefilled_tokens", event.prefill_tokens)
        self._count("busy_seconds", event.seconds, host=VERIFIER)
        self._count("idle_seconds", event.idle_s, host=VERIFIER)
        self._count("rounds", len(event.outcomes))
        self._count("committed_tokens", sum(outcome.committed for outcome in event.outcomes))
        for drafter, outcomes in self._by_drafter(event.outcomes).items():
            drafted = sum(outcome.drafted for outcome in outcomes)
            accepted = sum(outcome.accepted for outcome in outcomes)
            self._count("drafted_tokens", drafted, drafter=drafter)
            self._count("accepted_tokens", accepted, drafter=drafter)

    def _by_drafter(self, outcomes: tuple[RoundOutcome, ...]) -> dict[str, list[RoundOutcome]]:
        """Groups outcomes by drafter: one metric update per drafter rather than per request,
        because each takes microseconds."""
        groups: dict[str, list[RoundOutcome]] = {}
        for outcome in outcomes:
            if outcome.drafted:
                drafter = LOOKUPS if outcome.lane is None else self._drafters[outcome.lane]
                groups.setdefault(drafter, []).append(outcome)
        return groups

    def _worked(self, lane: str, at_s: float, seconds: float) -> None:
        started_at = at_s - seconds
        self._count("busy_seconds", seconds, host=lane)
        self._count(
            "idle_seconds", started_at - self._lane_free_since.get(lane, started_at), host=lane
        )
        self._lane_free_since[lane] = at_s

    def _recovered(self, host: str, seconds: float) -> None:
        self._count("restarts", host=host)
        self._count("recovery_seconds", seconds, host=host)

    def _left(self, event: Left) -> None:
        self._count("requests", outcome=event.finish or ("failed" if event.failed else "cancelled"))
        if (met := met_slo(event)) is not None:
            self._count("promises", kept="yes" if met else "no")
        for name, seconds in (
            ("queue_seconds", event.statistics.queue_s),
            ("ttft_seconds", event.statistics.ttft_s),
            ("tpot_seconds", tpot_s(event)),
        ):
            if seconds is not None:
                self._histograms[name].observe(seconds)

    def _count(self, name: str, amount: float = 1, **tags: str) -> None:
        self._counters[name].add(amount, **tags)
