"""Generates hostile HTTP requests with hypothesis: by fields, by bytes of the body, and by HTTP.

Fields are JSON whose values are extreme, of a wrong type, or allowed and rarely used together.
Bodies are such JSON with bytes changed. On the level of HTTP, methods, paths and headers are wrong,
or the client leaves early. Equal numbers and seeds give equal requests.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.serving.hostile_fields import ANY, BASE, CHAT, FIELDS, RESPONSES

Kind = Literal["fields", "bytes", "http"]

MOST_TOKENS = 8
"""The most output tokens of a valid request: longer outputs take time and add no coverage."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class HostileRequest:
    kind: Kind
    path: str
    sent: bytes
    """All bytes that the client writes."""
    leaves: bool = False
    """The client closes the connection instead of waiting for an answer."""


def hostile_requests(number: int, random_seed: int = 0) -> list[HostileRequest]:
    generated: list[HostileRequest] = []

    @seed(random_seed)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(request=_REQUESTS)
    def collect(request: HostileRequest) -> None:
        generated.append(request)

    collect()
    return generated


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    path = draw(st.sampled_from([*FIELDS]))
    fields = FIELDS[path]
    body = dict(BASE[path])
    names = st.sampled_from([*fields]) | st.just("unknown")
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        body[name] = draw(fields.get(name, ANY) if draw(st.integers(0, 3)) else ANY)
    for name in _LIMITS:
        value = body.get(name)
        if isinstance(value, int) and MOST_TOKENS < value <= _MAX_COUNT:
            body[name] = MOST_TOKENS
    if path == CHAT and body["max_tokens"] is None:  # means what the context has room for
        body["max_tokens"] = MOST_TOKENS
    if path == RESPONSES and body["max_output_tokens"] is None:
        body["max_output_tokens"] = MOST_TOKENS
    return path, json.dumps(body).encode()


@st.composite
def _changed_bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    path, body = draw(_bodies())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(body)))
        end = min(len(body), start + draw(st.integers(0, 20)))
        put = draw(
            st.binary(max_size=8)
            | st.sampled_from([body[start:end] * 3, b'"', b"\\u0000", b"[" * 5000, b"9" * 5000])
        )
        body = body[:start] + put + body[end:]
    return path, body


_LINES = st.sampled_from(
    [
        *(b"POST %s HTTP/1.1", b"GET %s HTTP/1.1", b"PUT %s HTTP/1.1", b"post %s HTTP/1.1"),
        *(
            b"OPTIONS * HTTP/1.1",
            b"POST %s HTTP/9.9",
            b"POST %s HTTP/1.0",
            b"POST %s",
            b"\x16\x03\x01",
        ),
        *(
            b"POST %s/../../etc HTTP/1.1",
            b"POST %s?a=%%00%%ff HTTP/1.1",
            b"GET /v1/models/%%2e%%2e HTTP/1.1",
        ),
        *(
            b"GET /" + b"a" * 70_000 + b" HTTP/1.1",
            b"CONNECT x:1 HTTP/1.1",
            b"GET /v1/models/\xff HTTP/1.1",
            b"GET /version?\xff HTTP/1.1",
            b"GET /health/?\xff HTTP/1.1",
        ),
    ]
)
_HOSTS = st.sampled_from(
    [*[b"localhost"] * 3, b"[", b"x/health?", b"", b"\xff", b"localhost:99999999"]
)
_HEADERS = st.sampled_from(
    [
        *(b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Content-Length: 1e3"),
        *(b"Content-Length: 3\r\nContent-Length: 4", b"Content-Length: \xc2\xb2"),
        *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Expect: 100-continue"),
        *(b"Content-Encoding: gzip", b"Content-Type: text/plain", b"Content-Type: \xff"),
        *(b"Content-Type: application/json; charset=utf-16", b"Upgrade: websocket", b"no colon"),
        *(
            b"Authorization: Bearer \xff\xff",
            b"X-Request-Id: \x01\x02",
            b"X-Request-Id: " + b"a" * 500,
        ),
        *(b": empty", b"A: " + b"b" * 70_000, b"\r\n".join(b"H%d: x" % n for n in range(500))),
        *(b"x-spindle-strict: 1", b"serve_multiplexed_model_id: x", b"Accept-Encoding: \x80"),
        # What Serve itself reads.
        *(b"X-Request-Id: \xff", b"serve-multiplexed-model-id: \xff", b"X-Session-Id: \xff"),
        *(b"X-Session-Id: x", b"x-request-timeout-seconds: 1e-9", b"traceparent: \xff"),
        b"x-request-disconnect-disabled: ?1",
    ]
)


@st.composite
def _on_http(draw: st.DrawFn) -> HostileRequest:
    path, body = draw(_bodies())
    line = draw(_LINES)
    lines = [line % path.encode() if b"%s" in line else line, b"Host: " + draw(_HOSTS)]
    lines += draw(st.lists(_HEADERS, max_size=2))
    if draw(st.booleans()):
        lines.append(b"Content-Length: %d" % len(body))
    sent = b"\r\n".join([*lines, b"Connection: close", b"", body])
    if draw(st.integers(0, 3)) == 0:
        sent = sent[: draw(st.integers(0, len(sent)))]
    return HostileRequest("http", path, sent, leaves=draw(st.integers(0, 3)) == 0)


def _posted(kind: Kind) -> Any:
    def posted(request: tuple[str, bytes]) -> HostileRequest:
        path, body = request
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return HostileRequest(kind, path, head.encode() + body)

    return posted


_REQUESTS = st.one_of(
    _bodies().map(_posted("fields")),
    _bodies().map(_posted("fields")),
    _bodies().map(_posted("fields")),
    _changed_bodies().map(_posted("bytes")),
    _on_http(),
)
