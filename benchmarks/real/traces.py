"""Answers with what drafters would have drafted after each of their tokens."""

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.generation import DraftPlan, Generation, feature_layers
from benchmarks.real.contenders import HEAD
from benchmarks.real.engine import make_drafter
from benchmarks.real.prompts import real_prompts
from engine.drafters.lookup import SuffixDrafter
from engine.model import PackedModel
from engine.protocol import (
    ContinueDrafting,
    Draft,
    Drafter,
    DraftOrder,
    Missing,
    NoRoom,
    Prefix,
    Start,
    to_ordered_depth,
)
from engine.sampling.params import SamplingParams
from engine.soft_state import CommittedTokens
from engine.verifiers.native import NativeVerifier
from policies.tree import DraftTree

DEPTH = 6
"""The length of the head's chains."""
_LONGEST_CHAIN = 8
"""The planner's max_depth."""
_BATCH = 32
_KV_TOKENS = 65_536
_LONGEST_PROMPT = 1_200


@dataclass(frozen=True, slots=True)
class Trace:
    """One answer, and what the head drafted after each of its tokens."""

    domain: str
    prompt: tuple[int, ...]
    output: list[int]
    chains: list[tuple[list[int], list[float]]]
    """After output[:i]: tokens and confidences."""


def record(checkpoint: Path, options: Namespace) -> list[Trace]:
    """Every answer, one token a round."""
    prompts = [
        one for one in real_prompts(options.data, checkpoint) if len(one.prompt) <= _LONGEST_PROMPT
    ][: options.requests]
    model = PackedModel.load(checkpoint, dtype=torch.float32, device="cpu", kv_tokens=_KV_TOKENS)
    head = _Watched(make_drafter(HEAD, {HEAD: options.head}, checkpoint, model.vocab_size))
    plan = DraftPlan(HEAD, DEPTH)
    session = Generation(NativeVerifier(model), [head], lambda *_: plan, max_batch=_BATCH)
    params = SamplingParams(temperature=0, max_tokens=options.max_tokens)
    outputs: dict[str, list[int]] = {}
    for number, one in enumerate(prompts):
        session.add(str(number), one.prompt, params)
        outputs[str(number)] = []
    while session.active:
        for commit in session.step():
            outputs[commit.request] += commit.token_ids
    return [
        Trace(
            one.domain,
            one.prompt,
            output,
            [head.chains.get((name, len(one.prompt) + n), ([], [])) for n in range(len(output))],
        )
        for one, (name, output) in zip(prompts, outputs.items(), strict=True)
        if len(output) > 1
    ]


class _Watched:
    """Keeps what a drafter drafts, and proposes nothing."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name = HEAD
        self.feature_layers = feature_layers(drafter)
        self.chains: dict[tuple[str, int], tuple[list[int], list[float]]] = {}
        """By request and committed tokens."""

    def draft(
        self, orders: Sequence[DraftOrder], continue_drafting: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]:
        answers = self._drafter.draft(orders, continue_drafting)
        for order, answer in zip(orders, answers, strict=True):
            if isinstance(answer, Draft):
                place = (answer.request, order.prefix.base + len(order.prefix.delta))
                self.chains[place] = (answer.tree.tokens.tolist(), answer.tree.confidence.tolist())
        return [
            one._replace(tree=DraftTree.empty()) if isinstance(one, Draft) else one
            for one in answers
        ]

    def forget(self, requests: Iterable[str]) -> None:
        self._drafter.forget(requests)

    def roll_back(self, requests: Iterable[str]) -> None:
        self._drafter.roll_back(requests)


def in_hindsight(traces: Sequence[Trace]) -> tuple[float, float]:
    """Tokens per forward of lookups alone, and of the better chain in every round."""
    return _rounds(traces, with_head=False), _rounds(traces, with_head=True)


def _rounds(traces: Sequence[Trace], *, with_head: bool) -> float:
    lookup, rounds, tokens = SuffixDrafter(), 0, 0
    params = SamplingParams(temperature=0)
    for number, trace in enumerate(traces):
        name, start = str(number), Start(params, 0, len(trace.prompt))
        committed, base, done = CommittedTokens(), 0, 1
        committed.extend([*trace.prompt, trace.output[0]])
        while done < len(trace.output):
            delta = tuple(committed.ids[base:])
            prefix = Prefix(name, 0, done, base, committed.hashes[base], delta, start)
            most = min(_LONGEST_CHAIN, len(trace.output) - done - 1)
            [draft] = lookup.draft([DraftOrder(prefix, most)])
            assert isinstance(draft, Draft)
            chains = [draft.tree.tokens.tolist()]
            if with_head:
                chains.append(trace.chains[done][0])
            base = len(committed)
            right = max(_matches(chain[:most], trace.output[done:]) for chain in chains)
            new = trace.output[done : done + right + 1]
            committed.extend(new)
            done, rounds, tokens = done + len(new), rounds + 1, tokens + len(new)
        lookup.forget([name])
    return tokens / max(1, rounds)


def _matches(chain: Sequence[int], following: Sequence[int]) -> int:
    pairs = zip(chain, following, strict=False)
    return next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), len(chain))
