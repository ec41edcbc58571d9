"""How many grammars may wait to be compiled."""

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from actors.coordinator.stream import Overloaded
from deployments.replica.compile_queue import MAX_OF_A_TENANT, MAX_WAITING, CompileQueue
from engine.grammar.compiler import Grammars
from engine.grammar.spec import OutputGrammar


class SlowGrammars(Grammars):
    """Compiles nothing until a test sets the result."""

    def __init__(self) -> None:
        self.futures: dict[OutputGrammar, Future[Any]] = {}

    def has(self, grammar: OutputGrammar) -> bool:
        return grammar in self.futures

    def compile(self, grammar: OutputGrammar) -> Future[Any]:
        return self.futures.setdefault(grammar, Future())


def choice(word: str) -> OutputGrammar:
    return OutputGrammar("choice", f'["{word}"]', "structured_outputs.choice")


async def test_one_client_cannot_fill_the_queue_and_all_together_are_bounded() -> None:
    grammars = SlowGrammars()
    queue = CompileQueue(grammars)

    async def enter(word: str, tenant: str) -> None:
        waiting = asyncio.create_task(queue.compile(choice(word), tenant))
        await asyncio.sleep(0)
        if waiting.done():
            await waiting
        waiting.cancel()  # the client leaves; its grammar is compiled nevertheless

    for number in range(MAX_OF_A_TENANT):
        await enter(f"hostile {number}", "hostile")
    with pytest.raises(Overloaded, match=f"{MAX_OF_A_TENANT} grammars of this client wait"):
        await enter("one more", "hostile")
    await enter("hostile 0", "hostile")  # it waits already
    for number in range(MAX_WAITING - MAX_OF_A_TENANT):
        await enter(f"other {number}", f"other {number}")
    with pytest.raises(Overloaded, match=f"^{MAX_WAITING} grammars wait"):
        await enter("the last", "last")
    grammars.futures[choice("hostile 0")].set_result(None)
    await asyncio.sleep(0.01)
    await enter("one more", "hostile")
