"""A replica's side of sharing past outputs: sends its own to the router, takes those of others.

It runs beside the rounds, never within them. While no router answers, a replica drafts from what it
has, and keeps its own outputs to send them later.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from actors.router.router import MOST_REPLICAS
from actors.router.shared_outputs import Answer, Message, Output, is_full, page
from engine.drafters.lookup import LookupDrafter
from engine.scopes import Scope

Share = Callable[[Message], Awaitable[Answer]]
"""Calls the router, wherever it runs now; may raise any exception."""

INTERVAL_S = 5.0
"""The pause between two exchanges, and the time limit of an answer."""
_TOKENS_AT_ONCE = 2048
"""Those of others that are indexed in one turn of the event loop, in some 0.3 ms."""


class OutputSharing:
    """Run `run` as a task beside the coordinator."""

    def __init__(self, replica: str, share: Share, drafters: Sequence[LookupDrafter]) -> None:
        """`drafters`: those that draft from past outputs, at least one."""
        self._replica = replica
        self._share = share
        self._pasts = [drafter.past for drafter in drafters]
        largest = max(drafters, key=lambda drafter: drafter.past.max_tokens)
        largest.on_output = self._keep
        self._left = largest.past.max_tokens
        self._own: deque[Output] = deque()
        """With consecutive numbers, as many tokens as the drafter may keep."""
        self._number = 0
        self._sent = 0
        """The highest number of its own that the router has."""
        self._have: dict[str, int] = {}
        """The highest number of each other replica; of the latest output last."""

    async def run(self) -> None:
        while True:
            while await self.exchange():
                pass
            await asyncio.sleep(INTERVAL_S)

    async def exchange(self) -> bool:
        """Whether either side has more for the other at once."""
        known = max(0, self._sent + 1 - self._own[0].number) if self._own else 0
        own = page(islice(self._own, known, None))
        since = self._sent if known else 0
        message = Message(replica=self._replica, since=since, outputs=own, have=self._have)
        try:
            answer = await asyncio.wait_for(self._share(message), INTERVAL_S)
        except Exception:  # no failure of the exchange may affect serving
            return False
        self._sent = answer["have"]
        await self._take(answer["outputs"])
        return is_full(own) or is_full(answer["outputs"])

    async def _take(self, outputs: Sequence[Output]) -> None:
        taken = 0
        for output in outputs:
            if output.number <= self._have.get(output.replica, 0):
                continue
            self._have.pop(output.replica, None)  # so that it comes last
            self._have[output.replica] = output.number
            tokens = array("i", output.tokens)
            for past in self._pasts:
                past.add(output.scope, tokens)
            taken += len(tokens)
            if taken >= _TOKENS_AT_ONCE:
                taken = 0
                await asyncio.sleep(0)
        while len(self._have) > 2 * MOST_REPLICAS:
            del self._have[next(iter(self._have))]

    def _keep(self, scope: Scope, tokens: Sequence[int]) -> None:
        self._number += 1
        output = Output(self._replica, self._number, scope, array("i", tokens).tobytes())
        self._own.append(output)
        self._left -= output.size
        while self._left < 0:
            self._left += self._own.popleft().size
