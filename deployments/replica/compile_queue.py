"""Bounds how many output grammars wait to be compiled, altogether and of each client."""

from concurrent.futures import Future
from typing import Any

from actors.coordinator.stream import Overloaded
from engine.grammar.compiler import Grammars
from engine.grammar.spec import OutputGrammar

MAX_WAITING = 32
"""They are compiled one after the other; one takes seconds at worst."""
MAX_OF_A_TENANT = 4
"""So many of one client delay the next client's."""


class CompileQueue:
    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._waiting: dict[str, list[Future[Any]]] = {}
        """By tenant; also those whose client has left, as they are compiled nevertheless."""

    async def compile(self, grammar: OutputGrammar, tenant: str) -> None:
        """Raises InvalidRequest if the grammar cannot be followed, Overloaded if too many wait."""
        if not self._grammars.has(grammar):
            self._enter(grammar, tenant)
        await self._grammars.check(grammar)

    def _enter(self, grammar: OutputGrammar, tenant: str) -> None:
        pending = {
            name: [future for future in futures if not future.done()]
            for name, futures in self._waiting.items()
        }
        self._waiting = {name: futures for name, futures in pending.items() if futures}
        count, own = sum(map(len, self._waiting.values())), self._waiting.get(tenant, [])
        if count >= MAX_WAITING:
            raise Overloaded(f"{count} grammars wait to be compiled; try again later")
        if len(own) >= MAX_OF_A_TENANT:
            raise Overloaded(
                f"{len(own)} grammars of this client wait to be compiled; try again later"
            )
        self._waiting[tenant] = [*own, self._grammars.compile(grammar)]
