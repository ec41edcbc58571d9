"""What a head gains that learns from the traffic of a real model, without serving.

`python -m benchmarks.real.learning --data DIR [--head DIR] [--tokens 50000] [--orders 1]
[--categories gsm8k ...] [--first gsm8k ...] [--json FILE]`

The default target, with the weights of its file, answers the prompts of Spec-Bench, HumanEval and
GSM8K greedily, once: answers and states lie in the cache, and a run that was stopped goes on. Then,
in each order, every answer is judged by the frozen head, by the learning one before it has learned
from it, and by suffix lookups that remember answers; chains of four. `--tokens`: answer tokens of
an order; every tenth prompt is held out for the end. `--first`: categories that come before all
others, so that the traffic changes its kind.

Names: real/learning/ORDER/{frozen,learning,lookup}/QUARTER/tokens_per_forward, .../held_out/...;
of learning `reference` is the frozen head; .../CATEGORY in the last quarter;
real/learning/ORDER/cpu_ms of learning for each token that it has learned from.
"""

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.generation import Rejected, generate
from benchmarks.real.prompts import CATEGORIES, real_prompts
from benchmarks.report import Record, parser, publish
from benchmarks.serving.requests import Request
from cluster.built_in_models import SMOLLM2, model_path
from cluster.cache import cache_dir, written_whole
from cluster.checkpoints import eagle3_shape
from cluster.sources import checkpoint_folder
from engine.drafters.eagle3_head import Eagle3Head
from engine.drafters.lookup import SuffixDrafter
from engine.learning.lessons import Lesson
from engine.learning.training import DEPTH, Learner, agreements, twin
from engine.model import PackedModel
from engine.protocol import (
    ContinueDrafting,
    Draft,
    DraftOrder,
    Features,
    Missing,
    NoRoom,
    to_ordered_depth,
)
from engine.request import TargetLimits, admit
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from policies.learning.judging import Agreement, ratio
from policies.tree import DraftTree

_KV_TOKENS = 24_576
_LONGEST_PROMPT = 1024
_SHARD = 16
_HELD_OUT = 10
_STEP_TOKENS = 384
_MEMORY_TOKENS = 32_768
_QUARTERS = 4


class Answered(NamedTuple):
    category: str
    lesson: Lesson


class _Reader:
    """A drafter that proposes nothing and keeps the states that it is sent."""

    name = "reader"

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.feature_layers = layers
        self.read: dict[str, list[Features]] = {}

    def draft(
        self, orders: Sequence[DraftOrder], continue_drafting: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]:
        for order in orders:
            assert order.features is not None
            self.read.setdefault(order.prefix.request, []).append(order.features)
        return [
            Draft(one.prefix.request, one.prefix.attempt, one.prefix.round, DraftTree.empty())
            for one in orders
        ]

    def forget(self, requests: Iterable[str]) -> None: ...

    def roll_back(self, requests: Iterable[str]) -> None: ...


def answered(
    data: Path, checkpoint: Path, layers: tuple[int, ...], max_tokens: int, most: int
) -> Iterator[Answered]:
    """So many prompts with their answers and states, as the cache has them or now."""
    prompts = real_prompts(data, checkpoint)
    prompts = [one for one in prompts if len(one.prompt) <= _LONGEST_PROMPT][:most]
    folder = cache_dir() / "learning" / f"{checkpoint.name}-{max_tokens}"
    model = None
    for first in range(0, len(prompts), _SHARD):
        some, shard = prompts[first : first + _SHARD], folder / f"{first:05}.npz"
        if not shard.exists():
            model = model or PackedModel.load(
                checkpoint,
                dtype=torch.float32,
                device="cpu",
                kv_tokens=_KV_TOKENS,
                quantize="auto",
            )
            lessons = _answers(model, some, layers, max_tokens)
            with written_whole(shard) as file, file.open("wb") as opened:
                arrays = {f"t{number}": np.array(one.tokens) for number, one in enumerate(lessons)}
                states = {f"f{number}": one.features for number, one in enumerate(lessons)}
                np.savez(opened, **arrays, **states)  # type: ignore[arg-type]
        with np.load(shard) as stored:
            for number, one in enumerate(some):
                tokens = stored[f"t{number}"].tolist()
                lesson = Lesson(tokens, len(one.prompt), stored[f"f{number}"])
                if lesson.answered > 1:
                    yield Answered(one.domain, lesson)


def _answers(
    model: PackedModel, prompts: Sequence[Request], layers: tuple[int, ...], max_tokens: int
) -> list[Lesson]:
    reader = _Reader(layers)
    texts = [[*one.prompt] for one in prompts]
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    for commit in generate(NativeVerifier(model), [*texts], params, drafter=reader, depth=1):
        if isinstance(commit, Rejected):
            raise SystemExit(f"prompt {commit.request} was refused: {commit.error}")
        texts[int(commit.request)] = [*texts[int(commit.request)], *commit.token_ids]
    lessons = []
    for number, (one, text) in enumerate(zip(prompts, texts, strict=True)):
        pieces = reader.read.get(str(number), [])
        rows = np.concatenate([piece.rows for piece in pieces]) if pieces else np.zeros((0, 1))
        lessons.append(Lesson(text, len(one.prompt), rows))
    return lessons


class Seen(NamedTuple):
    category: str
    frozen: Agreement
    learning: Agreement
    lookup: Agreement


