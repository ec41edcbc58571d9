"""The metrics of the ingress: how requests end, and which replicas come and go."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from itertools import product
from typing import Any

from deployments.metrics import (
    INGRESS_COUNTERS,
    INGRESS_HISTOGRAMS,
    LOST,
    MOST_TENANTS,
    OTHER,
    STATUSES,
    STOPPED,
)
from deployments.series import Counter, Family, Histogram

_EXPORT_EVERY_S = 1.0
_LOG = logging.getLogger(__name__)


class IngressMetrics:
    def __init__(self, tenants: Collection[str] = ()) -> None:
        """`tenants`: those with an API key, which have series of their own."""
        self._counters = {metric.name: Counter(metric, {}) for metric in INGRESS_COUNTERS}
        self._histograms = {metric.name: Histogram(metric, {}) for metric in INGRESS_HISTOGRAMS}
        listed = list(tenants)[:MOST_TENANTS]
        self._tenants = {name: name if name in listed else OTHER for name in tenants}
        shown = dict.fromkeys(self._tenants.values())
        values: Mapping[str, Collection[str]] = {
            "status": STATUSES,
            "tenant": shown,
            "kind": ("prompt", "output"),
            "reason": (LOST, STOPPED),
        }
        for metric in INGRESS_COUNTERS:
            labels = [values[label] for label in metric.labels]
            self._counters[metric.name].start(product(*labels))

    def responded(self, fields: Mapping[str, Any]) -> None:
        """`fields`: those of the request's log line."""
        status = str(fields["status"])
        self._count("responses", 1, status)
        tenant = self._tenants.get(fields["tenant"])
        if tenant is not None:
            self._count("tenant_responses", 1, tenant, status)
            self._count("tenant_tokens", fields.get("prompt_tokens", 0), tenant, "prompt")
            self._count("tenant_tokens", fields.get("output_tokens", 0), tenant, "output")

    def answered(self, ttft_s: float, seconds: float) -> None:
        """A request has been answered to its end."""
        self._histograms["response_ttft_seconds"].observe(ttft_s)
        self._histograms["response_seconds"].observe(seconds)

    def resubmitted(self, choices: int) -> None:
        self._count("resubmissions", choices)

    def replicas_started(self, number: int) -> None:
        self._count("replicas_started", number)

    def replica_left(self, reason: str) -> None:
        self._count("replicas_left", 1, reason)

    def families(self) -> list[Family]:
        counters = [counter.family() for counter in self._counters.values()]
        return counters + [histogram.family() for histogram in self._histograms.values()]

    def families_of(self, tenant: str) -> list[Family]:
        """The series of this tenant alone; none if it is counted together with others."""
        own: list[Family] = []
        if self._tenants.get(tenant) == tenant != OTHER:
            for family in self.families():
                samples = [
                    one for one in family["samples"] if one["labels"].get("tenant") == tenant
                ]
                if samples:
                    own.append({**family, "samples": samples})
        return own

    async def keep_exported(self) -> None:
        """Exports the histograms every second: Ray has them as gauges, and drops any that has not
        been set for 20 s."""
        while True:
            try:
                for histogram in self._histograms.values():
                    histogram.export()
            except Exception:
                _LOG.exception("histograms are not exported")
            await asyncio.sleep(_EXPORT_EVERY_S)

    def _count(self, name: str, amount: float, *values: str) -> None:
        self._counters[name].add(amount, *values)
        self._counters[name].export()
