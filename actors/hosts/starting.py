"""Starts hosts concurrently and reports which have started and which have not."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from actors.hosts.specs import DrafterSpec, Where
from cluster.checkpoint_files import has_tokenizer
from engine.tokenizer import check_tokenizer, load_tokenizer

_PROGRESS_S = 10
"""Interval of progress messages during a long load."""

Progress = Callable[[str], None]
"""Receives messages about what is loading and what is ready."""
LOG_PROGRESS: Progress = logging.getLogger("spindle").info


class Start(NamedTuple):
    name: str
    where: Where
    begin: Callable[[], Awaitable[None]]


async def start_all(starts: Sequence[Start], progress: Progress) -> None:
    """Actors load in parallel; models in this process one after the other, because transformers
    keeps the settings of a load in globals. Raises the first error."""

    async def in_turn(inline: Sequence[Coroutine[Any, Any, None]]) -> None:
        for one in inline:
            await one

    by_place: dict[Where, list[Coroutine[Any, Any, None]]] = {"actor": [], "inline": []}
    for start in starts:
        by_place[start.where].append(_start(start, progress))
    try:
        async with asyncio.TaskGroup() as together:
            for one in [*by_place["actor"], in_turn(by_place["inline"])]:
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


def check_tokenizers(target: Path, drafters: Sequence[DrafterSpec]) -> None:
    """Raises IncompatibleDrafter. The config check has compared all that it can without loading
    tokenizers (cluster/checkpoints.py)."""
    checkpoints = {drafter.name: drafter.checkpoint for drafter in drafters if drafter.checkpoint}
    if not checkpoints:
        return
    tokens = _tokens(target)
    for name, checkpoint in checkpoints.items():
        own = _tokens(checkpoint)
        if tokens is not None and own is not None:
            check_tokenizer(name, own, tokens)


def _tokens(checkpoint: Path) -> Mapping[str, int] | None:
    """The vocabulary; None for a checkpoint without a tokenizer, where only the vocabulary's size
    can be compared."""
    if not has_tokenizer(checkpoint):
        return None
    tokens: dict[str, int] = load_tokenizer(checkpoint).get_vocab()
    return tokens
