"""The simulated verifier: KV memory that runs out, prefill in chunks, and the target's verdicts."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from actors.hosts.protocol import HostLost, KvState
from benchmarks.simulator.device import NO_FAULTS, Device, Faults
from benchmarks.simulator.randomness import generator
from benchmarks.simulator.scripts import STOP, Target, TargetScript
from engine.protocol import Missing, NoRoom, Verdict, VerifyOrder
from engine.request import TargetLimits
from engine.soft_state import HeldRequest, SoftState
from policies.cost import CostModel
from policies.tree import ROOT, DraftTree

_MAX_REQUESTS = 4096
"""As the engine's hosts."""
_CHUNK = 512
"""Prompt tokens that one forward of `score` takes, as the native verifier's."""
_KV_BLOCK = 16


@dataclass(frozen=True, slots=True)
class KvMemory:
    tokens: int
    """The pool's size."""
    swap_s_per_token: float | None = 0.0
    """Of copying KV to host memory, or back. None: it cannot swap (vLLM), so what gives way to
    others is computed anew."""


@dataclass(slots=True)
class _Sequence:
    """One request's KV."""

    script: TargetScript
    rows: int = 0
    """Committed tokens that are in it."""
    blocks: int = 0
    """What it takes of the pool; 0 while it is in host memory."""


@dataclass(slots=True)
class _Work:
    """One order on its way through a forward."""

    index: int
    order: VerifyOrder
    held: HeldRequest
    sequence: _Sequence
    cached: int
    entering: int
    pending: int
    nodes: int
    blocks: int
    """Of KV that the forward needs for it."""

    @property
    def request(self) -> str:
        return self.order.prefix.request


