"""Generate without a server: one process, one target, one drafter.

    python -m examples.offline_generate [--depth 4]

Run it from the repository's root. The tokens are the same whatever the drafter and the depth.
"""

import argparse
from collections.abc import Sequence

import torch
from transformers import AutoTokenizer

from benchmarks.generation import Rejected, generate
from cluster.built_in_models import TARGET, model_path
from engine.drafters.lookup import NgramDrafter
from engine.model import PackedModel
from engine.protocol import Drafter
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier

PROMPT = "<|user|>Count to 9.<|end|><|assistant|>"


def run(drafter: Drafter | None, depth: int, seeds: Sequence[int]) -> tuple[list[list[int]], int]:
    """The output tokens of one sampled request for each seed, and the verdicts that they took."""
    model = PackedModel.load(model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=4096)
    prompt = AutoTokenizer.from_pretrained(model_path(TARGET))(PROMPT)["input_ids"]
    params = [SamplingParams(temperature=1.0, max_tokens=64, seed=seed) for seed in seeds]
    outputs: list[list[int]] = [[] for _ in seeds]
    verdicts = 0
    prompts = [prompt] * len(seeds)
    for commit in generate(NativeVerifier(model), prompts, params, drafter=drafter, depth=depth):
        if isinstance(commit, Rejected):
            raise commit.error
        outputs[int(commit.request)] += commit.token_ids
        verdicts += 1
    return outputs, verdicts


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--depth", type=int, default=4, help="tokens drafted ahead at most")
    depth = arguments.parse_args().depth
    plain, plain_verdicts = run(None, 0, seeds=(1, 2, 3))
    drafted, verdicts = run(NgramDrafter(), depth, seeds=(1, 2, 3))
    tokenizer = AutoTokenizer.from_pretrained(model_path(TARGET))
    print(tokenizer.decode(drafted[0], skip_special_tokens=True))
    print(f"plain: {plain_verdicts} verdicts; with n-gram drafts: {verdicts}")
    print("same tokens:", drafted == plain)


if __name__ == "__main__":
    main()
