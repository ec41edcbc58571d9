"""How long requests keep the event loop from everything else, measured on the loop itself."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

MOST_GAP_S = 0.1
_TICK_S = 0.005


@dataclass
class LoopGap:
    longest_s: float = 0.0
    """The longest time in which this process kept the loop from running a task that was due.

    The lower of the time that passed and the processor time that this process took meanwhile:
    neither another process on the machine nor a thread beside the loop counts, unless it holds the
    interpreter's lock."""

    def add(self, passed_s: float, worked_s: float) -> None:
        self.longest_s = max(self.longest_s, min(passed_s, worked_s))


@asynccontextmanager
async def loop_gap() -> AsyncIterator[LoopGap]:
    """Measures the loop while the block runs."""
    gap = LoopGap()

    async def tick() -> None:
        while True:
            begun, worked = time.monotonic(), time.process_time()
            await asyncio.sleep(_TICK_S)
            gap.add(time.monotonic() - begun - _TICK_S, time.process_time() - worked)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        yield gap
        await asyncio.sleep(2 * _TICK_S)
    finally:
        ticking.cancel()


async def post(app: ASGIApp, path: str, body: bytes) -> tuple[int, bytes]:
    """The status and the body of the answer. Without a server and a client, whose work in the same
    process would be measured, too."""
    answered: list[Message] = []
    arrived = False
    left = asyncio.Event()

    async def receive() -> Message:
        nonlocal arrived
        if arrived:
            await left.wait()
            return {"type": "http.disconnect"}
        arrived = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        answered.append(message)

    scope: dict[str, Any] = {
        **{"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}},
        **{"http_version": "1.1", "method": "POST", "scheme": "http", "path": path},
        **{"raw_path": path.encode(), "root_path": "", "query_string": b""},
        **{"headers": [(b"content-type", b"application/json")], "client": ("127.0.0.1", 1)},
        **{"server": ("127.0.0.1", 80), "state": {}},
    }
    await app(scope, receive, send)
    left.set()
    status = next(one["status"] for one in answered if one["type"] == "http.response.start")
    return status, b"".join(one.get("body", b"") for one in answered)