def run_order(
    head: Eagle3Head, stream: Sequence[Answered], vocab_size: int
) -> tuple[list[Seen], Learner, float]:
    """What each request shows before it is learned from, and the processor's seconds."""
    learner, lookup = Learner(twin(head), _MEMORY_TOKENS), SuffixDrafter("suffix")
    seen: list[Seen] = []
    spent_s = 0.0
    batch: list[Answered] = []
    for number, one in enumerate(stream):
        batch.append(one)
        if sum(each.lesson.answered for each in batch) < _STEP_TOKENS and one is not stream[-1]:
            continue
        began = time.process_time()
        pairs = learner.learn([each.lesson for each in batch])
        spent_s += time.process_time() - began
        for each, (frozen, learning) in zip(batch, pairs, strict=True):
            looked_up = _lookup(lookup, f"{number}/{len(seen)}", each.lesson, vocab_size)
            seen.append(Seen(each.category, frozen, learning, looked_up))
        batch = []
        if len(seen) % 8 < 4:
            last = seen[-64:]
            gain = ratio(each.learning for each in last) / ratio(each.frozen for each in last)
            print(f"{learner.tokens} tokens: {gain:.2f} times the frozen head", flush=True)
    return seen, learner, spent_s


def _lookup(drafter: SuffixDrafter, name: str, lesson: Lesson, vocab_size: int) -> Agreement:
    tokens, prompt_len = [*lesson.tokens], lesson.prompt_len
    params = SamplingParams(temperature=0, max_tokens=len(tokens) - prompt_len, ignore_eos=True)
    limits = TargetLimits(vocab_size, len(tokens) + 1, ())
    served = admit(name, tokens[:prompt_len], params, limits)
    served.commit(tokens[prompt_len : prompt_len + 1])
    forwards, first = 0, len(served.committed)
    while (at := len(served.committed)) < len(tokens):
        (draft,) = drafter.draft([DraftOrder(served.prefix_for("suffix"), DEPTH)])
        assert isinstance(draft, Draft)
        served.known["suffix"], served.round, forwards = at, served.round + 1, forwards + 1
        chain = draft.tree.tokens.tolist()
        right = 0
        while right < len(chain) and tokens[at + right : at + right + 1] == [chain[right]]:
            right += 1
        served.commit(tokens[at : at + right + 1])
    drafter.forget([name])
    return Agreement(len(tokens) - first, forwards)


def records_of(name: str, seen: Sequence[Seen]) -> list[Record]:
    frozen = ratio(one.frozen for one in seen)
    learning = ratio(one.learning for one in seen)
    lookup = ratio(one.lookup for one in seen)
    where = f"{name}/tokens_per_forward"
    return [
        Record(f"{where}/frozen", frozen, "tokens"),
        Record.over(frozen, f"{where}/learning", learning, "tokens"),
        Record(f"{where}/lookup", lookup, "tokens"),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    own = parser(__doc__)
    own.add_argument("--data", type=Path, default=Path("../shared/data"))
    own.add_argument("--head", type=Path, default=model_path("smollm2-general"))
    own.add_argument("--tokens", type=int, default=50_000)
    own.add_argument("--prompts", type=int, default=640, help="at most")
    own.add_argument("--max-tokens", type=int, default=96)
    own.add_argument("--orders", type=int, nargs="+", default=[1])
    own.add_argument("--categories", nargs="+", choices=CATEGORIES, default=CATEGORIES)
    own.add_argument("--first", nargs="+", choices=CATEGORIES, default=[])
    options = own.parse_args(arguments)
    checkpoint = checkpoint_folder(SMOLLM2)
    head = Eagle3Head.load(options.head, "cpu", torch.float32, checkpoint, trainable=True)
    layers = eagle3_shape(options.head, None).aux_layers
    most, max_tokens = options.prompts, options.max_tokens
    everything = answered(options.data, checkpoint, layers, max_tokens, most)
    chosen = [one for one in everything if one.category in options.categories]
    records: list[Record] = []
    for order in options.orders:
        stream = [one for number, one in enumerate(chosen) if number % _HELD_OUT]
        held_out = [one.lesson for one in chosen[::_HELD_OUT]]
        random.Random(order).shuffle(stream)
        stream.sort(key=lambda one: one.category not in options.first)
        ends = np.cumsum([one.lesson.answered for one in stream])
        stream = stream[: int(np.searchsorted(ends, options.tokens)) + 1]
        seen, learner, spent_s = run_order(head, stream, head.vocab_size)
        name, of_order = f"real/learning/{order}", []
        for quarter in range(_QUARTERS):
            part = slice(len(seen) * quarter // _QUARTERS, len(seen) * (quarter + 1) // _QUARTERS)
            of_order += records_of(f"{name}/{quarter + 1}", seen[part])
        for category in options.categories:
            last = [one for one in seen[part] if one.category == category]
            of_order += records_of(f"{name}/last/{category}", last) if last else []
        before = ratio(one for each in held_out for one in agreements(head, [each]))
        after = ratio(one for each in held_out for one in agreements(learner.averaged, [each]))
        of_order.append(Record.over(before, f"{name}/held_out", after, "tokens per forward"))
        of_order.append(Record(f"{name}/tokens", learner.tokens, "learned from"))
        of_order.append(Record(f"{name}/cpu_ms", 1000 * spent_s / learner.tokens, "ms per token"))
        records += of_order
    publish(records, options.json)


if __name__ == "__main__":
    main()
