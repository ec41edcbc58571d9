"""How short a match lookups should follow: `python -m benchmarks.lookup [--json FILE]`.

The zoo's target as it was trained serves the same held-out requests, half of them sampled, with
each lookup drafter and three tokens a draft, by the fewest tokens that must match. No clock is in
it. Names: lookup/DRAFTER/SHORTEST/tokens_per_round (`reference`: where two tokens must match).
"""

from collections.abc import Callable

import torch

from benchmarks.report import Record, parser, publish
from benchmarks.requests import mixed_requests
from cluster.zoo import TARGET, model_path
from engine.drafters.lookup import NgramDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.generate import DraftPlan, Generation
from engine.model import PackedModel
from engine.params import SamplingParams
from engine.protocol import Drafter
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


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--requests", type=int, default=132)
    chosen = arguments.parse_args()
    model = PackedModel.load(
        model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=KV_TOKENS
    )
    records = []
    for name, make in DRAFTERS.items():
        found = {
            shortest: tokens_per_round(model, make(shortest), chosen.requests)
            for shortest in SHORTEST
        }
        records += [
            Record(
                f"lookup/{name}/{shortest}/tokens_per_round",
                value,
                "tokens",
                found[REFERENCE],
                value / found[REFERENCE],
            )
            for shortest, value in found.items()
        ]
    publish(records, chosen.json)


def tokens_per_round(model: PackedModel, drafter: Drafter, count: int) -> float:
    """Behind each request's first token, which no draft precedes."""
    plan = DraftPlan(drafter.name, DEPTH)
    generation = Generation(
        NativeVerifier(model), [drafter], lambda _request, _round: plan, max_batch=BATCH
    )
    for number, request in enumerate(mixed_requests(count)):
        params = SamplingParams(
            temperature=float(number // 3 % 2), max_tokens=MAX_TOKENS, seed=number
        )
        generation.add(f"r{number}", request.prompt, params)
    tokens = rounds = 0
    while generation.active:
        for commit in generation.step():
            if commit.first_index:
                tokens += len(commit.token_ids)
                rounds += 1
    return tokens / rounds


if __name__ == "__main__":
    main()
