"""What does the work behind a host: a drafter, the target, or one of its further ranks.

Ordinary classes. actors/hosts/spawn.py puts them into Ray actors, actors/hosts/inline.py on
threads. They are made in a moment and load when told to, so that a bad checkpoint is an answer and
not a dead actor.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.hosts.isolation import isolated
from actors.hosts.loading import TargetCosts, load_drafter, load_follower, load_verifier
from actors.hosts.protocol import KvState
from actors.hosts.specs import DrafterSpec, TargetSpec
from engine.committed import EMPTY_HASH
from engine.parallel.lockstep import follow
from engine.parallel.ranks import Place
from engine.protocol import (
    ContinueDrafting,
    Draft,
    Drafter,
    DraftOrder,
    DraftStep,
    Failed,
    Missing,
    NoRoom,
    Prefix,
    Start,
    Verdict,
    VerifyOrder,
    to_ordered_depth,
)
from engine.request import TargetLimits
from engine.sampling.params import SamplingParams
from policies.cost import CostModel
from policies.protocols import StepRule
from policies.tree import DraftTree

_WARM_UP = "warm-up"
_WARM_UP_PROMPT = (0,) * 8


def as_callback(rule: StepRule | None) -> ContinueDrafting:
    """A policy's rule in the form in which drafters ask."""
    if rule is None:
        return to_ordered_depth

    def go_on(step: DraftStep) -> Sequence[bool]:
        return rule(step.depth, step.requests, step.frontier)

    return go_on


def drafted(
    drafter: Drafter,
    orders: Sequence[DraftOrder],
    rule: StepRule | None,
    probe: Callable[[], None],
) -> list[Draft | Missing | NoRoom | Failed]:
    """What it drafts, whatever one of the requests does to it."""
    go_on = as_callback(rule)
    return isolated(drafter, lambda some: drafter.draft(some, go_on), orders, probe)


class DrafterWorker:
    def __init__(self, spec: DrafterSpec, lane: str, target_vocab_size: int) -> None:
        self._spec = spec
        self._lane = lane
        self._target_vocab_size = target_vocab_size

    def load(self) -> None:
        self._loaded = load_drafter(self._spec, self._lane, self._target_vocab_size)
        self._drafter = self._loaded.drafter
        self._warm_up()

    def _warm_up(self) -> None:
        for start in _starts():
            self._drafter.draft([DraftOrder(_prefix(start), depth=2)])
            self._drafter.forget([_WARM_UP])

    def size(self) -> float:
        """Parameters."""
        return self._loaded.size

    def measure(self, seconds: float) -> CostModel:
        return self._loaded.measure(seconds)

    def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom | Failed]:
        return drafted(self._drafter, orders, rule, self._warm_up)

    def forget(self, requests: Collection[str]) -> None:
        self._drafter.forget(requests)


class VerifierWorker:
    """The whole target, or its first rank."""

    def __init__(self, spec: TargetSpec) -> None:
        self._spec = spec

    def load(self, place: Place | None = None) -> None:
        """`place`: among the ranks, which it meets."""
        self._loaded = load_verifier(self._spec, place)
        self._verifier = self._loaded.verifier
        self._warm_up()

    def _warm_up(self) -> None:
        for start in _starts():
            self._verifier.verify([VerifyOrder(_prefix(start), DraftTree.chain([0]), chunk=64)])
            self._verifier.forget([_WARM_UP])

    def limits(self) -> TargetLimits:
        return self._loaded.limits

    def measure(self, cache_dir: Path, seconds: float) -> TargetCosts:
        return self._loaded.measure(cache_dir, seconds)

    def verify(self, orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom | Failed]:
        return isolated(self._verifier, self._verifier.verify, orders, self._warm_up)

    def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        return self._verifier.score(prompt, token_ids)

    def forget(self, requests: Collection[str]) -> None:
        self._verifier.forget(requests)

    def kv_state(self) -> KvState:
        return self._loaded.kv_state()


class FollowerWorker:
    """Any other rank of the target."""

    def __init__(self, spec: TargetSpec) -> None:
        self._spec = spec

    def follow(self, place: Place) -> None:
        """Ends only with the leader: normally by being killed, or with RankLost."""
        follow(load_follower(self._spec, place))


def _starts() -> list[Start]:
    """First use compiles and allocates: both ways of choosing tokens are used once beforehand."""
    return [
        Start(SamplingParams(temperature=temperature, top_p=0.9), 0, len(_WARM_UP_PROMPT))
        for temperature in (0.0, 1.0)
    ]


def _prefix(start: Start) -> Prefix:
    return Prefix(_WARM_UP, 0, 0, 0, EMPTY_HASH, _WARM_UP_PROMPT, start)
