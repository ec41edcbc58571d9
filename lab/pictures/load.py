"""Closed-loop clients of a running application, in a thread, until the block ends."""

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

from aiohttp import ClientError, ClientSession

from benchmarks.serving.requests import Request, mixed_requests
from benchmarks.serving.streams import session

_TIMEOUT_S = 120.0
_REQUESTS = 192
"""Different ones; after the last one they are repeated, with other seeds."""


class Load:
    def __init__(
        self,
        url: str,
        clients: int,
        slo: str | Mapping[str, float] | None = None,
        max_tokens: int = 96,
        seed: int = 0,
        refused_wait_s: float = 0.5,
    ) -> None:
        """`refused_wait_s`: after a 429, before the client sends another request. `seed`: of the
        requests; lookups find the answers to those that they have seen."""
        self.statuses: Counter[int] = Counter()
        """0: the connection failed."""
        self.tokens = 0
        self._requests: Sequence[Request] = mixed_requests(_REQUESTS, seed=seed)
        self._url, self._clients, self._slo = url, clients, slo
        self._max_tokens, self._refused_wait_s, self._seed = max_tokens, refused_wait_s, seed
        self._sent = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Requests under way are given up."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        self._ended = asyncio.Event()
        async with session(_TIMEOUT_S) as client:
            clients = [asyncio.create_task(self._ask(client)) for _ in range(self._clients)]
            await self._ended.wait()
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    async def _ask(self, client: ClientSession) -> None:
        while True:
            number, self._sent = self._sent, self._sent + 1
            body: dict[str, Any] = {
                "model": await self._model(client),
                "prompt": list(self._requests[number % len(self._requests)].prompt),
                "max_tokens": self._max_tokens,
                "temperature": float(number % 2),
                "seed": 10_000 * self._seed + number,
                "ignore_eos": True,
                "slo": self._slo,
            }
            try:
                async with client.post(f"{self._url}/v1/completions", json=body) as response:
                    answer = await response.json()
                    self.statuses[response.status] += 1
                    if response.status == HTTPStatus.OK:
                        self.tokens += answer["usage"]["completion_tokens"]
                    else:
                        await asyncio.sleep(self._refused_wait_s)
            except (ClientError, TimeoutError):
                self.statuses[0] += 1
                await asyncio.sleep(self._refused_wait_s)

    async def _model(self, client: ClientSession) -> str:
        if not self._served:
            async with client.get(f"{self._url}/v1/models") as response:
                self._served = (await response.json())["data"][0]["id"]
        return self._served

    _served = ""
