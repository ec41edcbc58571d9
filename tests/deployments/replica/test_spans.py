"""A collector gets one span for each request and one for each of its rounds."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from actors.coordinator.events import Verified
from benchmarks.simulator.clock import run
from cluster.config.serving import TracingConfig
from deployments.replica.spans import RequestSpans
from tests.actors.coordinator.test_loop import PROMPTS, Service, serve_all
from tests.deployments.http_server import http_server


@contextmanager
def collector(spans: list[Any]) -> Iterator[str]:
    """Its URL; received spans are added to the list."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest()
            request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http_server(Handler) as url:
        yield f"{url}/v1/traces"


@pytest.mark.parametrize("share", [1.0, 1e-9])
def test_requests_and_rounds_are_spans(share: float) -> None:
    spans: list[Any] = []

    async def main(url: str) -> tuple[list[list[int]], int]:
        service = Service()
        streams = await serve_all(service)
        exported = RequestSpans(TracingConfig(endpoint=url, share=share), "target", "one", now=0.0)
        for event in service.events:
            exported.observe(event)
        exported.close()
        return streams, sum(len(event.outcomes) for event in service.seen(Verified))

    with collector(spans) as url:
        streams, rounds = run(main(url))
    if share < 1:
        assert spans == []
        return
    requests = {span.span_id: span for span in spans if span.name == "text_completion target"}
    assert len(requests) == len(PROMPTS)
    assert sum(span.name == "round" for span in spans) == rounds
    for span in spans:
        if span.name == "round":
            request = requests[span.parent_span_id]
            assert span.trace_id == request.trace_id
            # Virtual time is exact but for the rounding of nanoseconds.
            assert request.start_time_unix_nano <= span.start_time_unix_nano + 10
            assert span.end_time_unix_nano <= request.end_time_unix_nano + 10
    attributes = [{one.key: one.value for one in span.attributes} for span in requests.values()]
    of_rounds = [
        {one.key: one.value.int_value for one in span.attributes}
        for span in spans
        if span.name == "round"
    ]
    committed = sum(one["spindle.committed"] for one in of_rounds)
    assert committed == sum(map(len, streams))
    assert 0 < sum(one["spindle.accepted"] for one in of_rounds) < committed
    assert len({span.span_id for span in spans}) == len(spans)
    outputs = Counter(one["gen_ai.usage.output_tokens"].int_value for one in attributes)
    assert outputs == Counter(map(len, streams))
    prompts = Counter(one["gen_ai.usage.input_tokens"].int_value for one in attributes)
    assert prompts == Counter(map(len, PROMPTS))
