"""The metrics of one replica, from its coordinator's events."""

from collections import Counter as TimesSeen
from collections.abc import Collection, Mapping, Sequence
from itertools import product

import numpy as np

from actors.coordinator.events import (
    CaughtUp,
    Drafted,
    Event,
    FeaturesLost,
    LaneDown,
    LaneUp,
    Late,
    Left,
    Preempted,
    Switched,
    Verified,
    VerifierDown,
    VerifierUp,
)
from actors.learning.replica_side import Numbers
from deployments.metrics import (
    ACCEPTED,
    COORDINATOR,
    COUNTERS,
    GAUGES,
    KV_STATES,
    LOOKUPS,
    OF_REPLICA,
    OTHER,
    OUTCOMES,
    PARTS,
    PLAIN,
    POSITIONS,
    VERIFIER,
)
from deployments.replica.autoscaling_signals import met_slo, tpot_s
from deployments.replica.node_counts import NodeCounts
from deployments.series import Family, Series
from engine.kv.blocks import KvState
from policies.flat_trees import FlatTrees
from policies.request import RoundOutcome, Slo
from policies.tree_counts import ACCEPTED as ACCEPTED_NODES
from policies.tree_counts import EXPECTED, VERIFIED

_MOST_PENDING = 1_000
"""Events, which keep the arrays of their trees."""


