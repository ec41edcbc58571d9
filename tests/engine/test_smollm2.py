"""The default model says here what it says in transformers, drafted for or not."""

import torch
from transformers import AutoModelForCausalLM

from cluster.smollm2 import smollm2_path
from cluster.zoo import model_path
from cluster.zoo.paths import HEADS
from engine.drafters.eagle3 import load_eagle3
from engine.drafters.suffix import SuffixDrafter
from engine.generate import generate
from engine.model import PackedModel
from engine.protocol import Commit, Drafter
from engine.sampling.params import SamplingParams
from engine.tokenizer import load_tokenizer
from engine.verifiers.native import NativeVerifier
from tests.smollm2 import needs_smollm2

QUESTIONS = ("What is gravity?", "Count to 9.", "Repeat: a b c d, a b c d, a b c d")
TOKENS = 24
PARAMS = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)


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


@needs_smollm2
def test_greedy_output_is_transformers_own() -> None:
    tokenizer = load_tokenizer(smollm2_path())
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for question in QUESTIONS
    ]
    stock = AutoModelForCausalLM.from_pretrained(smollm2_path(), dtype=torch.float32)
    expected = {
        str(number): stock.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=-1,
        )[0, len(prompt) :].tolist()
        for number, prompt in enumerate(prompts)
    }
    verifier = NativeVerifier(
        PackedModel.load(smollm2_path(), dtype=torch.float32, device="cpu", kv_tokens=2048)
    )
    for drafter in (None, SuffixDrafter("suffix", 1000), *map(shipped_head, HEADS)):
        streams: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
        verdicts = 0
        for event in generate(verifier, prompts, PARAMS, drafter=drafter, depth=6):
            assert isinstance(event, Commit)
            streams[event.request] += event.token_ids
            verdicts += 1
        assert streams == expected
        assert (verdicts < TOKENS * len(prompts)) == (drafter is not None)
