"""Streams over HTTP as a client receives them: tokens, and when each event arrived.

The client is aiohttp, as in vLLM's own benchmark: httpx takes 0.9 ms longer to send a request and
read its first line (1.6 instead of 0.7 ms from an idle server), which is not a cost of Spindle.
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
class ReceivedStream:
    """What a client has received of one completion so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None
    statistics: Mapping[str, Any] | None = None
    started_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    """When each event with tokens arrived."""

    @property
    def complete(self) -> bool:
        return self.finish is not None and self.error is None

    def longest_pause_s(self, since_s: float) -> float:
        """Between two events after that time."""
        times = [since_s, *(time for time in self.times_s if time > since_s)]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


def session(timeout_s: float, headers: Mapping[str, str] | None = None) -> ClientSession:
    """With any number of connections; a stream without data for so long raises."""
    timeout = ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)
    return ClientSession(timeout=timeout, connector=TCPConnector(limit=0), headers=headers)


async def read(
    client: ClientSession,
    url: str,
    body: Mapping[str, Any],
    stream: ReceivedStream,
    progress: Callable[[], None] = lambda: None,
) -> ReceivedStream:
    """Fills `stream` event by event and calls `progress` after each one."""
    clock = asyncio.get_running_loop().time
    stream.started_s = clock()
    streaming = {**body, "stream": True, "return_token_ids": True}
    async with client.post(f"{url}/v1/completions", json=streaming) as response:
        if response.status != HTTPStatus.OK:
            stream.error = f"{response.status}: {await response.text()}"
            return stream
        async for line in response.content:
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]" or not line.startswith(b"data: "):
                continue
            event = json.loads(data)
            if "error" in event:
                stream.error = event["error"]["message"]
                continue
            for choice in event["choices"]:
                stream.text += choice["text"]
                stream.token_ids += choice.get("token_ids") or ()
                stream.finish = choice["finish_reason"] or stream.finish
                stream.statistics = choice.get("spindle") or stream.statistics
                if choice.get("token_ids"):
                    stream.times_s.append(clock())
            progress()
    return stream


async def read_all(
    url: str,
    bodies: Sequence[Mapping[str, Any]],
    timeout_s: float,
    progress: Callable[[Sequence[ReceivedStream]], None] = lambda _streams: None,
    headers: Mapping[str, str] | None = None,
) -> list[ReceivedStream]:
    """All concurrently; `progress` gets all streams after each event of any."""
    streams = [ReceivedStream() for _ in bodies]
    async with session(timeout_s, headers) as client:
        await asyncio.gather(
            *(
                read(client, url, body, stream, lambda: progress(streams))
                for body, stream in zip(bodies, streams, strict=True)
            )
        )
    return streams
