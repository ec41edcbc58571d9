"""The numbers of a replica's last seconds, for the playground's strip (docs/playground.md).

They are recorded while the playground requests them, and cost nothing otherwise.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from actors.coordinator.events import (
    Arrived,
    CaughtUp,
    Drafted,
    Event,
    Left,
    Verified,
    VerifiedTrees,
)
from deployments.metrics import VERIFIER
from deployments.replica.node_counts import NodeCounts
from policies.request import LaneView
from policies.tree_counts import ACCEPTED, VERIFIED

LONGEST_S = 10.0
"""How far back the numbers go."""
_WATCHED_S = 10.0
"""They are recorded for so long after the last request for them."""
_MOST_SPANS = 512
"""The latest that are kept of each host."""
_MOST_ROUNDS = 4096


class _Shown(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class HostNumbers(_Shown):
    name: str
    """A lane's, or `verifier`."""
    drafter: str | None
    """The lane's drafter."""
    busy: list[tuple[float, float]]
    """From when to when it worked, by the replica's clock; at most the latest 512. For a tenant
    that is no operator: the verifier's forwards with requests of its own."""


class ReplicaNumbers(_Shown):
    replica: str
    """The replica's name."""
    now_s: float
    """The replica's clock."""
    seconds: float
    """How far back the numbers go: they are recorded for ten seconds after each request."""
    running: int
    """Requests in the batch."""
    waiting: int
    """Requests that wait to run."""
    goodput: float
    """Output tokens per second."""
    attainment: float | None
    """The share of the last 64 requests with an SLO that met it; null: there were none, or a tenant
    asks that is no operator."""
    drafted: dict[str, int]
    """Draft tokens that were verified, by the drafter that proposed them (where several did, by the
    one that comes first, as in a trace)."""
    accepted: dict[str, int]
    """Those that the target agreed with."""
    hosts: list[HostNumbers]
    """The verifier and each drafter."""


class _Round(NamedTuple):
    """The sums of one tenant's part of one forward."""

    begun_s: float
    at_s: float
    tenant: str
    committed: int
    nodes: NDArray[np.float64] | None
    """NodeCounts; None where nothing was drafted."""


class LiveNumbers:
    def __init__(self, replica: str, lanes: Sequence[LaneView]) -> None:
        self._replica = replica
        self._drafters = {lane.name: lane.drafter for lane in lanes}
        self._node_counts = NodeCounts(self._drafters)
        self._spans = {name: deque[tuple[float, float]](maxlen=_MOST_SPANS) for name in self._hosts}
        self._tenants: dict[str, str] = {}
        """The tenant of each request that is being served."""
        self._rounds = deque[_Round](maxlen=_MOST_ROUNDS)
        self._since_s = 0.0
        self._until_s = 0.0

    @property
    def _hosts(self) -> list[str]:
        return [VERIFIER, *self._drafters]

    def tenant_of(self, request: str) -> str:
        """Empty for a request that is not being served."""
        return self._tenants.get(request, "")

    def observe(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._tenants[event.view.name] = event.view.tenant
        elif isinstance(event, Left):
            self._tenants.pop(event.view.name, None)
        if event.at_s > self._until_s:
            return
        match event:
            case Verified():
                self._spans[VERIFIER].append((event.at_s - event.seconds, event.at_s))
                self._verified(event)
            case Drafted() | CaughtUp():
                self._spans[event.lane].append((event.at_s - event.seconds, event.at_s))

    def _verified(self, event: Verified) -> None:
        committed = Counter[str](dict.fromkeys(map(self.tenant_of, event.prompts), 0))
        for outcome in event.outcomes:
            committed[self.tenant_of(outcome.request)] += outcome.committed
        begun_s = event.at_s - event.seconds
        for tenant, tokens in committed.items():
            nodes = self._nodes(event.drafts, tenant)
            self._rounds.append(_Round(begun_s, event.at_s, tenant, tokens, nodes))

    def _nodes(self, drafts: VerifiedTrees | None, tenant: str) -> NDArray[np.float64] | None:
        """Counts of this tenant's verified nodes; the column of drafted ones has all tenants'."""
        if drafts is None:
            return None
        accepted = [
            nodes if self.tenant_of(request) == tenant else None
            for request, nodes in zip(drafts.requests, drafts.accepted, strict=True)
        ]
        counts = self._node_counts.zeros()
        self._node_counts.add(drafts._replace(accepted=accepted), counts)
        return counts

    def read(
        self,
        seconds: float,
        now: float,
        load: dict[str, float],
        attainment: float | None,
        tenant: str | None = None,
    ) -> ReplicaNumbers:
        """The numbers of the last `seconds`, of one tenant's requests or of all. `load`: the
        numbers that the autoscaler gets."""
        if now > self._until_s:  # what was recorded before ends in a gap
            self._since_s = now
        self._until_s = now + _WATCHED_S
        begin = max(self._since_s, now - min(seconds, LONGEST_S))
        committed, nodes = 0, self._node_counts.zeros()
        for one in self._rounds:
            if one.at_s > begin and tenant in (None, one.tenant):
                committed += one.committed
                if one.nodes is not None:
                    nodes += one.nodes
        verified = [int(counted) for counted in nodes[:, :, VERIFIED].sum(axis=1)]
        taken = [int(counted) for counted in nodes[:, :, ACCEPTED].sum(axis=1)]
        counted = zip(self._node_counts.names, verified, taken, strict=True)
        drafted, accepted = dict[str, int](), dict[str, int]()
        for name, of_drafter, of_target in counted:
            if of_drafter:
                drafted[name], accepted[name] = of_drafter, of_target
        return ReplicaNumbers(
            replica=self._replica,
            now_s=now,
            seconds=now - begin,
            running=int(load["running"]),
            waiting=int(load["waiting"]),
            goodput=committed / (now - begin) if now > begin else 0.0,
            attainment=attainment,
            drafted=drafted,
            accepted=accepted,
            hosts=[self._host(name, begin, tenant) for name in self._hosts],
        )

    def _host(self, name: str, begin: float, tenant: str | None) -> HostNumbers:
        spans: Iterable[tuple[float, float]] = self._spans[name]
        if tenant is not None and name == VERIFIER:
            own = [(one.begun_s, one.at_s) for one in self._rounds if one.tenant == tenant]
            spans = own[-_MOST_SPANS:]
        elif tenant is not None:  # a drafter's calls do not say for whom they are
            spans = ()
        busy = [(round(max(start, begin), 4), round(end, 4)) for start, end in spans if end > begin]
        return HostNumbers(name=name, drafter=self._drafters.get(name), busy=busy)
