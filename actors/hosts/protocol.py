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
from engine.protocol import Draft, DraftOrder, Failed, Missing, NoRoom, Verdict, VerifyOrder
from engine.request import TargetLimits
from policies.protocols import StepRule


class HostLost(SpindleError):
    """The host died with whatever it held; `recover` brings an empty one in its place."""


class HostStalled(HostLost):
    """No answer for so long that the host counts as dead."""


@dataclass(frozen=True, slots=True)
class KvState:
    """Blocks of the verifier's KV pool: free + used + cached = total, or KV has been lost."""

    free: int
    used: int
    """Held by requests."""
    cached: int
    """Held by nobody, kept for prompts that begin alike."""
    total: int


class DrafterHost(Protocol):
    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> Sequence[Draft | Missing | NoRoom | Failed]:
        """engine.protocol.Drafter.draft; `rule` runs in the drafter's loop. None: to depth."""
        ...

    async def forget(self, requests: Collection[str]) -> None: ...

    async def recover(self) -> None:
        """After HostLost: returns when orders are taken again."""
        ...


class VerifierHost(Protocol):
    @property
    def limits(self) -> TargetLimits: ...

    async def verify(
        self, orders: Sequence[VerifyOrder]
    ) -> Sequence[Verdict | Missing | NoRoom | Failed]: ...

    async def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        """engine.protocol.Verifier.score."""
        ...

    async def forget(self, requests: Collection[str]) -> None: ...

    async def kv_state(self) -> KvState: ...

    async def recover(self) -> None:
        """Raises HostLost when it will not come back: nothing can be served any more."""
        ...
