"""One log line, and one count, for each request that ends at the ingress; and which replicas come
and go."""

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from itertools import product
from typing import Any

from deployments.ingress.answers.choices import Answer
from deployments.ingress.errors import ApiError
from deployments.metrics import (
    INGRESS_COUNTERS,
    MOST_TENANTS,
    OF_INGRESS,
    OTHER,
    STATUSES,
)
from deployments.series import Family, Series

_EXPORT_EVERY_S = 1.0
_LOG = logging.getLogger(__name__)


class IngressMetrics:
    def __init__(self, tenants: Collection[str] = ()) -> None:
        """`tenants`: those with an API key, which have series of their own."""
        self._series = Series(OF_INGRESS, {})
        listed = list(tenants)[:MOST_TENANTS]
        self._tenants = {name: name if name in listed else OTHER for name in tenants}
        shown = dict.fromkeys(self._tenants.values())
        values: Mapping[str, Collection[str]] = {
            "status": STATUSES,
            "tenant": shown,
            "kind": ("prompt", "output"),
        }
        for metric in INGRESS_COUNTERS:
            for labels in product(*(values[label] for label in metric.labels)):
                self._series.start(metric.name, *labels)
        self._series.export()

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
        self._series.observe("response_ttft_seconds", ttft_s)
        self._series.observe("response_seconds", seconds)

    def resubmitted(self, choices: int) -> None:
        self._count("resubmissions", choices)

    def replica_lost(self) -> None:
        self._count("replicas_lost", 1)

    def families(self) -> list[Family]:
        return self._series.families()

    async def keep_exported(self) -> None:
        while True:
            try:
                self._series.export()
            except Exception:
                _LOG.exception("metrics are not exported")
            await asyncio.sleep(_EXPORT_EVERY_S)

    def _count(self, name: str, amount: float, *values: str) -> None:
        self._series.add(name, amount, *values)


CLIENT_LEFT = 499
"""The status, by nginx's custom, of requests whose client left before the end."""
_PLAIN = re.compile(r"[\w.:/-]+", re.ASCII)
"""Values that the log shows without quotes."""
_MOST_REASON = 200
"""Characters of an error's message in the log: it may quote the client's input."""


class RequestLog:
    def __init__(self, metrics: IngressMetrics, model: str) -> None:
        self._metrics = metrics
        self._model = model

    def ended(self, answer: Answer, tenant: str, model: str) -> None:
        """`model`: that the request names."""
        status, outcome, reason = _end(answer)
        if isinstance(answer.error, ApiError):
            answer.error.logged = True
        attempts = [choice.failover_stream.attempt for choice in answer.choices]
        self._metrics.resubmitted(sum(attempts))
        if status == 200:
            self._metrics.answered(*_times(answer))
        self._write(
            {
                "request": answer.name,
                "tenant": tenant,
                "model": model,
                "status": status,
                "outcome": outcome,
                "reason": reason,
                **_sums([choice.statistics for choice in answer.choices]),
                "prompt_tokens": answer.usage["prompt_tokens"],
                "output_tokens": answer.usage["completion_tokens"],
                "choices": len(answer.choices),
                "attempts": 1 + max(attempts),
            }
        )

    def refused(self, error: ApiError, tenant: str = "") -> None:
        """Does nothing if the request has its line already."""
        if error.logged:
            return
        error.logged = True
        self._write(
            {
                "tenant": tenant,
                "model": self._model,
                "status": error.status,
                "outcome": "refused" if error.status < 500 else "failed",
                "reason": error.message,
            }
        )

    def _write(self, fields: dict[str, Any]) -> None:
        self._metrics.responded(fields)
        fields["reason"] = fields["reason"][:_MOST_REASON]
        text = " ".join(f"{name}={_plain(value)}" for name, value in fields.items())
        _LOG.info("request ended: %s", text)


def _end(answer: Answer) -> tuple[int, str, str]:
    """HTTP status, outcome and reason."""
    match answer.error:
        case ApiError() as error:
            return error.status, "refused" if error.status < 500 else "failed", error.message
        case None | asyncio.CancelledError():
            pass
        case error:
            return 500, "failed", type(error).__name__
    finishes = [choice.finish for choice in answer.choices]
    if answer.error is not None or None in finishes:
        return CLIENT_LEFT, "cancelled", "the client left"
    return 200, "/".join(sorted({str(finish) for finish in finishes})), ""


def _times(answer: Answer) -> tuple[float, float]:
    """Seconds until the first token of any choice of a finished answer, and until its last one."""
    return (
        min(choice.first_token_s for choice in answer.choices),
        max(choice.last_token_s for choice in answer.choices),
    )


def _sums(statistics: list[dict[str, Any]]) -> dict[str, Any]:
    """Latencies of the first and the slowest choice, and the rounds of all."""
    paces = [one["tpot_s"] for one in statistics if one["tpot_s"] is not None]
    drafters: dict[str, int] = {}
    for one in statistics:
        for lane, rounds in one["rounds_by_lane"].items():
            drafters[lane] = drafters.get(lane, 0) + rounds
    return {
        "ttft_s": round(min(one["ttft_s"] for one in statistics), 6),
        "tpot_s": round(max(paces), 6) if paces else None,
        "rounds": sum(one["rounds"] for one in statistics),
        "drafted": sum(one["drafted"] for one in statistics),
        "accepted": sum(one["accepted"] for one in statistics),
        "drafters": drafters,
        "replicas": sorted({one["replica"] for one in statistics} - {None}),
    }


def _plain(value: object) -> str:
    match value:
        case dict():
            return ",".join(f"{name}:{count}" for name, count in value.items()) or "-"
        case list():
            return ",".join(map(str, value)) or "-"
        case "" | None:
            return "-"
        case str() if not _PLAIN.fullmatch(value):
            return repr(value)
    return str(value)
