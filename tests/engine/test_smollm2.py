"""The default model says here what it says in transformers, drafted for or not."""

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.generation import generate
from cluster.built_in_models import HEADS, model_path, smollm2_path
from cluster.checkpoint_files import Quantize
from cluster.checkpoints import eagle3_shape
from engine.drafters.eagle3 import load_eagle3
from engine.drafters.loading import load_quantized
from engine.drafters.lookup import SuffixDrafter
from engine.model import PackedModel
from engine.protocol import Drafter, Verifier
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from engine.verifiers.vllm.loading import VllmSpec, load_vllm
from tests.engine.verifiers.backends import EAGER
from tests.identity import assert_identical, joined
from tests.smollm2 import chats, eager, needs_smollm2

QUESTIONS = ("What is gravity?", "Count to 9.", "Repeat: a b c d, a b c d, a b c d")
TOKENS = 24
PARAMS = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)


@cache
def shipped_head(name: str) -> Drafter:
    return load_eagle3(
        name,
        model_path(name),
        dtype=None,
        device="cpu",
        kv_tokens=2048,
        target_vocab_size=49_152,
        target=smollm2_path(),
    ).drafter


def copy_of_target() -> Drafter:
    return load_quantized(
        "copy", smollm2_path(), dtype=None, device="cpu", kv_tokens=2048, target_vocab_size=49_152
    ).drafter


@needs_smollm2
def test_greedy_output_is_transformers_own() -> None:
    prompts = chats(QUESTIONS)
    stock = AutoModelForCausalLM.from_pretrained(smollm2_path(), dtype=torch.float32)
    expected = [
        stock.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=-1,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    verifier = native()
    drafters = (SuffixDrafter("suffix", 1000), *map(shipped_head, HEADS), copy_of_target())
    for drafter in (None, *drafters):
        served = generate(verifier, prompts, PARAMS, drafter=drafter, depth=6)
        streams, verdicts = joined(served, len(prompts))
        assert streams == expected
        assert (verdicts < TOKENS * len(prompts)) == (drafter is not None)


@cache
def native() -> Verifier:
    return NativeVerifier(
        PackedModel.load(smollm2_path(), dtype=torch.float32, device="cpu", kv_tokens=2048)
    )


def vllm() -> Verifier:
    layers = {layer for name in HEADS for layer in eagle3_shape(model_path(name)).aux_layers}
    spec = VllmSpec(
        smollm2_path(), "float32", 2048, engine_args=EAGER, feature_layers=tuple(layers)
    )
    return load_vllm(spec)


@needs_smollm2
@pytest.mark.parametrize("load", [native, vllm])
def test_sampled_streams_are_the_references_on_both_backends(load: Callable[[], Verifier]) -> None:
    verifier, prompts, verdicts = load(), chats(QUESTIONS), list[int]()
    params = [
        SamplingParams(temperature=0.8, seed=seed, max_tokens=TOKENS, ignore_eos=True)
        for seed in range(len(prompts))
    ]
    for drafter in (None, SuffixDrafter("suffix", 1000), *map(shipped_head, HEADS)):
        streams, commits = joined(
            generate(verifier, prompts, params, drafter=drafter), len(prompts)
        )
        assert_identical(eager(), prompts, streams, params)
        verdicts.append(commits)
    assert max(verdicts[1:]) < verdicts[0], "a drafter has gained nothing"


@needs_smollm2
@pytest.mark.parametrize("quantize", ["auto", "int8"])
def test_on_quantized_weights_drafts_and_batches_change_no_token(quantize: Quantize) -> None:
    """Equal in every token, without an excuse for near-ties: rows do not depend on each other."""
    model = PackedModel.load(
        smollm2_path(), dtype=torch.float32, device="cpu", kv_tokens=2048, quantize=quantize
    )
    verifier, prompts = NativeVerifier(model), chats(QUESTIONS)
    params = [
        SamplingParams(temperature=seed % 2 * 0.8, seed=seed, max_tokens=40, ignore_eos=True)
        for seed in range(len(prompts))
    ]

    def streams(
        numbers: Sequence[int], drafter: Drafter | None = None, depth: int = 4, chunk: int = 512
    ) -> list[list[int]]:
        texts, own = [prompts[number] for number in numbers], [params[number] for number in numbers]
        served = generate(verifier, texts, own, drafter=drafter, depth=depth, chunk=chunk)
        return joined(served, len(numbers))[0]

    alone = [streams([number])[0] for number in range(len(prompts))]
    everyone = range(len(prompts))
    assert streams(everyone) == alone
    assert streams(everyone, SuffixDrafter("suffix", 1000), depth=6) == alone
    assert streams(everyone, shipped_head(HEADS[0]), depth=3, chunk=7) == alone
