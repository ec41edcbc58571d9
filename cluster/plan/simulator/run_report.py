"""The results of a simulated run: of each request, and of the whole run."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from actors.coordinator.events import Drafted, Event, Verified
from cluster.plan.simulator.workload import Arrival


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """When a request got its first and its last token."""

    arrival: Arrival
    started_s: float
    first_token_s: float
    finished_s: float
    tokens: int

    @property
    def latency_s(self) -> float:
        return self.finished_s - self.started_s

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.started_s

    @property
    def tpot_s(self) -> float:
        """Mean over the tokens after the first."""
        return (self.finished_s - self.first_token_s) / max(1, self.tokens - 1)

    @property
    def meets_slo(self) -> bool:
        slo = self.arrival.slo
        return (slo.ttft_s is None or self.ttft_s <= slo.ttft_s) and (
            slo.tpot_s is None or self.tpot_s <= slo.tpot_s
        )


@dataclass(slots=True)
class Tally:
    """Counts of the coordinator's events."""

    verify_s: float = 0.0
    committed: int = 0
    drafted: int = 0
    accepted: int = 0
    request_rounds: int = 0
    draft_s: dict[str, float] = field(default_factory=dict)
    """By lane."""

    def observe(self, event: Event) -> None:
        match event:
            case Verified():
                self.verify_s += event.seconds
                self.request_rounds += len(event.outcomes)
                for outcome in event.outcomes:
                    self.committed += outcome.committed
                    self.drafted += outcome.drafted
                    self.accepted += outcome.accepted
            case Drafted():
                self.draft_s[event.lane] = self.draft_s.get(event.lane, 0.0) + event.seconds


@dataclass(frozen=True, slots=True)
class Report:
    served: Sequence[FinishedRequest]
    refused: int
    """Requests that were not admitted."""
    tally: Tally

    @property
    def duration_s(self) -> float:
        started = min(request.started_s for request in self.served)
        return max(request.finished_s for request in self.served) - started

    @property
    def throughput(self) -> float:
        """Committed output tokens per second."""
        return sum(request.tokens for request in self.served) / self.duration_s

    @property
    def goodput(self) -> float:
        """As throughput, but only of requests that met their SLO."""
        good = sum(request.tokens for request in self.served if request.meets_slo)
        return good / self.duration_s

    @property
    def attainment(self) -> float:
        """Share of requests that met their SLO; refused ones did not."""
        return sum(request.meets_slo for request in self.served) / (len(self.served) + self.refused)

    @property
    def tokens_per_round(self) -> float:
        return self.tally.committed / max(1, self.tally.request_rounds)

    @property
    def mean_latency_s(self) -> float:
        return float(np.mean([request.latency_s for request in self.served]))
