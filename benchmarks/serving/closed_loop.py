"""A closed loop: as many requests in flight as there are clients, until all are served."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def closed_loop(
    requests: Sequence[Item], clients: int, send: Callable[[int, Item], Awaitable[Result]]
) -> tuple[list[Result], float]:
    """What `send` returns for each request and its number, in their order; and the seconds of all
    together."""
    waiting = enumerate(requests)
    results: dict[int, Result] = {}

    async def client() -> None:
        for number, request in waiting:
            results[number] = await send(number, request)

    clock = asyncio.get_running_loop().time
    started = clock()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = clock() - started
    return [results[number] for number in range(len(requests))], seconds