class SimulatedVerifier:
    def __init__(
        self,
        cost: CostModel,
        target: Target,
        *,
        max_context: int,
        memory: KvMemory,
        trees: bool = True,
        transport_s: float = 0.0,
        faults: Faults = NO_FAULTS,
        draws: Generator | None = None,
    ) -> None:
        self.device = Device("verifier", transport_s, faults, draws)
        self._cost = cost
        self._target = target
        self._max_context = max_context
        self._trees = trees
        self._blocks = memory.tokens // _KV_BLOCK
        self._swap_s_per_token = memory.swap_s_per_token
        self._used_blocks = 0
        self._state = SoftState(_MAX_REQUESTS, on_drop=self._drop)
        self._sequences: dict[str, _Sequence] = {}

    @property
    def limits(self) -> TargetLimits:
        return TargetLimits(self._target.vocab_size, self._max_context, (STOP,), self._trees)

    @property
    def used_blocks(self) -> int:
        """Of the KV pool."""
        return self._used_blocks

    async def verify(self, orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom]:
        if not self._trees and not all(order.tree.is_chain for order in orders):
            raise ValueError("this verifier takes chains, and was given a tree that branches")
        answers: list[Verdict | Missing | None] = [None] * len(orders)
        async with self.device.turn():
            works = []
            followed = self._state.accept([order.prefix for order in orders])
            for index, (order, held) in enumerate(zip(orders, followed, strict=True)):
                if isinstance(held, Missing):
                    answers[index] = held
                else:
                    works.append(self._prepare(index, order, held))
            copied = self._make_room(works)
            seconds = copied * (self._swap_s_per_token or 0.0)
            if works:
                context = sum(work.cached for work in works)
                rows = sum(work.entering + work.nodes for work in works)
                seconds += self._cost.predict(context, rows)
            await self._work(seconds)
            for work in works:
                answers[work.index] = self._commit(work)
        return [
            answer or NoRoom(order.prefix.request, order.prefix.attempt, order.prefix.round)
            for answer, order in zip(answers, orders, strict=True)
        ]

    async def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Takes its time; what it says means nothing, for the simulated target reads no prompt."""
        async with self.device.turn():
            ends = range(0, len(prompt), _CHUNK)
            chunks = [(cached, min(_CHUNK, len(prompt) - cached)) for cached in ends]
            await self._work(sum(self._cost.predict(*chunk) for chunk in chunks))
        drawn = generator("score", *prompt).standard_normal(len(token_ids))
        return drawn.astype(np.float32)

    async def forget(self, requests: Collection[str]) -> None:
        async with self.device.turn():
            self._state.forget(requests)

    async def kv_state(self) -> KvState:
        used = self._used_blocks
        return KvState(free=self._blocks - used, used=used, cached=0, total=self._blocks)

    async def recover(self) -> None:
        await self.device.recover()

    async def _work(self, seconds: float) -> None:
        try:
            await self.device.work(seconds)
        except HostLost:
            self._state.forget(list(self._state))
            raise

    def _prepare(self, index: int, order: VerifyOrder, held: HeldRequest) -> _Work:
        request = order.prefix.request
        sequence = self._sequences.get(request)
        if sequence is None:
            script = TargetScript(self._target, request, held.start.seed)
            sequence = self._sequences[request] = _Sequence(script)
        # The last committed token always runs: its row decides the next one.
        length = len(held.committed)
        cached = sequence.rows = min(sequence.rows, held.unchanged, length - 1)
        entering = min(order.chunk, length - cached)
        pending = length - cached - entering
        nodes = 0 if pending else len(order.tree)
        blocks = _blocks(cached + entering + nodes)
        return _Work(index, order, held, sequence, cached, entering, pending, nodes, blocks)

    def _make_room(self, works: list[_Work]) -> int:
        """Idle requests give way, least recently used first; then the last orders wait. Returns
        the tokens that were copied from and to host memory."""
        copied = 0
        batch = {work.request for work in works}
        needed = sum(work.blocks for work in works)
        idle = self._used_blocks - sum(work.sequence.blocks for work in works)
        while needed + idle > self._blocks:
            victim = next(
                (
                    name
                    for name in self._state
                    if name not in batch and self._sequences[name].blocks
                ),
                None,
            )
            if victim is not None:
                idle -= self._sequences[victim].blocks
                copied += self._give_way(victim)
            else:
                last = works.pop()
                batch.discard(last.request)
                needed -= last.blocks
                idle += last.sequence.blocks
        copied += sum(work.cached for work in works if not work.sequence.blocks)
        return copied

    def _may_give_way(self, request: str, batch: Collection[str]) -> bool:
        return request not in batch and self._sequences[request].blocks > 0

    def _give_way(self, request: str) -> int:
        """Returns the tokens that this copies."""
        sequence = self._sequences[request]
        if self._swap_s_per_token is None:
            self._state.forget([request])
            return 0
        self._take_blocks(sequence, 0)
        return sequence.rows

    def _commit(self, work: _Work) -> Verdict:
        prefix, held, sequence = work.order.prefix, work.held, work.sequence
        path: list[int] = []
        tokens: list[int] = []
        if not work.pending:
            first = len(held.committed) - held.start.prompt_len
            said = sequence.script.upto(first + work.nodes + 1)
            path = _follow(work.order.tree, said, first)
            tokens = said[first : first + len(path) + 1]
        sequence.rows = work.cached + work.entering + len(path)
        self._take_blocks(sequence, _blocks(sequence.rows))
        held.committed.extend(tokens)
        return Verdict(
            prefix.request,
            prefix.attempt,
            prefix.round,
            tuple(path),
            tuple(tokens),
            work.pending,
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


def _follow(tree: DraftTree, tokens: Sequence[int], first: int) -> list[int]:
    """The path that the target takes. Children stand behind their parents, so one pass does."""
    path: list[int] = []
    node, wanted = ROOT, tokens[first]
    nodes = zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)
    for child, (token, parent) in enumerate(nodes):
        if token == wanted and parent == node:
            path.append(child)
            node, wanted = child, tokens[first + len(path)]
    return path
