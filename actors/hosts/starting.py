"""Starts hosts concurrently and reports which have started and which have not."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from cluster.config.models import Placement

_PROGRESS_S = 10
"""Interval of progress messages during a long load."""

Progress = Callable[[str], None]
"""Receives messages about what is loading and what is ready."""
LOG_PROGRESS: Progress = logging.getLogger("spindle").info


class Start(NamedTuple):
    name: str
    where: Placement
    begin: Callable[[], Awaitable[None]]


async def start_all(starts: Sequence[Start], progress: Progress) -> None:
    """Actors load in parallel; models in this process one after the other, because transformers
    keeps the settings of a load in globals. Raises the first error."""

    async def in_turn() -> None:
        for start in starts:
            if start.where == "inline":
                await _start(start, progress)

    actors = [_start(start, progress) for start in starts if start.where == "actor"]
    try:
        async with asyncio.TaskGroup() as together:
            for one in [*actors, in_turn()]:
                together.create_task(one)
    except* Exception as errors:
        raise errors.exceptions[0] from None


async def _start(start: Start, progress: Progress) -> None:
    """With messages while loading takes long, as vLLM's compilation does."""
    clock = asyncio.get_running_loop().time
    started = clock()

    async def report() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            progress(f"{start.name}: still loading after {clock() - started:.0f} s")

    reporting = asyncio.create_task(report())
    try:
        await start.begin()
    finally:
        reporting.cancel()
    progress(f"{start.name}: ready after {clock() - started:.1f} s")
