"""Measures the lookup drafters' tokens per round by shortest match, and the gain of calibration.

`python -m lab.micro.lookup [--requests 132] [--json FILE]`.

The zoo's target, not inflated, serves the same held-out requests, half of them sampled, with each
lookup drafter and drafts of three tokens, by the fewest tokens that must match. No time is
measured. Names: lookup/DRAFTER/SHORTEST/tokens_per_round (`reference`: two tokens must match).

Then the suffix lookup drafts for the same texts again, one request after the other, and each round
verifies the nodes whose path confidence reaches a threshold. Names: lookup/believed/COST/tokens:
tokens in the time of a plain round, if each verified draft token costs COST of that time, under the
best threshold (`reference`: with the confidences that the lookup has before any feedback).
"""

from collections.abc import Callable, Sequence
from itertools import takewhile

import numpy as np
import torch

from benchmarks.report import Record, parser, publish
from benchmarks.serving.requests import mixed_requests
from cluster.built_in_models import TARGET, model_path
from engine.drafters.lookup import SUFFIX_POSITIONS, NgramDrafter, SuffixDrafter
from engine.drafters.lookup_confidence import initial_weights, update_weights
from engine.drafters.lookup_tree import SearchSettings, grow
from engine.drafters.text_index import NONE, TextIndex
from engine.generate import DraftPlan, Generation
from engine.model import PackedModel
from engine.protocol import Drafter
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier

DRAFTERS: dict[str, Callable[[int], Drafter]] = {
    "ngram": lambda shortest: NgramDrafter(min_length=shortest),
    "suffix": lambda shortest: SuffixDrafter(min_match=shortest),
}
SHORTEST = (1, 2, 3)
REFERENCE = 2
DEPTH = 3
BATCH = 12
MAX_TOKENS = 128
KV_TOKENS = 16_384
COSTS = (0.04, 0.13, 0.35)
"""Cost of a draft token over that of a plain round, measured on the 90 M target on two cores at 1,
4 and 16 clients."""
THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8)
DEEPEST = 8

Text = tuple[Sequence[int], Sequence[int]]
"""A prompt and its output."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--requests", type=int, default=132)
    options = arguments.parse_args()
    model = PackedModel.load(
        model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=KV_TOKENS
    )
    records, texts = [], list[Text]()
    for name, make in DRAFTERS.items():
        per_round = {}
        for shortest in SHORTEST:
            per_round[shortest], texts = serve(model, make(shortest), options.requests)
        records += [
            Record.over(
                per_round[REFERENCE], f"lookup/{name}/{shortest}/tokens_per_round", value, "tokens"
            )
            for shortest, value in per_round.items()
        ]
    for cost in COSTS:
        learned, fixed = [most_tokens(texts, cost, learns) for learns in (True, False)]
        records.append(Record.over(fixed, f"lookup/believed/{cost}/tokens", learned, "tokens"))
    publish(records, options.json)


def serve(model: PackedModel, drafter: Drafter, count: int) -> tuple[float, list[Text]]:
    """Tokens per round without each request's first token, which has no draft; and the texts."""
    plan = DraftPlan(drafter.name, DEPTH)
    generation = Generation(
        NativeVerifier(model), [drafter], lambda _request, _round: plan, max_batch=BATCH
    )
    texts: dict[str, tuple[Sequence[int], list[int]]] = {}
    for number, request in enumerate(mixed_requests(count)):
        params = SamplingParams(
            temperature=float(number // 3 % 2), max_tokens=MAX_TOKENS, seed=number
        )
        generation.add(f"r{number}", request.prompt, params)
        texts[f"r{number}"] = request.prompt, []
    tokens = rounds = 0
    while generation.active:
        for commit in generation.step():
            texts[commit.request][1].extend(commit.token_ids)
            if commit.first_index:
                tokens += len(commit.token_ids)
                rounds += 1
    return tokens / rounds, list(texts.values())


def most_tokens(texts: Sequence[Text], cost: float, learns: bool) -> float:
    """Tokens per time of a plain round, under the best threshold."""
    return max(tokens_at_threshold(texts, cost, learns, threshold) for threshold in THRESHOLDS)


def tokens_at_threshold(
    texts: Sequence[Text], cost: float, learns: bool, threshold: float
) -> float:
    """Tokens per time of a plain round, where nodes of this path confidence are verified."""
    weights, past, reading = initial_weights(), TextIndex(), SearchSettings(1, 10, SUFFIX_POSITIONS)
    tokens, time = 0, 0.0
    for prompt, output in texts:
        own, at = TextIndex(), 1
        own.extend([*prompt, output[0]])
        while at < len(output):
            grown = grow(own, past, reading, weights, DEEPEST, 1)
            verified = np.count_nonzero(grown.path_confidence >= threshold)
            pairs = zip(grown.tree.tokens[:verified].tolist(), output[at:], strict=False)
            right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            verdict = np.array(output[at : at + right + 1], np.int32)
            if learns:
                update_weights(weights, grown.tree.tokens, grown.tree.parents, grown.kinds, verdict)
            own.extend(verdict)
            at += len(verdict)
            tokens += len(verdict)
            time += 1.0 + cost * verified
        past.extend([*output, NONE])
    return tokens / time


if __name__ == "__main__":
    main()
