"""The simulated verifier: the target's tokens, chunked prefill, and limited KV memory."""

import asyncio

import numpy as np
import pytest

from cluster.plan.simulator import clock
from cluster.plan.simulator.outputs import Target
from cluster.plan.simulator.verifier import KvMemory, SimulatedVerifier
from engine.protocol import Missing, NoRoom, Verdict, VerifyOrder
from policies.cost import ForwardCost
from policies.tree import DraftTree
from tests.engine.drafters.orders import Stream

TARGET = Target({"a": 6})
FORWARDS = ForwardCost(0.0, 0.0, 1.0)
"""A second each."""


def verifier(
    cost: ForwardCost = FORWARDS,
    tokens: int = 4096,
    swap_s_per_token: float | None = 0.0,
    rereads: bool = False,
) -> SimulatedVerifier:
    memory = KvMemory(tokens, swap_s_per_token)
    return SimulatedVerifier(cost, TARGET, max_context=1024, memory=memory, rereads=rereads)


def order(stream: Stream, tree: DraftTree | None = None, chunk: int = 512) -> VerifyOrder:
    verify_order = VerifyOrder(stream.prefix(), tree or DraftTree.empty(), chunk)
    stream.seen = len(stream.committed)
    return verify_order


async def verify(host: SimulatedVerifier, stream: Stream, tree: DraftTree | None = None) -> Verdict:
    (answer,) = await host.verify([order(stream, tree)])
    assert isinstance(answer, Verdict)
    stream.committed.extend(answer.tokens)
    stream.seen = len(stream.committed)
    return answer


async def test_a_long_prompt_is_prefilled_in_chunks_and_yields_no_token_before_its_end() -> None:
    host, stream = verifier(ForwardCost(0.001, 1.0, 0.0)), Stream("a", [1] * 10)
    verdicts, ends = [], []
    for _ in range(3):
        (answer,) = await host.verify([order(stream, DraftTree.chain([3]), chunk=4)])
        assert isinstance(answer, Verdict)
        verdicts.append(answer)
        ends.append(asyncio.get_running_loop().time())
    assert [one.pending for one in verdicts] == [6, 2, 0]
    assert [len(one.tokens) for one in verdicts] == [0, 0, 1]
    # New rows, and KV rows that are read; the draft runs once the prompt is complete.
    assert ends == pytest.approx([4.0, 8.004, 8.004 + 3.008])


def test_where_each_draft_token_reads_the_context_again_time_grows_by_it() -> None:
    async def seconds(rereads: bool, drafts: int) -> float:
        host, stream = (verifier(ForwardCost(1.0, 0.0, 0.0), rereads=rereads), Stream("a", [1] * 9))
        await verify(host, stream)
        before = asyncio.get_running_loop().time()
        await verify(host, stream, DraftTree.chain([1] * drafts))
        return asyncio.get_running_loop().time() - before

    # Nine tokens are in the KV, and the tenth runs.
    for drafts in (0, 3):
        assert clock.run(seconds(False, drafts)) == 9
        assert clock.run(seconds(True, drafts)) == 9 * (1 + drafts)


async def test_the_last_orders_of_a_batch_that_does_not_fit_get_no_room() -> None:
    host = verifier(tokens=64)
    orders = [order(Stream(name, [1] * 20)) for name in ("a", "b", "c")]
    first, second, third = await host.verify(orders)
    assert isinstance(first, Verdict)
    assert isinstance(second, Verdict)
    assert third == NoRoom("c", 0, 1)


async def test_idle_requests_are_swapped_out_and_copies_take_time() -> None:
    host = verifier(tokens=64, swap_s_per_token=0.5)
    streams = {name: Stream(name, [1] * 40) for name in ("a", "b")}
    ends = [0.0]
    for name in ("a", "b", "a"):
        await verify(host, streams[name])
        ends.append(asyncio.get_running_loop().time())
    # 40 rows of `a` out; then 40 of `b` out and those of `a` in.
    assert np.diff(ends).tolist() == [1.0, 1.0 + 20.0, 1.0 + 40.0]


async def test_without_swap_evicted_requests_are_missing_and_prefilled_again() -> None:
    host = verifier(tokens=64, swap_s_per_token=None)
    first, second = Stream("a", [1] * 40), Stream("b", [1] * 40)
    await verify(host, first)
    await verify(host, second)
    (answer,) = await host.verify([order(first)])
    assert answer == Missing("a", 0, 2, have=0)
    first.seen = 0
    again = await verify(host, first)
    assert again.tokens == tuple(TARGET.output("a", 0)[1:2])
