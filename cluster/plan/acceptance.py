"""How often a drafter's tokens are accepted: given by the user, replayed on a trace, or assumed."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.special import ndtri
from scipy.stats import rankdata

from cluster.checkpoints import architecture
from cluster.config.drafter_kinds import drafter_kind
from cluster.plan.simulator.acceptance import DrafterModel, synthetic
from cluster.sources import header_folder, name_of, parameters_of
from engine.protocol import Draft, Drafter, DraftOrder, Prefix, Start
from engine.sampling.params import SamplingParams
from engine.soft_state import CommittedTokens

Floats = NDArray[np.float64]

HEAD = 0.75
"""First tokens of EAGLE-3 heads that are accepted in chats (EAGLE-3, Fig. 7: 0.7 to 0.8)."""
COPY = 0.9
"""The acceptance of the target's own weights rounded to 4 bits; a guess that errs low."""
_SMALL_MODELS = ((17.0, 0.75), (68.0, 0.71), (1370.0, 0.57))
"""Sizes of the target over the drafter's, and the acceptance: LaMDA 137B with 8B, 2B and 100M
(Leviathan et al. 2023, Table 3)."""
_LOOKUP_SILENT, _LOOKUP_RIGHT, _LOOKUP_STREAKS = 0.55, 0.45, 0.6
"""Lookups where the trace has no texts: positions without a proposal, proposals that are right, and
how alike neighbours are. Assumed, not measured."""
_DEPTH = 8
_STEPS = 33
"""Points of a fitted curve."""
_APART = 8
"""Positions at this distance share no streak."""


class Text(NamedTuple):
    """One request of a trace, as token ids."""

    prompt: Sequence[int]
    output: Sequence[int]


class Recorded(NamedTuple):
    """A drafter's proposals at the positions of one output."""

    confidence: Floats
    """The confidence in the first choice; 0: there was none."""
    right: NDArray[np.bool_]


class Given(NamedTuple):
    """A drafter that the user names."""

    kind: str
    model: str | None
    acceptance: float | None

    @property
    def name(self) -> str:
        if self.model is None:
            return "copy"
        return re.sub(r"[^A-Za-z0-9._-]+|^[^A-Za-z0-9]+", "", name_of(self.model).split("/")[-1])


@dataclass(frozen=True, slots=True)
class Fleet:
    """What drafts: lookups, and at most one model beside them."""

    lookups: Mapping[str, DrafterModel] = field(default_factory=dict)
    given: Given | None = None

    @property
    def label(self) -> str:
        names = [*self.lookups, *([self.given.name] if self.given else [])]
        return " + ".join(names) or "no drafts"


def of_given(given: Given, target: str) -> DrafterModel:
    """As the user says, else by its kind, and of a small model by the sizes alone."""
    if given.acceptance is not None:
        return synthetic(given.acceptance)
    if given.model is None:
        return synthetic(COPY)
    if given.kind == "eagle3":
        return synthetic(HEAD)
    ratios, accepted = zip(*_SMALL_MODELS, strict=True)
    ratio = math.log(max(1.0, parameters_of_model(target) / parameters_of_model(given.model)))
    return synthetic(float(np.interp(ratio, np.log(ratios), accepted)))


def parameters_of_model(model: str) -> float:
    return float(parameters_of(model) or architecture(header_folder(model)).parameters())


def of_lookup(kind: str, texts: Sequence[Text]) -> DrafterModel:
    """Replayed on a trace's texts; without any assumed."""
    if texts:
        return fitted(replayed(drafter_kind(kind).maker()(kind), texts))
    usual = synthetic(
        _LOOKUP_RIGHT, persistence=_LOOKUP_STREAKS, rank_shares=(), sibling_confidence=()
    )
    return replace(usual, silent=_LOOKUP_SILENT)


def replayed(drafter: Drafter, texts: Sequence[Text]) -> list[Recorded]:
    """What the drafter proposes for outputs that are known, each after the whole of it before."""
    recorded = []
    for number, text in enumerate(texts):
        recorded.append(_replay(drafter, f"text-{number}", text))
        drafter.forget([f"text-{number}"])
    return recorded


def _replay(drafter: Drafter, request: str, text: Text) -> Recorded:
    output, first = list(text.output), len(text.prompt)
    committed = CommittedTokens()
    committed.extend(list(text.prompt))
    confidence, right = np.zeros(len(output)), np.zeros(len(output), np.bool_)
    start = Start(SamplingParams(temperature=0), 0, first)
    position = base = 0
    for turn in range(len(output)):
        length = len(committed)
        delta = tuple(committed.ids[base:])
        prefix = Prefix(
            request, 0, turn, base, committed.hashes[base], delta, None if base else start
        )
        base = length
        depth = min(_DEPTH, len(output) - position)
        (answer,) = drafter.draft([DraftOrder(prefix, depth)])
        assert isinstance(answer, Draft)
        tree = answer.tree
        for token, confident in zip(tree.tokens.tolist(), tree.confidence, strict=True):
            confidence[position] = confident
            right[position] = token == output[position]
            position += 1
            if not right[position - 1]:
                break
        else:
            position += len(tree) < depth  # where it had no further proposal
        committed.extend(output[length - first : position])
        if position >= len(output):
            break
    return Recorded(confidence, right)


def fitted(recorded: Sequence[Recorded]) -> DrafterModel:
    """Its curves are the recorded ones; its correlations are moments of the confidences' normal
    scores (see the simulator's acceptance)."""
    first = np.concatenate([one.confidence for one in recorded])
    right = np.concatenate([one.right for one in recorded])
    proposes = first > 0
    if not proposes.any():
        return DrafterModel((0.0, 0.0), (0.0, 0.0), silent=1.0)
    confidence, accepted = _curves(first[proposes], right[proposes])
    scores = ndtri((rankdata(first) - 0.5) / len(first))
    ends = np.cumsum([len(one.confidence) for one in recorded])[:-1]
    of_each = np.split(scores, ends)
    spread = max(float((scores**2).mean()), 1e-9)
    share = float(np.clip(_product(of_each, _APART) / spread, 0.0, 0.9))
    near = _product(of_each, 1) / spread
    persistence = float(np.clip((near - share) / (1.0 - share), 0.0, 0.95))
    return DrafterModel(
        tuple(confidence.tolist()),
        tuple(accepted.tolist()),
        silent=float(1.0 - proposes.mean()),
        request_share=share,
        persistence=persistence,
    )


def _curves(first: Floats, right: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Quantiles of confidence, and the share of right proposals around each, made monotone."""
    order = np.argsort(first, kind="stable")
    groups = [group for group in np.array_split(order, min(_STEPS, len(order)))]
    share = [float(right[group].mean()) for group in groups]
    mean = [float(first[group].mean()) for group in groups]
    if len(groups) == 1:
        mean, share = mean * 2, share * 2
    weights = [len(group) for group in groups] * (2 if len(groups) == 1 else 1)
    return np.array(mean), isotonic_regression(share, weights=weights).x


def _product(scores: Sequence[Floats], apart: int) -> float:
    """The mean product of scores that are so far apart in their request."""
    products = [one[apart:] * one[:-apart] for one in scores if len(one) > apart]
    joined = np.concatenate(products) if products else np.zeros(1)
    return float(joined.mean())
