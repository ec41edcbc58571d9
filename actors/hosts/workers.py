"""The workers that hosts call: a drafter, or the target.

Ordinary classes. actors/hosts/spawn.py puts them into Ray actors, actors/hosts/inline.py on
threads. The model is loaded by a call after construction, so that a bad checkpoint is an error of
that call and not a dead actor.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.hosts.isolation import draft_isolated, isolated
from actors.hosts.loading import load_drafter, load_verifier
from actors.hosts.protocol import TargetCosts
from cluster.config import DrafterConfig, TargetConfig
from engine.draft_profile import DraftCosts
from engine.errors import InvalidVersion
from engine.kv.blocks import KvState
from engine.protocol import (
    Draft,
    DraftOrder,
    Failed,
    Features,
    Missing,
    NoRoom,
    Prefix,
    Start,
    Verdict,
    VerifyOrder,
)
from engine.request import TargetLimits
from engine.sampling.params import SamplingParams
from engine.soft_state import EMPTY_HASH
from policies.protocols import StepRule
from policies.tree import DraftTree

_WARM_UP = "warm-up"
_WARM_UP_PROMPT = (0,) * 8


class DrafterWorker:
    def __init__(self, drafter: DrafterConfig, lane: str, target: TargetConfig) -> None:
        self._config = drafter
        self._lane = lane
        self._target = target
        self._pieces: list[bytes] = []

    def load(self) -> None:
        self._loaded = load_drafter(self._config, self._lane, self._target)
        self._drafter = self._loaded.drafter
        self._warm_up()

    def _warm_up(self) -> None:
        for start in _starts():
            self._drafter.draft([DraftOrder(_prefix(start), depth=2, features=self._no_features())])
            self._drafter.forget([_WARM_UP])

    def _no_features(self) -> Features | None:
        """Zeros, for drafters that read any."""
        if not self._loaded.feature_layers:
            return None
        shape = (len(_WARM_UP_PROMPT) - 1, self._loaded.feature_width)
        return Features(0, np.zeros(shape, np.float32))

    def feature_layers(self) -> tuple[int, ...]:
        """The target's layers whose hidden states it reads."""
        return self._loaded.feature_layers

    def measure(self, cache_dir: Path, seconds: float) -> DraftCosts:
        return self._loaded.measure(cache_dir, seconds)

    def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom | Failed]:
        return draft_isolated(self._drafter, orders, rule, self._warm_up)

    def forget(self, requests: Collection[str]) -> None:
        self._drafter.forget(requests)

    def receive(self, piece: bytes) -> None:
        """A part of the version that `renew` is called for next."""
        self._pieces.append(piece)

    def renew(self) -> None:
        """Drafts by the weights that it has received from now on; by the old ones if they are not
        whole, which it says."""
        content, self._pieces = b"".join(self._pieces), []
        try:
            self._loaded.renew(content)
        except ValueError as error:
            raise InvalidVersion(f"{self._lane} cannot serve it: {error}") from error


class VerifierWorker:
    def __init__(self, target: TargetConfig, feature_layers: tuple[int, ...] = ()) -> None:
        """`feature_layers`: as in `load_verifier`."""
        self._config = target
        self._feature_layers = feature_layers

    def load(self) -> None:
        self._loaded = load_verifier(self._config, self._feature_layers)
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

    def load_vocabulary(self) -> None:
        """Begins to load what the first output grammar needs, and returns."""
        if self._loaded.grammars is not None:
            self._loaded.grammars.load_ahead()

    def verify(self, orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom | Failed]:
        return isolated(self._verifier, self._verifier.verify, orders, self._warm_up)

    def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        return self._verifier.score(prompt, token_ids)

    def forget(self, requests: Collection[str]) -> None:
        self._verifier.forget(requests)

    def kv_state(self) -> KvState:
        return self._verifier.blocks()


def _starts() -> list[Start]:
    """One start with greedy and one with sampled decoding: the first use of each compiles and
    allocates, so both are used once before serving."""
    return [
        Start(SamplingParams(temperature=temperature, top_p=0.9), 0, len(_WARM_UP_PROMPT))
        for temperature in (0.0, 1.0)
    ]


def _prefix(start: Start) -> Prefix:
    return Prefix(_WARM_UP, 0, 0, 0, EMPTY_HASH, _WARM_UP_PROMPT, start)
