"""Bounds how many output grammars wait to be compiled, and lets clients take turns."""

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from actors.coordinator.stream import Overloaded
from engine.grammar.compiler import Grammars
from engine.grammar.spec import OutputGrammar

MAX_WAITING = 32
"""They are compiled one after the other; one takes seconds at worst."""
MAX_OF_A_TENANT = 4
"""One of them at most is compiled before the next client's."""


class CompileQueue:
    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._waiting: dict[str, deque[OutputGrammar]] = {}
        """By tenant, the next one first; also those whose client has left."""
        self._turns: dict[OutputGrammar, asyncio.Future[None]] = {}
        """When each of those that wait begins to be compiled."""
        self._compiled_for: str | None = None
        """The tenant whose grammar is being compiled."""

    async def compile(self, grammar: OutputGrammar, tenant: str) -> None:
        """Raises InvalidRequest if the grammar cannot be followed, Overloaded if too many wait."""
        if not self._grammars.has(grammar):
            await asyncio.shield(self._turns.get(grammar) or self._enter(grammar, tenant))
        await self._grammars.check(grammar)

    def _enter(self, grammar: OutputGrammar, tenant: str) -> "asyncio.Future[None]":
        busy = self._compiled_for is not None
        count = len(self._turns) + busy
        own = len(self._waiting.get(tenant, ())) + (busy and self._compiled_for == tenant)
        if count >= MAX_WAITING:
            raise Overloaded(f"{count} grammars wait to be compiled; try again later")
        if own >= MAX_OF_A_TENANT:
            raise Overloaded(f"{own} grammars of this client wait to be compiled; try again later")
        turn = self._turns[grammar] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(grammar)
        if not busy:
            self._compile_next()
        return turn

    def _compile_next(self) -> None:
        last = self._compiled_for
        others = (tenant for tenant in self._waiting if tenant != last)
        self._compiled_for = tenant = next(others, next(iter(self._waiting), None))
        if tenant is None:
            return
        waiting = self._waiting.pop(tenant)
        grammar = waiting.popleft()
        if waiting:
            self._waiting[tenant] = waiting  # after all other clients
        self._turns.pop(grammar).set_result(None)
        loop = asyncio.get_running_loop()

        def go_on(_ended: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._compile_next)

        self._grammars.compile(grammar).add_done_callback(go_on)
