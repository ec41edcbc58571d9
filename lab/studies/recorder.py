"""Records drafters' proposals and the target's tokens, between a coordinator and its drafters.

Drafts pass through the recorder, and the committed tokens come with the orders that follow, so
every proposal after the target's own prefix is compared with the target's token. Record with a
fixed depth: a policy that stops at low confidence would hide the positions of low confidence.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from actors.hosts.protocol import DrafterHost
from benchmarks.simulator.acceptance import WRONG
from engine.protocol import Draft, DraftOrder, Failed, Missing, NoRoom
from policies.protocols import StepRule
from policies.tree import ROOT, DraftTree


@dataclass(slots=True)
class Trace:
    """One drafter's proposals for one request, at ascending positions of its output."""

    request: str
    domain: str
    drafter: str
    positions: list[int] = field(default_factory=list)
    confidences: list[list[float]] = field(default_factory=list)
    """Confidences of all siblings in the drafter's order; empty without a proposal."""
    ranks: list[int] = field(default_factory=list)
    """Which sibling is the target's token, or WRONG."""


@dataclass(slots=True)
class _OpenRequest:
    """A request that is being recorded, and its newest draft."""

    trace: Trace
    prompt_len: int
    position: int = 0
    """Output position of the newest draft's first token."""
    draft: DraftTree | None = None
    depth: int = 0
    """Levels of it that are recorded; one that ends before had no further proposal."""


class Recorder:
    """Records the drafter of one lane. `keep` is called with each trace when its request ends."""

    def __init__(
        self,
        host: DrafterHost,
        drafter: str,
        domain_of: Callable[[str], str],
        keep: Callable[[Trace], None],
    ) -> None:
        self._host = host
        self._drafter = drafter
        self._domain_of = domain_of
        self._keep = keep
        self._open: dict[str, _OpenRequest] = {}

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> Sequence[Draft | Missing | NoRoom | Failed]:
        for order in orders:
            self._open_request(order)
            self._compare(order)
        answers = await self._host.draft(orders, rule)
        for order, answer in zip(orders, answers, strict=True):
            # A draft that a rule has stopped is not one without further proposals.
            if isinstance(answer, Draft) and order.depth > 0 and rule is None:
                self._keep_draft(order, answer.tree)
        return answers

    async def forget(self, requests: Collection[str]) -> None:
        for request in requests:
            recorded = self._open.pop(request, None)
            if recorded is not None and recorded.trace.positions:
                self._keep(recorded.trace)
        await self._host.forget(requests)

    async def recover(self) -> None:
        await self._host.recover()

    def _open_request(self, order: DraftOrder) -> None:
        """At its first order, which may be for catch-up only."""
        request, start = order.prefix.request, order.prefix.start
        if start is not None and request not in self._open:
            trace = Trace(request, self._domain_of(request), self._drafter)
            self._open[request] = _OpenRequest(trace, start.prompt_len)

    def _keep_draft(self, order: DraftOrder, tree: DraftTree) -> None:
        prefix = order.prefix
        recorded = self._open.get(prefix.request)
        if recorded is None:
            return  # older than the recorder
        recorded.position = prefix.base + len(prefix.delta) - recorded.prompt_len
        # On deeper levels a beam drops likely children for likelier ones of other nodes.
        recorded.draft, recorded.depth = tree, order.depth if order.width == 1 else 1

    def _compare(self, order: DraftOrder) -> None:
        """The order's new tokens with the draft before it."""
        recorded = self._open.get(order.prefix.request)
        if recorded is None or recorded.draft is None:
            return
        tree, recorded.draft = recorded.draft, None
        first = recorded.prompt_len + recorded.position - order.prefix.base
        if first < 0:
            return  # the host has lost its state, and the order has all tokens
        node = ROOT
        for level, token in enumerate(order.prefix.delta[first : first + recorded.depth]):
            children = [child for child, parent in enumerate(tree.parents) if parent == node]
            right = [rank for rank, child in enumerate(children) if tree.tokens[child] == token]
            recorded.trace.positions.append(recorded.position + level)
            recorded.trace.confidences.append([float(tree.confidence[child]) for child in children])
            recorded.trace.ranks.append(right[0] if right else WRONG)
            if not right:
                return
            node = children[right[0]]
