"""Streams over HTTP as a client sees them: what was said, and when."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx


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


async def read(
    client: httpx.AsyncClient,
    url: str,
    body: Mapping[str, Any],
    said: Said,
    progress: Callable[[], None] = lambda: None,
) -> Said:
    """Fills `said` as the stream comes, so that others can look at it meanwhile."""
    clock = asyncio.get_running_loop().time
    said.begun_s = clock()
    asked = {**body, "stream": True, "return_token_ids": True}
    async with client.stream("POST", f"{url}/v1/completions", json=asked) as answer:
        if answer.status_code != httpx.codes.OK:
            said.error = f"{answer.status_code}: {(await answer.aread()).decode()}"
            return said
        async for line in answer.aiter_lines():
            data = line.removeprefix("data: ")
            if not data or data == "[DONE]" or not line.startswith("data: "):
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
    async with httpx.AsyncClient(timeout=timeout_s, limits=httpx.Limits()) as client:
        await asyncio.gather(
            *(read(client, url, body, one) for body, one in zip(bodies, said, strict=True))
        )
    return said
