"""A server of the playground with scripted answers: slow ones, ones that break off, any text."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from deployments.ingress.pages import RESPONSES
from deployments.ingress.watching import LiveView
from deployments.replica.live import HostNumbers, ReplicaNumbers
from tests.deployments.http_server import http_server

MODEL = "scripted"
DRAFTER = "tiny"
DECISION = "no drafts: none was expected to gain"


@dataclass
class Script:
    """What the server does; a test may change it meanwhile."""

    rounds: Sequence[Sequence[str]] = ()
    """The tokens of each round of an answer: the last one is the target's own."""
    pause_s: float = 0.0
    """Before each round."""
    breaks_after: int | None = None
    """Rounds, after which the connection breaks."""
    live: threading.Event = field(default_factory=threading.Event)
    """The strip's numbers are answered once it is set."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The bodies of requests."""


def _trace(number: int, tokens: Sequence[str]) -> dict[str, Any]:
    *drafts, _ = tokens
    count = len(drafts)
    nodes = [
        {
            "id": 1,
            "text": text,
            "parent": place - 1 if place else None,
            "confidence": 0.8,
            "drafters": [DRAFTER],
            "accepted": True,
        }
        for place, text in enumerate(drafts)
    ]
    shown = [
        {"id": 1, "text": text, "node": place if place < count else None}
        for place, text in enumerate(tokens)
    ]
    counts = {"drafted": count, "verified": count, "accepted": count}
    times = {"draft_s": 0.001, "verify_s": 0.02}
    return {"attempt": 1, "round": number, **counts, **times, "tokens": shown, "nodes": nodes}


def _events(rounds: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, tokens in enumerate(rounds, 1):
        spindle: dict[str, Any] = {"trace": _trace(number, tokens)}
        last = number == len(rounds)
        if last:
            spindle |= {"ttft_s": 0.1, "tpot_s": 0.01, "rounds": number, "seed": 1, "replica": "r"}
            spindle["drafted"] = sum(len(one) - 1 for one in rounds)
            spindle["decision"] = DECISION
        choice = {
            "index": 0,
            "delta": {"content": "".join(tokens)},
            "finish_reason": "stop" if last else None,
            "spindle": spindle,
        }
        yield f"data: {json.dumps({'choices': [choice]})}\n\n"
    yield "data: [DONE]\n\n"


def _numbers() -> str:
    now = time.monotonic()
    hosts = [
        HostNumbers(name="verifier", drafter=None, busy=[(now - 1, now - 0.5)]),
        HostNumbers(name=DRAFTER, drafter=DRAFTER, busy=[(now - 0.5, now - 0.4)]),
    ]
    replica = ReplicaNumbers(
        replica="r",
        now_s=now,
        seconds=8.0,
        running=1,
        waiting=0,
        goodput=50.0,
        attainment=None,
        drafted={DRAFTER: 100},
        accepted={DRAFTER: 60},
        hosts=hosts,
    )
    return LiveView(
        model=MODEL, drafters=[DRAFTER], slo_classes={}, replicas=[replica]
    ).model_dump_json()


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """Its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == "/spindle/live":
                script.live.wait(30)
                self._answer(200, {"Content-Type": "application/json"}, _numbers().encode())
            elif path in RESPONSES:
                page = RESPONSES[path]
                self._answer(200, dict(page.headers), bytes(page.body))
            else:
                self._answer(404, {}, b"")

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            script.asked.append(json.loads(self.rfile.read(length)))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                self._stream()
            except OSError:  # the client has left
                self.close_connection = True

        def _stream(self) -> None:
            for number, event in enumerate(_events(script.rounds)):
                time.sleep(script.pause_s)
                if number == script.breaks_after:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                data = event.encode()
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() != "content-length":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http_server(Handler) as url:
        try:
            yield url
        finally:
            script.live.set()
