"""What a reader receives of a request's commits."""

import asyncio

import pytest

from actors.coordinator.stream import Statistics, Stream
from engine.errors import SpindleError
from engine.protocol import Commit

PAUSE_S = 0.05


def stream() -> Stream:
    return Stream("r", Statistics(), on_close=lambda: None, on_acknowledge=lambda: None)


def commit(first: int, *tokens: int, last: bool = False) -> Commit:
    return Commit("r", 0, first, tokens, None, "length" if last else None)


async def test_the_commits_of_a_pause_are_joined_after_the_first() -> None:
    relayed = stream()
    commits = relayed.relay(PAUSE_S)
    relayed.deliver(commit(0, 5, 6))
    relayed.deliver(commit(2, 7))
    assert await anext(commits) == commit(0, 5, 6)
    relayed.deliver(commit(3, 8, 9))
    assert await anext(commits) == commit(2, 7, 8, 9)
    relayed.deliver(commit(5, 3))
    relayed.deliver(commit(6, 4, last=True))
    assert await anext(commits) == commit(5, 3, 4, last=True)
    assert [one async for one in commits] == []


async def test_the_last_commit_is_not_held_back() -> None:
    relayed = stream()
    commits = relayed.relay(pause_s=60)
    relayed.deliver(commit(0, 5))
    assert await anext(commits) == commit(0, 5)
    relayed.deliver(commit(1, 6))
    reading = asyncio.ensure_future(anext(commits))
    await asyncio.sleep(PAUSE_S)
    assert not reading.done()
    relayed.deliver(commit(2, 7, last=True))
    assert await reading == commit(1, 6, 7, last=True)


async def test_an_error_comes_after_what_was_committed() -> None:
    relayed = stream()
    commits = relayed.relay(pause_s=60)
    relayed.deliver(commit(0, 5))
    assert await anext(commits) == commit(0, 5)
    relayed.deliver(commit(1, 6))
    relayed.fail(SpindleError("stopped"))
    assert await anext(commits) == commit(1, 6)
    with pytest.raises(SpindleError, match="stopped"):
        await anext(commits)
