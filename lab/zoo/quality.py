"""Measures the built-in models: task accuracy, acceptance, calibration and time per token.

`python -m lab.zoo.quality [--requests 24] [--per-kind 20] [--json FILE]`.

Acceptance is teacher-forced: one forward of each drafter over the target's own continuations
shows at every position whether the drafter would have proposed the target's token, and rounds of
a fixed draft depth are then replayed over those positions. This is exact for chains.
"""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    AutoTokenizer,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
)

from benchmarks.prompts.corpus import Corpus, load_corpus
from benchmarks.prompts.messages import chat_text, user_message
from benchmarks.prompts.tasks import Source, make_task
from benchmarks.report import Record, parser, publish
from benchmarks.serving.requests import DOMAIN_KINDS
from cluster.built_in_models import DRAFTERS, SPECIALISTS, TARGET, inflated_target, model_path
from engine.sampling.noise import gumbel
from lab.zoo.heldout import ranking_scores, task_scores

DEPTH = 4
NEW_TOKENS = 128
WIN_MARGIN = 1.03
"""A drafter counts as best for a request where its goodput is 3% above the next one's."""
COST_PARAMS = 90_000_000
_PROMPT_TOKENS = 96
_BATCH = 24
_CONFIDENCE_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)

Floats = npt.NDArray[np.float32]
Matches = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Continuation:
    """A held-out request and the target's output under one seed and temperature."""

    domain: str
    prompt: list[int]
    answer: list[int]
    seed: int


@dataclass(frozen=True)
class ForcedDraft:
    """One drafter, teacher-forced over one continuation."""

    matches: Matches
    """At each position, whether it proposes the target's token."""
    confidence: Floats
    """Its probability of what it proposes."""


class SharedNoise(LogitsProcessor):
    """Turns greedy generation into seeded sampling at temperature 1, with the noise that drafters
    share (docs/architecture.md, "Drafter-invariant sampling")."""

    def __init__(self, seeds: Sequence[int], padding: Sequence[int]) -> None:
        self._seeds = seeds
        self._padding = padding

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        vocabulary = np.arange(scores.shape[1])
        noise = [
            gumbel(seed, input_ids.shape[1] - padding, vocabulary)
            for seed, padding in zip(self._seeds, self._padding, strict=True)
        ]
        return scores.log_softmax(-1) + torch.from_numpy(np.stack(noise))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--requests", type=int, default=24, help="held-out requests per domain")
    arguments.add_argument("--per-kind", type=int, default=20, help="held-out tasks per kind")
    options = arguments.parse_args()
    publish(evaluate(options.requests, options.per_kind), options.json)


def evaluate(requests: int, per_kind: int) -> list[Record]:
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(model_path(TARGET))
    corpus = load_corpus(held_out=True)
    target = _load(model_path(TARGET))
    drafters = {name: _load(model_path(name)) for name in DRAFTERS}
    records = task_records(target, tokenizer, corpus, per_kind)
    prompts = domain_prompts(tokenizer, corpus, requests)
    greedy = continuations(target, tokenizer, prompts, temperature=0)
    sampled = continuations(target, tokenizer, prompts, temperature=1)
    forced = {name: [force(model, text, 0) for text in greedy] for name, model in drafters.items()}
    records += acceptance_records("greedy", greedy, forced)
    for label, temperature in (("sampled, shared noise", 1), ("sampled, greedy drafts", 0)):
        forced_sampled = {
            name: [force(model, text, temperature) for text in sampled]
            for name, model in drafters.items()
        }
        records += acceptance_records(label, sampled, forced_sampled)
    records += calibration_records(forced)
    costs = {name: step_ms(model, 1) for name, model in drafters.items()}
    records += [Record(f"cost/{name}", value, "ms/token") for name, value in costs.items()]
    verify = step_ms(_load(inflated_target(COST_PARAMS), torch.bfloat16), DEPTH + 1)
    records.append(Record(f"cost/target 90M, {DEPTH + 1} tokens", verify, "ms"))
    goodput = {
        name: [tokens_per_round(text.matches) / (verify + DEPTH * costs[name]) for text in per_text]
        for name, per_text in forced.items()
    }
    records += fleet_records("fleet", goodput)
    records += fleet_records("specialists", {name: goodput[name] for name in SPECIALISTS})
    return records


def task_records(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, corpus: Corpus, per_kind: int
) -> list[Record]:
    """Scores on held-out tasks and ranking prompts, beside the bounds that the zoo must meet."""
    bounds = {"task/count": 0.8, "task/list": 0.8, "task/table": 0.8}
    bounds["ranking/length_only/stated"] = 0.5
    scores = task_scores(target, tokenizer, corpus, per_kind)
    scores += ranking_scores(target, tokenizer, corpus, batches=per_kind)
    records = []
    for score in scores:
        unit = "tau-b" if score.name.startswith("ranking/") else "share"
        bound = bounds.get(score.name)
        ratio = None if bound is None else score.value / bound
        records.append(Record(score.name, score.value, unit, bound, ratio))
    return records


def domain_prompts(
    tokenizer: PreTrainedTokenizerFast, corpus: Corpus, requests: int
) -> list[tuple[str, list[int]]]:
    """Equally many held-out (domain, prompt) per domain: chat requests, of code and prose every
    other one a text to continue."""
    rng = random.Random("domains")
    source = Source(corpus, held_out=True)
    texts = {"code": corpus.code, "prose": corpus.prose}
    prompts: list[tuple[str, list[int]]] = []
    for domain, kinds in DOMAIN_KINDS.items():
        for index in range(requests):
            if domain in texts and index % 2:
                ids = tokenizer(rng.choice(texts[domain]), verbose=False)["input_ids"]
                start = rng.randrange(max(1, len(ids) - _PROMPT_TOKENS))
                prompts.append((domain, ids[start : start + _PROMPT_TOKENS]))
            else:
                task = make_task(source, rng, rng.choice(kinds))
                prompts.append((domain, tokenizer(chat_text(user_message(task)))["input_ids"]))
    return prompts


