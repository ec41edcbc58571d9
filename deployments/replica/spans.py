"""OpenTelemetry's spans of requests and their rounds, exported by OTLP (docs/operating.md).

Imported only where the config has `tracing`.
"""

import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from actors.coordinator.events import Arrived, Event, Left, Verified
from cluster.config.serving import TracingConfig
from policies.request import RoundOutcome

_EXPORT_EVERY_MS = 1000
_MOST_QUEUED = 32_768
"""Spans that wait for their export; further ones are dropped."""
_MOST_AT_ONCE = 2048


class RequestSpans:
    def __init__(self, config: TracingConfig, model: str, replica: str, now: float) -> None:
        """`now`: of the coordinator's clock."""
        self._provider = TracerProvider(
            sampler=TraceIdRatioBased(config.share),
            resource=Resource.create({"service.name": "spindle", "service.instance.id": replica}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(config.endpoint),
                max_queue_size=_MOST_QUEUED,
                schedule_delay_millis=_EXPORT_EVERY_MS,
                max_export_batch_size=_MOST_AT_ONCE,
            )
        )
        self._tracer = self._provider.get_tracer("spindle")
        self._model = model
        self._epoch_ns = time.time_ns() - round(1e9 * now)
        self._spans: dict[str, Span] = {}
        """Those of the requests that are sampled and have not left."""

    def observe(self, event: Event) -> None:
        match event:
            case Arrived():
                self._arrived(event)
            case Verified():
                for outcome in event.outcomes:
                    span = self._spans.get(outcome.request)
                    if span is not None:
                        self._round(span, outcome, event.at_s)
            case Left():
                span = self._spans.pop(event.view.name, None)
                if span is not None:
                    self._left(span, event)

    def close(self) -> None:
        """Exports what is queued."""
        self._provider.shutdown()

    def _arrived(self, event: Arrived) -> None:
        view = event.view
        span = self._tracer.start_span(
            f"text_completion {self._model}",
            kind=SpanKind.SERVER,
            start_time=self._ns(view.arrival_s),
            attributes={
                "gen_ai.operation.name": "text_completion",
                "gen_ai.provider.name": "spindle",
                "gen_ai.request.model": self._model,
                "gen_ai.request.max_tokens": view.max_tokens,
                "gen_ai.usage.input_tokens": view.prompt_len,
                "spindle.request": view.name,
                "spindle.tenant": view.tenant,
            },
        )
        if span.is_recording():
            self._spans[view.name] = span

    def _round(self, request: Span, outcome: RoundOutcome, at_s: float) -> None:
        span = self._tracer.start_span(
            "round",
            context=set_span_in_context(request),
            start_time=self._ns(at_s - outcome.seconds),
            attributes={
                "spindle.lane": outcome.lane or "",
                "spindle.verified": outcome.drafted,
                "spindle.accepted": outcome.accepted,
                "spindle.committed": outcome.committed,
                "spindle.draft_s": outcome.draft_s,
                "spindle.verify_s": outcome.verify_s,
            },
        )
        span.end(self._ns(at_s))

    def _left(self, span: Span, event: Left) -> None:
        statistics = event.statistics
        finish = event.finish or ("failed" if event.failed else "cancelled")
        span.set_attributes(
            {
                "gen_ai.usage.output_tokens": event.view.generated,
                "gen_ai.response.finish_reasons": [finish],
                "spindle.rounds": statistics.rounds,
                "spindle.verified": statistics.drafted,
                "spindle.accepted": statistics.accepted,
            }
        )
        if statistics.queue_s is not None:
            span.set_attribute("gen_ai.latency.time_in_queue", statistics.queue_s)
        if statistics.ttft_s is not None:
            span.set_attribute("gen_ai.latency.time_to_first_token", statistics.ttft_s)
        if event.failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(self._ns(event.at_s))

    def _ns(self, at_s: float) -> int:
        return self._epoch_ns + round(1e9 * at_s)
