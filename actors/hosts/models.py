"""Models as hosts: each batch of orders is one call to a worker (actors/hosts/workers.py), which is
on a thread of this process (actors/hosts/inline.py) or in others (actors/hosts/supervision.py)."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actors.hosts.protocol import TargetCosts
from engine.draft_profile import DraftCosts, draft_call_s
from engine.kv.blocks import KvState
from engine.protocol import Draft, DraftOrder, Failed, Missing, NoRoom, Verdict, VerifyOrder
from engine.request import TargetLimits
from policies.cost import CostModel
from policies.protocols import StepRule

_PIECE_BYTES = 4 * 2**20
"""Bytes of a version in one message, sent between draft orders: copied in milliseconds."""
_STALLED = 20.0
"""A host counts as lost when it takes so many times as long as predicted."""


class Caller(Protocol):
    """Calls a worker, wherever it runs."""

    async def start(self) -> None:
        """Returns when its model is loaded."""
        ...

    async def call(self, method: str, *arguments: object) -> Any: ...

    async def call_without_timeout(self, method: str, *arguments: object) -> Any: ...

    async def order(self, method: str, *arguments: object, expected_s: float) -> Any:
        """A call that takes at most `expected_s`, unless the worker is lost."""
        ...

    async def recover(self) -> None: ...

    def close(self) -> None: ...


class _ModelHost:
    cost: CostModel | None = None
    """The cost of a forward, or of one draft step; None until it is known."""

    def __init__(self, worker: Caller) -> None:
        self._worker = worker

    async def _order(self, method: str, *arguments: object, predicted_s: float) -> Any:
        return await self._worker.order(method, *arguments, expected_s=_STALLED * predicted_s)

    async def forget(self, requests: Collection[str]) -> None:
        await self._worker.call("forget", requests)

    async def recover(self) -> None:
        await self._worker.recover()

    def close(self) -> None:
        self._worker.close()


class ModelDrafter(_ModelHost):
    async def start(self) -> None:
        await self._worker.start()

    async def feature_layers(self) -> tuple[int, ...]:
        """The target's layers whose hidden states it reads."""
        layers: tuple[int, ...] = await self._worker.call_without_timeout("feature_layers")
        return layers

    async def measure(self, cache_dir: Path, seconds: float) -> DraftCosts:
        costs: DraftCosts = await self._worker.call_without_timeout("measure", cache_dir, seconds)
        return costs

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom | Failed]:
        seconds = 0.0 if self.cost is None else draft_call_s(self.cost, orders)
        answers: list[Draft | Missing | NoRoom | Failed] = await self._order(
            "draft", orders, rule, predicted_s=seconds
        )
        return answers

    async def renew(self, version: bytes) -> None:
        """Drafts by these learned weights from now on. Raises InvalidVersion, and goes on with the
        old ones."""
        for first in range(0, len(version), _PIECE_BYTES):
            await self._worker.call("receive", version[first : first + _PIECE_BYTES])
        await self._worker.call("renew")


class ModelVerifier(_ModelHost):
    limits: TargetLimits
    """Set by `start`."""

    async def start(self) -> None:
        await self._worker.start()
        self.limits = await self._worker.call_without_timeout("limits")

    async def measure(self, cache_dir: Path, seconds: float) -> TargetCosts:
        costs: TargetCosts = await self._worker.call_without_timeout("measure", cache_dir, seconds)
        return costs

    async def load_vocabulary(self) -> None:
        await self._worker.call("load_vocabulary")

    async def verify(
        self, orders: Sequence[VerifyOrder]
    ) -> list[Verdict | Missing | NoRoom | Failed]:
        answers: list[Verdict | Missing | NoRoom | Failed] = await self._order(
            "verify", orders, predicted_s=self._seconds(orders)
        )
        return answers

    async def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        seconds = self.cost.predict(len(prompt), len(prompt)) if self.cost else 0.0
        logits: NDArray[np.float32] = await self._order(
            "score", prompt, token_ids, predicted_s=seconds
        )
        return logits

    async def kv_state(self) -> KvState:
        state: KvState = await self._worker.call("kv_state")
        return state

    def _seconds(self, orders: Sequence[VerifyOrder]) -> float:
        """The predicted duration of the call; 0 while there is no cost model."""
        if self.cost is None:
            return 0.0
        read = sum(order.prefix.base + len(order.prefix.delta) for order in orders)
        # An order without a tree may be a prompt chunk; all of them together fit in one chunk.
        prompt = max((order.chunk for order in orders if not len(order.tree)), default=0)
        tokens = prompt + sum(1 + len(order.tree) for order in orders)
        return self.cost.predict(read, tokens)
