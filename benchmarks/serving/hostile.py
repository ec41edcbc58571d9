"""Sends thousands of generated hostile requests to one server, which must not fail.

`python -m benchmarks.serving.hostile [--requests 10000] [--json FILE]`.

Requests (benchmarks/serving/hostile_requests.py) go over several connections at once. Every 500 of
them an ordinary request is sent, whose answer must be the same one, from the same replica, each
time. Each process's memory is measured, and its growth per 1,000 requests over the last 60%
compared with a bound.

Names: hostile/KIND/STATUS by answers (`none`: the connection was closed without one),
hostile/failed, hostile/lost (processes that have ended), hostile/PROCESS/growth and /memory. Exits
with 1 when an answer is 5xx other than 503 with `Retry-After`, has a traceback, is late or missing
(but on the level of HTTP), when a process has ended or memory grows. Growth is not checked below
5,000 requests.
"""

import asyncio
import re
import sys
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from aiohttp import ClientSession

from benchmarks.report import Record, parser, publish
from benchmarks.serving.app import App, running, small_args
from benchmarks.serving.hostile_requests import HostileRequest, hostile_requests
from benchmarks.serving.soak import process_memory
from cluster.built_in_models import TARGET

PORT = 8173
CONNECTIONS = 4
BLOCK = 500
"""Requests between two checks with an ordinary one."""
ANSWER_S = 60.0
INCOMPLETE_S = 0.5
"""After so long a client that may have sent half a request gives up."""
MIN_CHECKED = 5_000
CHECKED_SHARE = 0.6
"""Of the requests, the last ones: before them grammars and prefixes fill their bounded memories."""
MAX_GROWTH = 2.0
"""MiB per 1,000 requests."""
_ROOT = str(Path(__file__).parents[2])
_SHOWN = 10
"""Failures that are printed."""


@dataclass(frozen=True, slots=True)
class Response:
    status: str
    """`none`: the connection was closed without one; `late`: there was none in time."""
    problem: str | None
    """Why a server must not answer so; None: it may."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--requests", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    requests = hostile_requests(options.requests, options.seed)
    print(f"{len(requests)} requests generated", flush=True)
    with running(args(), PORT) as app:
        result = asyncio.run(attack(app, requests))
    publish(result.records(), options.json)
    for failure in result.failures[:_SHOWN]:
        print(failure)
    sys.exit(0 if result.passed else 1)


def args() -> dict[str, Any]:
    return small_args() | {"limits": {"max_batch": 8, "max_waiting": 24, "client_share": 1.0}}


@dataclass(frozen=True, slots=True)
class Result:
    answers: Counter[str]
    """By kind and status."""
    failures: Sequence[str]
    lost: int
    """Processes that have ended."""
    memory: Sequence[Mapping[str, float]]
    """MiB by process, after each block."""

    @property
    def growths(self) -> dict[str, float]:
        """MiB per 1,000 requests, by process."""
        checked = self.memory[-max(2, round(CHECKED_SHARE * len(self.memory))) :]
        thousands = np.arange(len(checked)) * BLOCK / 1000
        return {
            name: float(np.polyfit(thousands, [sizes[name] for sizes in checked], 1)[0])
            for name in checked[0]
            if all(name in sizes for sizes in checked)
        }

    @property
    def passed(self) -> bool:
        checked = self.answers.total() >= MIN_CHECKED
        grows = checked and max(self.growths.values()) > MAX_GROWTH
        return not (self.failures or self.lost or grows)

    def records(self) -> list[Record]:
        records = [
            Record(f"hostile/{name}", float(count), "requests")
            for name, count in sorted(self.answers.items())
        ]
        records.append(Record("hostile/failed", float(len(self.failures)), "requests"))
        records.append(Record("hostile/lost", float(self.lost), "processes"))
        for name, growth in self.growths.items():
            records += [
                Record(f"hostile/{name}/growth", growth, "MiB/1000"),
                Record(f"hostile/{name}/memory", self.memory[-1][name], "MiB"),
            ]
        return records


async def attack(app: App, requests: Sequence[HostileRequest]) -> Result:
    answers: Counter[str] = Counter()
    failures: list[str] = []
    processes = {actor.pid for actor in app.actors()}
    first = await ordinary_answer(app.url)
    memory = [process_memory(app)]
    for start in range(0, len(requests), BLOCK):
        block = requests[start : start + BLOCK]
        for request, response in zip(block, await send_all(app.url, block), strict=True):
            answers[f"{request.kind}/{response.status}"] += 1
            if response.problem is not None:
                failures.append(f"{response.problem}: {request.sent[:2000]!r}")
        if (answer := await ordinary_answer(app.url)) != first:
            failures.append(f"an ordinary request is answered {answer} in place of {first}")
        memory.append(process_memory(app))
        sizes = ", ".join(f"{name} {size:.0f}" for name, size in memory[-1].items())
        print(f"{answers.total()} sent, {len(failures)} failed; MiB: {sizes}", flush=True)
    lost = len(processes - {actor.pid for actor in app.actors()})
    return Result(answers, failures, lost, memory)


async def ordinary_answer(url: str) -> object:
    """What must stay the same: the replica and the text of a seeded request."""
    body = {"model": TARGET, "prompt": "1, 2, 3,", "max_tokens": 24, "temperature": 1.0, "seed": 7}
    async with ClientSession() as http, http.post(f"{url}/v1/completions", json=body) as answer:
        fields = await answer.json()
    if "choices" not in fields:
        return fields
    choice = fields["choices"][0]
    return choice["spindle"]["replica"], choice["text"]


async def send_all(url: str, requests: Sequence[HostileRequest]) -> list[Response]:
    connections = asyncio.Semaphore(CONNECTIONS)

    async def one(request: HostileRequest) -> Response:
        async with connections:
            return await send(url, request)

    return await asyncio.gather(*(one(request) for request in requests))


async def send(url: str, request: HostileRequest) -> Response:
    address = urlsplit(url)
    answer = b""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                writer.write(request.sent)
                await writer.drain()
                if not request.leaves:
                    answer = await _answer(reader, writer, request)
            except ConnectionError:
                pass  # closed by the server before all was sent
            finally:
                writer.close()
    except TimeoutError:
        return Response("late", "no answer in time")
    return checked(request, answer)


async def _answer(reader: StreamReader, writer: StreamWriter, request: HostileRequest) -> bytes:
    if request.kind != "http":
        return await reader.read(-1)
    try:
        first = await asyncio.wait_for(reader.read(4096), INCOMPLETE_S)
    except TimeoutError:  # the head may announce a body that never comes
        writer.write_eof()
        first = b""
    return first + await reader.read(-1)


def checked(request: HostileRequest, answer: bytes) -> Response:
    head, _, body = answer.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    if found is None:
        allowed = request.kind == "http" and not answer
        return Response("none", None if allowed else "no answer")
    status = found[1].decode()
    in_events = re.findall(rb'"status": ?(5\d\d)', body)
    if in_events and status == "200":
        status = in_events[0].decode()
    if status.startswith("5") and not (status == "503" and b"retry-after:" in head.lower()):
        return Response(status, f"answered {status} ({body[:200]!r})")
    if b"Traceback" in body or _ROOT.encode() in body:
        return Response(status, f"shows the server's inside ({body[:200]!r})")
    return Response(status, None)


if __name__ == "__main__":
    main()
