"""Bounds how many output grammars wait to be compiled, and lets clients take turns."""

import asyncio
from contextvars import Context
from weakref import WeakValueDictionary

from actors.coordinator.stream import Overloaded
from engine.grammar.compiler import Grammars
from engine.grammar.spec import OutputGrammar

MAX_WAITING = 32
"""They are compiled one after the other; one takes a second or two at worst."""
MAX_OF_A_TENANT = 4
"""One of them at most is compiled before the next client's."""


class CompileQueue:
    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._turn = asyncio.Lock()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One for each tenant, which waits for the turn of all with one grammar."""
        self._waiting: dict[OutputGrammar, tuple[str, asyncio.Task[None]]] = {}
        """Those that wait or are compiled, with their tenants; also if the client has left."""

    async def compile(self, grammar: OutputGrammar, tenant: str) -> None:
        """Raises InvalidRequest if the grammar cannot be followed, Overloaded if too many wait."""
        if not self._grammars.has(grammar):
            if grammar not in self._waiting:
                self._enter(grammar, tenant)
            await asyncio.shield(self._waiting[grammar][1])
        await self._grammars.check(grammar)

    def _enter(self, grammar: OutputGrammar, tenant: str) -> None:
        count = len(self._waiting)
        own = sum(one == tenant for one, _ in self._waiting.values())
        if count >= MAX_WAITING:
            raise Overloaded(f"{count} grammars wait to be compiled; try again later")
        if own >= MAX_OF_A_TENANT:
            raise Overloaded(f"{own} grammars of this client wait to be compiled; try again later")
        # In a context of its own: a task of a request's context would be cancelled with it.
        compiling = asyncio.get_running_loop().create_task(
            self._compile(grammar, tenant), context=Context()
        )
        self._waiting[grammar] = tenant, compiling

    async def _compile(self, grammar: OutputGrammar, tenant: str) -> None:
        own_turn = self._turns.setdefault(tenant, asyncio.Lock())
        try:
            async with own_turn, self._turn:
                await asyncio.wait([asyncio.wrap_future(self._grammars.compile(grammar))])
        finally:
            del self._waiting[grammar]
