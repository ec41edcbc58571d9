"""Records what drafters proposed and what the target then said, from any coordinator's hosts.

A recorder stands between coordinator and drafter. The drafter's own trees pass through it, and
the committed tokens come with the orders that follow, so every proposal behind the right prefix
is judged in the end. Record with a fixed depth: a policy that stops where it is in doubt hides
just the positions that it doubts.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from actors.hosts.protocol import DrafterHost
from benchmarks.simulator.acceptance import WRONG
from engine.protocol import Draft, DraftOrder, Failed, Missing, NoRoom
from policies.protocols import StepRule
from policies.tree import ROOT, DraftTree


@dataclass(slots=True)
class Trace:
    """What one drafter proposed to one request, at positions of its output in ascending order."""

    request: str
    domain: str
    drafter: str
    positions: list[int] = field(default_factory=list)
    confidences: list[list[float]] = field(default_factory=list)
    """Of all siblings in the drafter's order; none where it proposed nothing."""
    ranks: list[int] = field(default_factory=list)
    """Which of them the target chose, or WRONG."""


@dataclass(slots=True)
class _Open:
    """A request between its orders."""

    trace: Trace
    prompt_len: int
    position: int = 0
    """Of the newest draft's first token, in the output."""
    draft: DraftTree | None = None
    depth: int = 0
    """Levels of it that say something; a draft that ends before had nothing more to propose."""


class Recorder:
    """One lane's drafter, recorded. `keep` gets each trace when its request is forgotten."""

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
        self._open: dict[str, _Open] = {}

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> Sequence[Draft | Missing | NoRoom | Failed]:
        for order in orders:
            self._begin(order)
            self._judge(order)
        answers = await self._host.draft(orders, rule)
        for order, answer in zip(orders, answers, strict=True):
            # What a rule has cut off was not the drafter's own silence.
            if isinstance(answer, Draft) and order.depth > 0 and rule is None:
                self._note(order, answer.tree)
        return answers

    async def forget(self, requests: Collection[str]) -> None:
        for request in requests:
            known = self._open.pop(request, None)
            if known is not None and known.trace.positions:
                self._keep(known.trace)
        await self._host.forget(requests)

    async def recover(self) -> None:
        await self._host.recover()

    def _begin(self, order: DraftOrder) -> None:
        """With the first order, which may only let the drafter catch up."""
        request, start = order.prefix.request, order.prefix.start
        if start is not None and request not in self._open:
            trace = Trace(request, self._domain_of(request), self._drafter)
            self._open[request] = _Open(trace, start.prompt_len)

    def _note(self, order: DraftOrder, tree: DraftTree) -> None:
        prefix = order.prefix
        known = self._open.get(prefix.request)
        if known is None:
            return  # began before the recorder did
        known.position = prefix.base + len(prefix.delta) - known.prompt_len
        # A beam drops likely children for likelier ones elsewhere, except on its first level.
        known.draft, known.depth = tree, order.depth if order.width == 1 else 1

    def _judge(self, order: DraftOrder) -> None:
        """The order's new tokens decide about the draft before it."""
        known = self._open.get(order.prefix.request)
        if known is None or known.draft is None:
            return
        tree, known.draft = known.draft, None
        first = known.prompt_len + known.position - order.prefix.base
        if first < 0:
            return  # the host lost its state and gets everything again
        node = ROOT
        for below, token in enumerate(order.prefix.delta[first : first + known.depth]):
            children = [child for child, parent in enumerate(tree.parents) if parent == node]
            right = [rank for rank, child in enumerate(children) if tree.tokens[child] == token]
            known.trace.positions.append(known.position + below)
            known.trace.confidences.append([float(tree.confidence[child]) for child in children])
            known.trace.ranks.append(right[0] if right else WRONG)
            if not right:
                return
            node = children[right[0]]


def write_traces(traces: Sequence[Trace], file: Path) -> None:
    """One a line."""
    file.write_text("".join(json.dumps(asdict(trace)) + "\n" for trace in traces))


def read_traces(file: Path) -> list[Trace]:
    return [Trace(**json.loads(line)) for line in file.read_text().splitlines()]
