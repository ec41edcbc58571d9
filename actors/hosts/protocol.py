"""How the coordinator reaches drafters and the verifier, wherever they run.

In this process on threads (actors/hosts/inline.py), as Ray actors (actors/hosts/spawn.py), or
simulated in virtual time. The coordinator never touches an executor or a socket itself, so that
virtual time is exact.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.errors import SpindleError
from engine.kv.blocks import KvState
from engine.protocol import Draft, DraftOrder, Failed, Missing, NoRoom, Verdict, VerifyOrder
from engine.request import TargetLimits
from policies.cost import CostModel, SwitchCost
from policies.protocols import StepRule


class HostLost(SpindleError):
    """The host is lost with everything it held; `recover` replaces it by an empty one."""


@dataclass(frozen=True, slots=True)
class TargetCosts:
    verify: CostModel
    token_budget: int
    switch: SwitchCost
    """The cost of preempting a request and resuming it."""


class DrafterHost(Protocol):
    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> Sequence[Draft | Missing | NoRoom | Failed]:
        """As engine.protocol.Drafter.draft; `rule` is evaluated between the levels of the drafter's
        trees. None: every tree is drafted to the ordered depth."""
        ...

    async def forget(self, requests: Collection[str]) -> None: ...

    async def recover(self) -> None:
        """Called after HostLost; returns when the host takes orders again. Raises if it never
        will."""
        ...


class VerifierHost(Protocol):
    @property
    def limits(self) -> TargetLimits: ...

    async def verify(
        self, orders: Sequence[VerifyOrder]
    ) -> Sequence[Verdict | Missing | NoRoom | Failed]: ...

    async def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        """As engine.protocol.Verifier.score."""
        ...

    async def forget(self, requests: Collection[str]) -> None: ...

    async def kv_state(self) -> KvState: ...

    async def recover(self) -> None:
        """Called after HostLost; returns when the host takes orders again. Raises HostLost when
        recovery is given up: nothing can be served any more."""
        ...
