"""Which requests are under way, and how the ingress stops: it refuses others, while those end."""

import asyncio
from contextlib import suppress

from deployments.ingress.answers.choices import Answer
from deployments.ingress.clients import Client, Shares
from deployments.ingress.errors import ApiError

_LAST_S = 1.0
"""For the last events on their way to clients."""


class Draining:
    def __init__(self, shares: Shares, most_s: float) -> None:
        """`most_s`: how long requests that are under way may take."""
        self._shares = shares
        self._most_s = most_s
        self._stopping = False
        self._admitted = 0
        self._answers: set[Answer] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def check(self) -> None:
        """Raises ApiError 503 once the ingress stops."""
        if self._stopping:
            raise ApiError(503, "the server is stopping; try again, where or when another runs")

    def admit(self, client: Client, choices: int) -> None:
        """Takes the client's places; raises ApiError: 429 if there are none, 503 as `check`."""
        self.check()
        self._shares.take(client, choices)
        self._admitted += 1
        self._idle.clear()

    async def begun(self, answer: Answer) -> Answer:
        """Opens the answer: returns it when replicas have accepted it, or raises its error."""
        self._answers.add(answer)
        await answer.open()
        return answer

    def end(self, client: Client, choices: int, answer: Answer | None) -> None:
        """Once for each `admit`; None: no answer has begun."""
        self._shares.give_back(client, choices)
        self._answers -= {answer}
        self._admitted -= 1
        if not self._admitted:
            self._idle.set()

    async def drain(self) -> None:
        """Refuses requests for good, and returns when none is under way; those that take too long
        end with an error."""
        self._stopping = True
        try:
            async with asyncio.timeout(self._most_s):
                await self._idle.wait()
        except TimeoutError:
            error = ApiError(503, f"the server has stopped; it waited for {self._most_s:g} s")
            with suppress(TimeoutError):  # a client that does not read
                async with asyncio.timeout(_LAST_S):
                    await asyncio.gather(*(answer.fail(error) for answer in self._answers))
                    await self._idle.wait()
        await asyncio.sleep(_LAST_S)
