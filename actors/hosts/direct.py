"""Lookups, which draft on the coordinator's event loop. Imports no model code."""

from collections.abc import Collection, Sequence

from actors.hosts.isolation import draft_isolated
from cluster.config import DrafterConfig
from cluster.config.drafter_kinds import drafter_kind
from engine.grammar.compiler import Grammars
from engine.protocol import Draft, Drafter, DraftOrder, Failed, Missing, NoRoom
from policies.protocols import StepRule


def make_lookup(config: DrafterConfig, grammars: Grammars | None = None) -> Drafter:
    """`grammars`: of the target's tokenizer; None: nothing is drafted under a grammar."""
    make = drafter_kind(config.kind).maker()
    drafter: Drafter = make(config.name, grammars=grammars, **config.options)
    return drafter


def _no_device() -> None:
    """The probe of a lookup: it has no device that could be broken."""


class DirectDrafter:
    """A drafter so cheap (a lookup) that a thread would cost more than its work."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom | Failed]:
        return draft_isolated(self.drafter, orders, rule, _no_device)

    async def forget(self, requests: Collection[str]) -> None:
        self.drafter.forget(requests)

    async def recover(self) -> None:
        """Never called: a lookup in this process is never lost."""