class Metrics:
    """`observe` takes the coordinator's events; `export` passes all sums on to Ray."""

    def __init__(
        self, replica: str, drafters: Mapping[str, str], slo_classes: Mapping[str, Slo]
    ) -> None:
        """`drafters`: drafter name by lane."""
        self._drafters = drafters
        self._node_counts = NodeCounts(drafters)
        self._names, self._column = self._node_counts.names, self._node_counts.column
        self._slo_classes = {slo: name for name, slo in slo_classes.items()}
        self._lane_free_since: dict[str, float] = {}
        self._drafted = np.zeros((len(self._names), len(POSITIONS)))
        """Drafted tokens since the last export: [drafter, depth - 1]."""
        self._nodes = self._node_counts.zeros()
        """Verified, expected and accepted ones: [drafter, depth - 1, kind]."""
        self._pending: list[Event] = []
        self._series = Series(OF_REPLICA, {"replica": replica})
        self._start()

    def _start(self) -> None:
        lanes = list(self._drafters)
        selected = [*self._names, LOOKUPS, PLAIN]
        classes = [*self._slo_classes.values(), OTHER]
        work = [(lane, kind) for lane in lanes for kind in ("draft", "catch_up")]
        values: Mapping[tuple[str, ...], Collection[tuple[str, ...]]] = {
            (): [()],
            ("drafter",): [(name,) for name in selected],
            ("drafter", "accepted"): [*product(selected, ACCEPTED)],
            ("drafter", "position"): [*product(self._names, POSITIONS)],
            ("drafter", "part"): [*product(selected, PARTS)],
            ("by",): [("clock",), ("model",)],
            ("host", "work"): [*work, (VERIFIER, "verify"), (COORDINATOR, "select")],
            ("host",): [(host,) for host in (*lanes, VERIFIER)],
            ("outcome",): [(outcome,) for outcome in OUTCOMES],
            ("cached",): [("yes",), ("no",)],
            ("kept", "slo_class"): [*product(("yes", "no"), classes)],
            ("state",): [(state,) for state in KV_STATES],
            ("sent",): [("yes",), ("no",)],
            ("version",): [("served",), ("candidate",)],
        }
        for metric in (*COUNTERS, *GAUGES):
            for labels in values[metric.labels]:
                self._series.start(metric.name, *labels)
        self.export()

    def families(self) -> list[Family]:
        self._sum_up()
        return self._series.families()

    def export(self) -> None:
        """Called every second."""
        self._sum_up()
        self._series.export()

    def set_load(self, running: float, waiting: float) -> None:
        self._series.set("running", running)
        self._series.set("waiting", waiting)

    def set_kv(self, kv: KvState) -> None:
        for state, blocks in zip(KV_STATES, (kv.free, kv.used, kv.cached), strict=True):
            self._series.set("kv_blocks", blocks, state)

    def set_learning(self, numbers: Numbers, sent: int, passed_over: int) -> None:
        """What is known of learning, and the lessons since the last call."""
        self._count("lessons", sent, "yes")
        self._count("lessons", passed_over, "no")
        self._series.set("learned_version", numbers["version"])
        self._series.set("learned_tokens", numbers["tokens"])
        self._series.set("learning_share", numbers["share"])
        for version in ("served", "candidate"):
            self._series.set("learning_tokens_per_forward", numbers[version], version)

    def observe(self, event: Event) -> None:
        """Queues the event until the next export. Counted here, between forwards that evict the
        processor's caches, it would take several times as long."""
        self._pending.append(event)
        if len(self._pending) == _MOST_PENDING:
            self._count_pending()

    def _count_pending(self) -> None:
        pending, self._pending = self._pending, []
        for event in pending:
            self._count_event(event)

    def _count_event(self, event: Event) -> None:
        match event:
            case Verified():
                self._verified(event)
            case Drafted():
                self._worked(event.lane, "draft", event.at_s, event.seconds)
                self._count("assignments", event.requests, event.lane)
                self._add_drafted(event.lane, event.trees)
                if event.predicted_s > 0.0:
                    self._compare(event.lane, event.predicted_s, event.seconds)
            case CaughtUp():
                self._worked(event.lane, "catch_up", event.at_s, event.seconds)
                self._count("caught_up_tokens", event.tokens, event.lane)
            case Switched():
                self._count("switches", 1)
                self._count("prepared_switches", event.read_ahead > 0)
                self._count("catch_up_saved_seconds", event.saved_s, event.lane)
            case Preempted():
                self._count("preemptions", 1)
            case Late():
                self._count("late_calls", 1, event.lane)
            case FeaturesLost():
                self._count("features_lost", 1, event.lane)
            case LaneDown():
                self._lost(event.lane)
            case VerifierDown():
                self._lost(VERIFIER)
            case LaneUp():
                self._recovered(event.lane, event.seconds)
            case VerifierUp():
                self._recovered(VERIFIER, event.seconds)
            case Left() if not event.internal:
                self._left(event)

    def _verified(self, event: Verified) -> None:
        count, outcomes = self._count, event.outcomes
        count("forwards", 1)
        count("prefilled_tokens", event.prefill_tokens)
        count("busy_seconds", event.seconds, VERIFIER, "verify")
        count("busy_seconds", event.select_s, COORDINATOR, "select")
        count("idle_seconds", event.idle_s, VERIFIER)
        self._series.observe("forward_seconds", event.seconds)
        if outcomes:
            self._series.observe("forward_requests", len(outcomes))
        if not event.prefill_tokens:
            self._compare(VERIFIER, event.predicted_s, event.seconds)
        count("committed_tokens", sum([outcome.committed for outcome in outcomes]))
        decoded = outcomes
        if event.prompts:
            decoded = tuple(one for one in outcomes if one.request not in event.prompts)
            count("rounds", len(outcomes) - len(decoded), PLAIN, ACCEPTED[0])
        for drafter, rounds in self._by_drafter(decoded).items():
            self._add_rounds(drafter, rounds, event.plain_s)
        if event.drafts is not None:
            self._node_counts.add(event.drafts, self._nodes)
        elif decoded and not event.prefill_tokens:
            count("probe_seconds", sum([outcome.seconds for outcome in decoded]), "clock")
            count("probe_seconds", len(decoded) * event.plain_s, "model")

    def _by_drafter(self, outcomes: Sequence[RoundOutcome]) -> dict[str, list[RoundOutcome]]:
        """By the drafter of the selected lane."""
        groups: dict[str, list[RoundOutcome]] = {}
        for outcome in outcomes:
            groups.setdefault(self._drafter_of(outcome.lane, outcome.drafted), []).append(outcome)
        return groups

    def _add_rounds(self, drafter: str, outcomes: Sequence[RoundOutcome], plain_s: float) -> None:
        """Sums of lists, because to update a series costs as much as several of their items."""
        draft_s = sum([outcome.draft_s for outcome in outcomes])
        prompts_s = sum([outcome.prompts_s for outcome in outcomes])
        verify_s = sum([outcome.verify_s for outcome in outcomes])
        seconds = sum([outcome.seconds for outcome in outcomes])
        parts = (draft_s, verify_s - prompts_s, prompts_s, seconds - verify_s - draft_s)
        for part, part_s in zip(PARTS, parts, strict=True):
            self._count("slot_seconds", max(0.0, part_s), drafter, part)
        committed = sum([outcome.committed for outcome in outcomes])
        self._count("plain_seconds", committed * plain_s, drafter)
        most = len(ACCEPTED) - 1
        for accepted, rounds in TimesSeen([min(one.accepted, most) for one in outcomes]).items():
            self._count("rounds", rounds, drafter, ACCEPTED[accepted])

    def _drafter_of(self, lane: str | None, drafted: int) -> str:
        if lane is not None:
            return self._drafters[lane]
        return LOOKUPS if drafted else PLAIN

    def _add_drafted(self, lane: str, trees: FlatTrees) -> None:
        most = len(POSITIONS)
        depths = np.minimum(trees.depth, most)
        self._drafted[self._column[lane]] += np.bincount(depths, minlength=most + 1)[1:]

    def _sum_up(self) -> None:
        """Adds the pending events, and what they have counted in arrays."""
        self._count_pending()
        for drafter, name in enumerate(self._names):
            for depth, position in enumerate(POSITIONS):
                labels = (name, position)
                verified = self._nodes[drafter, depth]
                self._count("drafted_tokens", float(self._drafted[drafter, depth]), *labels)
                self._count("verified_tokens", float(verified[VERIFIED]), *labels)
                self._count("expected_tokens", float(verified[EXPECTED]), *labels)
                self._count("accepted_tokens", float(verified[ACCEPTED_NODES]), *labels)
        self._drafted[:] = 0.0
        self._nodes[:] = 0.0

    def _worked(self, lane: str, work: str, at_s: float, seconds: float) -> None:
        started_at = at_s - seconds
        idle_s = started_at - self._lane_free_since.get(lane, started_at)
        self._count("busy_seconds", seconds, lane, work)
        self._count("idle_seconds", max(0.0, idle_s), lane)
        self._lane_free_since[lane] = at_s

    def _compare(self, host: str, predicted_s: float, seconds: float) -> None:
        self._count("predicted_seconds", predicted_s, host)
        self._count("prediction_error_seconds", abs(seconds - predicted_s), host)

    def _lost(self, host: str) -> None:
        self._count("losses", 1, host)
        self._series.set("down", 1.0, host)

    def _recovered(self, host: str, seconds: float) -> None:
        self._count("restarts", 1, host)
        self._count("recovery_seconds", seconds, host)
        self._series.set("down", 0.0, host)

    def _left(self, event: Left) -> None:
        self._count("requests", 1, event.finish or ("failed" if event.failed else "cancelled"))
        if (met := met_slo(event)) is not None:
            slo_class = self._slo_classes.get(event.view.slo, OTHER)
            self._count("promises", 1, "yes" if met else "no", slo_class)
        if (cached := event.statistics.cached) is not None:
            self._count("prompts", 1, "yes" if cached else "no")
            self._count("cached_tokens", cached)
        latency_s = event.at_s - event.view.arrival_s
        for name, seconds in (
            ("queue_seconds", event.statistics.queue_s),
            ("ttft_seconds", event.statistics.ttft_s),
            ("tpot_seconds", tpot_s(event)),
            ("latency_seconds", latency_s if event.finish else None),
        ):
            if seconds is not None:
                self._series.observe(name, seconds)

    def _count(self, name: str, amount: float, *values: str) -> None:
        self._series.add(name, amount, *values)
