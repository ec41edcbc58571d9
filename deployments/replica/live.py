"""The numbers of a replica's last seconds, for the playground's strip (docs/playground.md).

They are recorded while the playground requests them, and cost nothing otherwise.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from actors.coordinator.events import (
    CaughtUp,
    Drafted,
    Event,
    Verified,
)
from actors.learning.replica_side import Numbers
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
    """From when to when it worked, by the replica's clock; at most the latest 512."""


class LearningNumbers(_Shown):
    drafter: str
    """The one that learns."""
    version: int
    """The one that is served; 0: the config's own."""
    tokens: int
    """Tokens of answers that it has learned from."""
    share: float
    """How much of a processor the trainer used in the last minute."""
    served: float
    """Tokens per forward of the served version alone on the last requests, before they were learned
    from; 0: none was judged yet."""
    candidate: float
    """The same of the copy that learns."""


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
    """The share of the last 64 requests with an SLO, of five minutes, that met it; null: there were
    none."""
    drafted: dict[str, int]
    """Draft tokens that were verified, by the drafter that proposed them (where several did, by the
    one that comes first, as in a trace)."""
    accepted: dict[str, int]
    """Those that the target agreed with."""
    hosts: list[HostNumbers]
    """The verifier and each drafter."""
    learning: LearningNumbers | None
    """Null: no drafter learns, or the trainer has not answered yet."""


class _Round(NamedTuple):
    at_s: float
    committed: int
    nodes: NDArray[np.float64] | None
    """NodeCounts; None where nothing was drafted."""


class LiveNumbers:
    def __init__(self, replica: str, lanes: Sequence[LaneView]) -> None:
        self._replica = replica
        self._learning: LearningNumbers | None = None
        self._drafters = {lane.name: lane.drafter for lane in lanes}
        self._node_counts = NodeCounts(self._drafters)
        self._spans = {name: deque[tuple[float, float]](maxlen=_MOST_SPANS) for name in self._hosts}
        self._rounds = deque[_Round](maxlen=_MOST_ROUNDS)
        self._since_s = 0.0
        self._until_s = 0.0

    @property
    def _hosts(self) -> list[str]:
        return [VERIFIER, *self._drafters]

    def set_learning(self, drafter: str, numbers: Numbers) -> None:
        self._learning = LearningNumbers(drafter=drafter, **numbers)

    def observe(self, event: Event) -> None:
        if event.at_s > self._until_s:
            return
        match event:
            case Verified():
                self._spans[VERIFIER].append((event.at_s - event.seconds, event.at_s))
                self._verified(event)
            case Drafted() | CaughtUp():
                self._spans[event.lane].append((event.at_s - event.seconds, event.at_s))

    def _verified(self, event: Verified) -> None:
        nodes = None
        if event.drafts is not None:
            nodes = self._node_counts.zeros()
            self._node_counts.add(event.drafts, nodes)
        committed = sum(outcome.committed for outcome in event.outcomes)
        self._rounds.append(_Round(event.at_s, committed, nodes))

    def read(
        self,
        seconds: float,
        now: float,
        load: dict[str, float],
        attainment: float | None,
    ) -> ReplicaNumbers:
        """The numbers of the last `seconds`. `load`: the numbers that the autoscaler gets."""
        if now > self._until_s:  # what was recorded before ends in a gap
            self._since_s = now
        self._until_s = now + _WATCHED_S
        begin = max(self._since_s, now - min(seconds, LONGEST_S))
        committed, nodes = 0, self._node_counts.zeros()
        for one in self._rounds:
            if one.at_s > begin:
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
            hosts=[self._host(name, begin) for name in self._hosts],
            learning=self._learning,
        )

    def _host(self, name: str, begin: float) -> HostNumbers:
        spans = self._spans[name]
        busy = [(round(max(start, begin), 4), round(end, 4)) for start, end in spans if end > begin]
        return HostNumbers(name=name, drafter=self._drafters.get(name), busy=busy)