def continuations(
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[tuple[str, list[int]]],
    temperature: int,
) -> list[Continuation]:
    """The target's output for each prompt, each with a seed of its own."""
    texts: list[Continuation] = []
    for start in range(0, len(prompts), _BATCH):
        batch = prompts[start : start + _BATCH]
        ids = [prompt for _, prompt in batch]
        padded = tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt")
        width = padded["input_ids"].shape[1]
        seeds = [start + row for row in range(len(batch))]
        noise = SharedNoise(seeds, [width - len(prompt) for prompt in ids])
        with torch.inference_mode():
            output = target.generate(
                **padded,
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                logits_processor=LogitsProcessorList([noise] if temperature else []),
            )
        for (domain, prompt), seed, row in zip(batch, seeds, output.tolist(), strict=True):
            answer = row[width:]
            if tokenizer.eos_token_id in answer:
                answer = answer[: answer.index(tokenizer.eos_token_id) + 1]
            texts.append(Continuation(domain, prompt, answer, seed))
    return texts


def force(drafter: LlamaForCausalLM, text: Continuation, temperature: int) -> ForcedDraft:
    """Runs the drafter over the target's own tokens."""
    tokens = torch.tensor([text.prompt + text.answer])
    first = len(text.prompt)
    with torch.inference_mode():
        logits = drafter(input_ids=tokens, use_cache=False).logits[0, first - 1 : -1].float()
    scores = logits.log_softmax(-1).numpy()
    perturbed = scores
    if temperature:
        vocabulary = np.arange(scores.shape[1])
        noise = [gumbel(text.seed, first + i, vocabulary) for i in range(len(text.answer))]
        perturbed = scores + np.stack(noise)
    proposed = perturbed.argmax(-1)
    confidence = np.exp(np.take_along_axis(scores, proposed[:, None], 1)[:, 0])
    return ForcedDraft(proposed == np.array(text.answer), confidence)


def tokens_per_round(matches: Matches, depth: int = DEPTH) -> float:
    """Mean tokens committed per round of `depth` draft tokens, the target's own included."""
    rounds, position = 0, 0
    while position < len(matches):
        run = matches[position : position + depth]
        position += (len(run) if run.all() else int(run.argmin())) + 1
        rounds += 1
    return len(matches) / rounds


def acceptance_records(
    label: str, texts: Sequence[Continuation], forced: dict[str, list[ForcedDraft]]
) -> list[Record]:
    """Accepted draft tokens per round, by drafter and domain."""
    records = []
    for name, per_text in forced.items():
        for domain in DOMAIN_KINDS:
            gains = [
                tokens_per_round(draft.matches) - 1
                for text, draft in zip(texts, per_text, strict=True)
                if text.domain == domain
            ]
            accepted = statistics.mean(gains)
            records.append(Record(f"accepted/{label}/{name}/{domain}", accepted, f"of {DEPTH}"))
    return records


def calibration_records(forced: dict[str, list[ForcedDraft]]) -> list[Record]:
    """Share of proposals accepted, by confidence, of all drafters; `reference`: mean confidence."""
    confidence = np.concatenate(
        [draft.confidence for drafts in forced.values() for draft in drafts]
    )
    matches = np.concatenate([draft.matches for drafts in forced.values() for draft in drafts])
    records = []
    for low, high in pairwise(_CONFIDENCE_EDGES):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            name = f"calibration/confidence {low:g}-{high:g}"
            mean = float(confidence[inside].mean())
            share = float(matches[inside].mean())
            records.append(Record.over(mean, name, share, "accepted"))
    return records


def fleet_records(fleet: str, goodput: dict[str, list[float]]) -> list[Record]:
    """The share of requests for which each drafter is clearly best, and the goodput of the best
    drafter of each request over that of the best single one."""
    requests = len(next(iter(goodput.values())))
    wins = dict.fromkeys(goodput, 0)
    for index in range(requests):
        ranked = sorted(goodput, key=lambda name: -goodput[name][index])
        if goodput[ranked[0]][index] >= WIN_MARGIN * goodput[ranked[1]][index]:
            wins[ranked[0]] += 1
    records = [
        Record(f"{fleet}/best share/{name}", count / requests, "of requests")
        for name, count in wins.items()
    ]
    oracle = statistics.mean(max(values) for values in zip(*goodput.values(), strict=True))
    fixed = max(statistics.mean(values) for values in goodput.values())
    gain = (oracle / fixed - 1) * 100
    records.append(Record(f"{fleet}/oracle over best fixed", gain, "% goodput"))
    return records


def step_ms(model: LlamaForCausalLM, tokens: int, repeats: int = 20) -> float:
    """Median milliseconds of a forward of `tokens` new tokens after a prefix of 128."""
    prefix = torch.randint(5, model.config.vocab_size, (1, 128))
    new = torch.randint(5, model.config.vocab_size, (1, tokens))
    with torch.inference_mode():
        cache = model(input_ids=prefix, use_cache=True).past_key_values
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            model(input_ids=new, past_key_values=cache, use_cache=True)
            times.append((time.perf_counter() - started) * 1000)
            cache.crop(128)
    return statistics.median(times)


def _load(path: Path, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(path, dtype=dtype).eval()


if __name__ == "__main__":
    main()
