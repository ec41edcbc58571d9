"""Streams over HTTP as a client sees them: what was said, and when.

The client is aiohttp, as in vLLM's own benchmark: httpx takes 0.9 ms longer to send a request and
read its first line (1.6 instead of 0.7 ms to a server that does nothing), which is no cost of ours.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector


@dataclass(slots=True)
class Said:
    """One stream so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None
    statistics: Mapping[str, Any] | None = None
    begun_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    """When each event with tokens came."""

    @property
    def complete(self) -> bool:
        return self.finish is not None and self.error is None

    def longest_pause_s(self, since_s: float) -> float:
        """Between two events, from then on. What was on its way then has come through."""
        times = [since_s, *(time for time in self.times_s if time > since_s)]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


def session(silence_s: float) -> ClientSession:
    """For as many streams at once as one likes; one that is silent for so long is given up."""
    timeout = ClientTimeout(total=None, sock_connect=silence_s, sock_read=silence_s)
    return ClientSession(timeout=timeout, connector=TCPConnector(limit=0))


async def read(
    client: ClientSession,
    url: str,
    body: Mapping[str, Any],
    said: Said,
    progress: Callable[[], None] = lambda: None,
) -> Said:
    """Fills `said` as the stream comes, so that others can look at it meanwhile."""
    clock = asyncio.get_running_loop().time
    said.begun_s = clock()
    asked = {**body, "stream": True, "return_token_ids": True}
    async with client.post(f"{url}/v1/completions", json=asked) as answer:
        if answer.status != HTTPStatus.OK:
            said.error = f"{answer.status}: {await answer.text()}"
            return said
        async for line in answer.content:
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]" or not line.startswith(b"data: "):
                continue
            event = json.loads(data)
            if "error" in event:
                said.error = event["error"]["message"]
                continue
            for choice in event["choices"]:
                said.text += choice["text"]
                said.token_ids += choice.get("token_ids") or ()
                said.finish = choice["finish_reason"] or said.finish
                said.statistics = choice.get("spindle") or said.statistics
                if choice.get("token_ids"):
                    said.times_s.append(clock())
            progress()
    return said


async def read_all(url: str, bodies: Sequence[Mapping[str, Any]], timeout_s: float) -> list[Said]:
    """All at once."""
    said = [Said() for _ in bodies]
    async with session(timeout_s) as client:
        await asyncio.gather(
            *(read(client, url, body, one) for body, one in zip(bodies, said, strict=True))
        )
    return said
