"""The simulated verifier: limited KV memory, chunked prefill, and the target's verdicts."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.plan.simulator.device import NO_FAULTS, Device, Faults, SimulatedHost
from cluster.plan.simulator.outputs import STOP, Target, TargetOutput
from cluster.plan.simulator.randomness import generator
from engine.kv.blocks import KvState
from engine.protocol import Missing, NoRoom, Verdict, VerifyOrder
from engine.request import TargetLimits
from engine.soft_state import HeldRequest
from policies.cost import NO_SWITCH, CostModel, SwitchCost
from policies.tree import ROOT, DraftTree

_CHUNK = 512
"""Most prompt tokens in one forward of `score`, as in the native verifier."""
_KV_BLOCK = 16


@dataclass(frozen=True, slots=True)
class KvMemory:
    tokens: int
    """The pool's size."""
    swap_s_per_token: float | None = 0.0
    """Time of copying KV to host memory or back. None: no swapping (vLLM), so evicted requests are
    prefilled again."""
    keeps_idle: bool = True
    """Whether a preempted request's KV stays until its memory is needed; otherwise it is copied to
    host memory at once."""


@dataclass(slots=True)
class _Sequence:
    """One request's KV and output."""

    output: TargetOutput
    rows: int = 0
    """Committed tokens in the KV."""
    blocks: int = 0
    """Blocks in the pool; 0 while the KV is in host memory."""


@dataclass(slots=True)
class _BatchSlot:
    """One order in a forward."""

    index: int
    order: VerifyOrder
    held: HeldRequest
    sequence: _Sequence
    cached: int
    """Committed tokens whose KV exists."""
    entering: int
    """Committed tokens that this forward adds."""
    pending: int
    """Committed tokens that remain for later forwards."""
    nodes: int
    """Nodes of the draft tree."""
    blocks: int
    """KV blocks that the forward needs for it."""

    @property
    def request(self) -> str:
        return self.order.prefix.request


