"""What a reader receives of a request's commits."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from actors.coordinator.stream import Statistics, Stream
from engine.errors import SpindleError
from engine.protocol import Commit, TokenLogprobs

PAUSE_S = 0.05


def stream() -> Stream:
    return Stream("r", Statistics(), on_close=lambda: None, on_acknowledge=lambda: None)


def commit(first: int, *tokens: int, last: bool = False, logprobs: bool = False) -> Commit:
    listed = tuple(TokenLogprobs(-float(token)) for token in tokens) if logprobs else None
    return Commit("r", 0, first, tokens, listed, "length" if last else None)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


def test_the_commits_of_a_pause_are_joined() -> None:
    async def test() -> None:
        relayed = stream()
        commits = relayed.relay(PAUSE_S)
        relayed.deliver(commit(0, 5, 6, logprobs=True))
        relayed.deliver(commit(2, 7, logprobs=True))
        assert await anext(commits) == commit(0, 5, 6, 7, logprobs=True)
        relayed.deliver(commit(3, 8))
        relayed.deliver(commit(4, 9, last=True))
        assert await anext(commits) == commit(3, 8, 9, last=True)
        assert [one async for one in commits] == []

    run(test())


def test_the_last_commit_is_not_held_back() -> None:
    async def test() -> None:
        relayed = stream()
        commits = relayed.relay(pause_s=60)
        relayed.deliver(commit(0, 5))
        reading = asyncio.ensure_future(anext(commits))
        await asyncio.sleep(PAUSE_S)
        assert not reading.done()
        relayed.deliver(commit(1, 6, last=True))
        assert await reading == commit(0, 5, 6, last=True)

    run(test())


def test_an_error_comes_after_what_was_committed() -> None:
    async def test() -> None:
        relayed = stream()
        commits = relayed.relay(pause_s=60)
        relayed.deliver(commit(0, 5))
        relayed.fail(SpindleError("stopped"))
        assert await anext(commits) == commit(0, 5)
        with pytest.raises(SpindleError, match="stopped"):
            await anext(commits)

    run(test())
