"""Drafters measured on the engine in this process, without serving: greedy chains of one depth."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.generation import Rejected, feature_layers, generate
from benchmarks.real.contenders import HEAD
from benchmarks.report import Record
from benchmarks.serving.requests import Request
from cluster.config.drafter_kinds import LOOKUPS, drafter_kind
from engine.drafters.loading import LoadedDrafter
from engine.errors import SpindleError
from engine.model import PackedModel
from engine.protocol import (
    ContinueDrafting,
    Draft,
    Drafter,
    DraftOrder,
    Missing,
    NoRoom,
    to_ordered_depth,
)
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier

MODEL = "model"
COPY = "quantized"
DRAFTERS = (*LOOKUPS, COPY, HEAD, MODEL)
"""By their kinds."""
HINDSIGHT = "in_hindsight"
_KV_TOKENS = 24_576
_BATCH = 8
"""Requests in a forward: a round of each counts as one forward, whatever others are in it."""


@dataclass(slots=True)
class Tally:
    """Rounds of one drafter's requests, each request's first left out, which has no draft."""

    tokens: int = 0
    rounds: int = 0
    proposed: dict[int, int] = field(default_factory=dict)
    """By position, from 1, how often a token was proposed there."""
    accepted: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of_all(cls, tallies: Iterable["Tally"]) -> "Tally":
        together = cls()
        for tally in tallies:
            together.tokens += tally.tokens
            together.rounds += tally.rounds
            for mine, theirs in (
                (together.proposed, tally.proposed),
                (together.accepted, tally.accepted),
            ):
                for position, count in theirs.items():
                    mine[position] = mine.get(position, 0) + count
        return together

    @property
    def per_forward(self) -> float:
        return self.tokens / max(1, self.rounds)

    def add(self, tokens: int, drafted: int) -> None:
        self.tokens += tokens
        self.rounds += 1
        for position in range(1, drafted + 1):
            self.proposed[position] = self.proposed.get(position, 0) + 1
            self.accepted[position] = self.accepted.get(position, 0) + (position < tokens)


class WatchedDrafter:
    """Notes how deep a drafter's last drafts were, and the CPU time that they took."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name = drafter.name
        self.feature_layers = feature_layers(drafter)
        self.depths: dict[str, int] = {}
        """By request; those of later rounds replace earlier ones."""
        self.cpu_s = 0.0

    def draft(
        self, orders: Sequence[DraftOrder], continue_drafting: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]:
        started = time.process_time()
        answers = self._drafter.draft(orders, continue_drafting)
        self.cpu_s += time.process_time() - started
        for answer in answers:
            deepest = int(answer.tree.depth.max(initial=0)) if isinstance(answer, Draft) else 0
            self.depths[answer.request] = deepest
        return answers

    def forget(self, requests: Iterable[str]) -> None:
        self._drafter.forget(requests)

    def roll_back(self, requests: Iterable[str]) -> None:
        self._drafter.roll_back(requests)


def measure_drafters(
    checkpoint: Path,
    requests: Sequence[Request],
    drafters: Sequence[str],
    models: Mapping[str, Path | None],
    depths: Sequence[int],
    max_tokens: int,
) -> list[Record]:
    """Records of each drafter at each depth, over the same requests. `models`: the checkpoints of
    those that have one."""
    model = PackedModel.load(checkpoint, dtype=torch.float32, device="cpu", kv_tokens=_KV_TOKENS)
    categories = [request.domain for request in requests]
    records = []
    for depth in depths:
        of_each: list[Sequence[Tally]] = []
        for name in drafters:
            drafter = WatchedDrafter(make_drafter(name, models, checkpoint, model.vocab_size))
            of_each.append(_tallies(model, requests, drafter, depth, max_tokens))
            of_drafter = _report(
                f"real/engine/{name}/k{depth}", categories, of_each[-1], drafter.cpu_s
            )
            print(f"{of_drafter[0].name} {of_drafter[0].value:.3f}", flush=True)
            records += of_drafter
        records += _in_hindsight(f"real/engine/{HINDSIGHT}/k{depth}", categories, of_each)
    return records


def _in_hindsight(
    name: str, categories: Sequence[str], of_each: Sequence[Sequence[Tally]]
) -> list[Record]:
    """What a choice of drafters can gain: each request by the one that was best for it, over all
    by the one that was best for all."""
    chosen = [
        max(tallies, key=lambda tally: tally.per_forward) for tallies in zip(*of_each, strict=True)
    ]
    fixed = max(of_each, key=lambda tallies: Tally.of_all(tallies).per_forward)
    records = []
    for category in (None, *dict.fromkeys(categories)):
        places = [place for place, one in enumerate(categories) if category in (None, one)]
        best, best_fixed = (
            Tally.of_all(tallies[place] for place in places).per_forward
            for tallies in (chosen, fixed)
        )
        where = name if category is None else f"{name}/{category}"
        records.append(Record.over(best_fixed, f"{where}/tokens_per_forward", best, "tokens"))
    return records


def make_drafter(
    name: str, models: Mapping[str, Path | None], target: Path, vocab_size: int
) -> Drafter:
    """A new one: a lookup must not find the answers of the run before."""
    kind = drafter_kind(HEAD if name.startswith(HEAD) else name)
    make = kind.maker()
    checkpoints = {**models, COPY: target}
    if name not in checkpoints:
        return make(name)
    loaded: LoadedDrafter = make(
        name,
        checkpoints[name],
        dtype=torch.float32,
        device="cpu",
        kv_tokens=_KV_TOKENS,
        target_vocab_size=vocab_size,
        **({"target": target} if kind.reads_target else {}),
    )
    return loaded.drafter


def _tallies(
    model: PackedModel,
    requests: Sequence[Request],
    drafter: WatchedDrafter,
    depth: int,
    max_tokens: int,
) -> list[Tally]:
    """One tally for each request."""
    tallies = [Tally() for _ in requests]
    for commit in generate(
        NativeVerifier(model),
        [request.prompt for request in requests],
        SamplingParams(temperature=0, max_tokens=max_tokens),
        drafter=drafter,
        depth=depth,
        max_batch=_BATCH,
    ):
        if isinstance(commit, Rejected):
            raise SpindleError(f"prompt {commit.request} was refused: {commit.error}")
        drafted = drafter.depths.pop(commit.request, 0)
        if commit.first_index:
            tallies[int(commit.request)].add(len(commit.token_ids), drafted)
    return tallies


def _report(
    name: str, categories: Sequence[str], tallies: Sequence[Tally], cpu_s: float
) -> list[Record]:
    together = Tally.of_all(tallies)
    records = [
        Record(f"{name}/tokens_per_forward", together.per_forward, "tokens"),
        Record(f"{name}/draft_cpu_ms", 1000 * cpu_s / together.rounds, "ms per request and round"),
    ]
    records += [
        Record(f"{name}/accepted/{position}", together.accepted[position] / count, "share")
        for position, count in sorted(together.proposed.items())
    ]
    for category in dict.fromkeys(categories):
        tally = Tally.of_all(
            one for one, of in zip(tallies, categories, strict=True) if of == category
        )
        accepted, proposed = sum(tally.accepted.values()), sum(tally.proposed.values())
        records += [
            Record(f"{name}/{category}/tokens_per_forward", tally.per_forward, "tokens"),
            Record(f"{name}/{category}/accepted", accepted / max(1, proposed), "share"),
        ]
    return records