class SimulatedVerifier(SimulatedHost):
    def __init__(
        self,
        cost: CostModel,
        target: Target,
        *,
        max_context: int,
        memory: KvMemory,
        trees: bool = True,
        rereads: bool = False,
        transport_s: float = 0.0,
        own_s: SwitchCost = NO_SWITCH,
        faults: Faults = NO_FAULTS,
    ) -> None:
        super().__init__(Device("verifier", transport_s, faults), self._drop)
        self._cost = cost
        self._target = target
        self._max_context = max_context
        self._trees = trees
        self._rereads = rereads
        self._own_s = own_s
        self._blocks = memory.tokens // _KV_BLOCK
        self._swap_s_per_token = memory.swap_s_per_token
        self._keeps_idle = memory.keeps_idle
        self._used_blocks = 0
        self._sequences: dict[str, _Sequence] = {}

    @property
    def limits(self) -> TargetLimits:
        return TargetLimits(self._target.vocab_size, self._max_context, (STOP,), self._trees)

    @property
    def used_blocks(self) -> int:
        """KV blocks in use."""
        return self._used_blocks

    async def verify(self, orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom]:
        if not self._trees and not all(order.tree.is_chain for order in orders):
            raise ValueError("this verifier takes chains only, and an order has a tree")
        answers: list[Verdict | Missing | None] = [None] * len(orders)
        if own_s := self._own_s.predict(len(orders)):
            await asyncio.sleep(own_s)
        async with self.device.turn():
            batch = []
            accepted = self._state.accept([order.prefix for order in orders])
            for index, (order, held) in enumerate(zip(orders, accepted, strict=True)):
                if isinstance(held, Missing):
                    answers[index] = held
                else:
                    batch.append(self._prepare(index, order, held))
            copied = self._make_room(batch)
            seconds = copied * (self._swap_s_per_token or 0.0)
            if batch:
                context = sum(self._read(slot) for slot in batch)
                rows = sum(slot.entering + slot.nodes for slot in batch)
                seconds += self._cost.predict(context, rows)
            await self._work(seconds)
            for slot in batch:
                answers[slot.index] = self._commit(slot)
        return [
            answer or NoRoom(order.prefix.request, order.prefix.attempt, order.prefix.round)
            for answer, order in zip(answers, orders, strict=True)
        ]

    async def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Takes the time of a prefill; scores are random, for the target reads no prompt."""
        async with self.device.turn():
            ends = range(0, len(prompt), _CHUNK)
            chunks = [(cached, min(_CHUNK, len(prompt) - cached)) for cached in ends]
            await self._work(sum(self._cost.predict(*chunk) for chunk in chunks))
        scores = generator("score", *prompt).standard_normal(len(token_ids))
        return scores.astype(np.float32)

    async def kv_state(self) -> KvState:
        used = self._used_blocks
        return KvState(free=self._blocks - used, used=used, cached=0, total=self._blocks)

    def _prepare(self, index: int, order: VerifyOrder, held: HeldRequest) -> _BatchSlot:
        request = order.prefix.request
        sequence = self._sequences.get(request)
        if sequence is None:
            output = TargetOutput(self._target, request, held.start.seed)
            sequence = self._sequences[request] = _Sequence(output)
        # The last committed token always runs: its row gives the next token.
        length = len(held.committed)
        cached = sequence.rows = min(sequence.rows, held.unchanged, length - 1)
        entering = min(order.chunk, length - cached)
        pending = length - cached - entering
        nodes = 0 if pending else len(order.tree)
        blocks = _blocks(cached + entering + nodes)
        return _BatchSlot(index, order, held, sequence, cached, entering, pending, nodes, blocks)

    def _read(self, slot: _BatchSlot) -> int:
        """KV tokens that the forward reads for it."""
        return slot.cached * (1 + slot.nodes) if self._rereads else slot.cached

    def _make_room(self, batch: list[_BatchSlot]) -> int:
        """Evicts idle requests, least recently used first, then removes orders from the end of the
        batch. Returns the tokens copied from and to host memory."""
        copied = 0
        running = {slot.request for slot in batch}
        needed = sum(slot.blocks for slot in batch)
        idle = self._used_blocks - sum(slot.sequence.blocks for slot in batch)
        while needed + idle > self._blocks or (idle > 0 and not self._keeps_idle):
            victim = next(
                (
                    name
                    for name in self._state
                    if name not in running and self._sequences[name].blocks
                ),
                None,
            )
            if victim is not None:
                idle -= self._sequences[victim].blocks
                copied += self._evict(victim)
            else:
                last = batch.pop()
                running.discard(last.request)
                needed -= last.blocks
                idle += last.sequence.blocks
        copied += sum(slot.cached for slot in batch if not slot.sequence.blocks)
        return copied

    def _evict(self, request: str) -> int:
        """Returns the tokens copied to host memory."""
        sequence = self._sequences[request]
        if self._swap_s_per_token is None:
            self._state.forget([request])
            return 0
        self._take_blocks(sequence, 0)
        return sequence.rows

    def _commit(self, slot: _BatchSlot) -> Verdict:
        prefix, held, sequence = slot.order.prefix, slot.held, slot.sequence
        path: list[int] = []
        tokens: list[int] = []
        if not slot.pending:
            first = len(held.committed) - held.start.prompt_len
            output = sequence.output.upto(first + slot.nodes + 1)
            path = _accepted_path(slot.order.tree, output, first)
            tokens = output[first : first + len(path) + 1]
        sequence.rows = slot.cached + slot.entering + len(path)
        self._take_blocks(sequence, _blocks(sequence.rows))
        held.committed.extend(tokens)
        return Verdict(
            prefix.request,
            prefix.attempt,
            prefix.round,
            tuple(path),
            tuple(tokens),
            slot.pending,
        )

    def _take_blocks(self, sequence: _Sequence, blocks: int) -> None:
        self._used_blocks += blocks - sequence.blocks
        sequence.blocks = blocks

    def _drop(self, request: str, _held: HeldRequest) -> None:
        sequence = self._sequences.pop(request, None)
        if sequence is not None:
            self._take_blocks(sequence, 0)


def _blocks(rows: int) -> int:
    return -(-rows // _KV_BLOCK)


def _accepted_path(tree: DraftTree, tokens: Sequence[int], first: int) -> list[int]:
    """The nodes with the target's tokens. Children follow their parents, so one pass suffices."""
    path: list[int] = []
    node, expected = ROOT, tokens[first]
    nodes = zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)
    for child, (token, parent) in enumerate(nodes):
        if token == expected and parent == node:
            path.append(child)
            node, expected = child, tokens[first + len(path)]
    return path
