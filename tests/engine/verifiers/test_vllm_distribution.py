"""At temperature > 0, with drafts, tokens are distributed as plain vLLM's own."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from scipy.stats import chi2_contingency
from transformers import AutoTokenizer

from cluster.built_in_models import TARGET, model_path
from engine.protocol import Verdict, VerifyOrder
from engine.sampling.params import SamplingParams
from policies.tree import DraftTree
from tests.engine.verifiers.backends import AMPLE, vllm
from tests.engine.verifiers.orders import order

PARAMS = SamplingParams(temperature=0.9, top_k=40, top_p=0.95)
DRAWS = 1200
BATCH = 60
Pair = tuple[int, ...]
"""Two tokens after the prompt."""


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    """A prompt with many likely continuations."""
    tokenizer = AutoTokenizer.from_pretrained(model_path(TARGET))
    ids: list[int] = tokenizer("def get(self, ")["input_ids"]
    return ids


@pytest.fixture(scope="module")
def plain(prompt: list[int]) -> Counter[Pair]:
    """Drawn by vLLM without speculation, with its own sampler."""
    vllm(AMPLE)  # sets the process up for vLLM
    from vllm import EngineArgs
    from vllm import SamplingParams as EngineParams
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.request import Request

    config = EngineArgs(
        model=str(model_path(TARGET)),
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=128,
        num_gpu_blocks_override=256,
        kv_cache_memory_bytes=1 << 20,
        block_size=32,
    ).create_engine_config()
    core = EngineCore(config, Executor.get_class(config), log_stats=False)
    params = EngineParams(
        temperature=PARAMS.temperature, top_k=PARAMS.top_k, top_p=PARAMS.top_p, max_tokens=2
    )
    for number in range(DRAWS):
        core.add_request(Request(str(number), prompt, params, None))
    streams: dict[str, list[int]] = {}
    while core.scheduler.has_unfinished_requests():
        for outputs in core.step()[0].values():
            for output in outputs.outputs:
                streams.setdefault(output.request_id, []).extend(output.new_token_ids)
    return Counter(tuple(tokens) for tokens in streams.values())


def drawn(prompt: list[int], params: SamplingParams, draft: Pair) -> tuple[Counter[Pair], int]:
    """Drawn by our verifier with a seed each and the same draft; and how much was accepted."""
    verifier, pairs, accepted = vllm(AMPLE), Counter[Pair](), 0
    seeds = iter(range(DRAWS))
    while batch := list(islice(seeds, BATCH)):
        tokens = {str(seed): list(prompt) for seed in batch}
        # Prefills all but the prompts' last token, so that the next step verifies the draft.
        verifier.verify(
            [
                order(name, prompt, params=params, chunk=len(prompt) - 1, seed=int(name))
                for name in tokens
            ]
        )
        length = len(prompt) + 2
        while unfinished := [name for name, one in tokens.items() if len(one) < length]:
            orders = [following(name, tokens[name], draft, len(prompt)) for name in unfinished]
            for answer in verifier.verify(orders):
                assert isinstance(answer, Verdict)
                tokens[answer.request].extend(answer.tokens)
                accepted += len(answer.accepted)
        verifier.forget(tokens)
        pairs.update(tuple(one[len(prompt) :][:2]) for one in tokens.values())
    return pairs, accepted


def following(name: str, tokens: list[int], draft: Pair, prompt_len: int) -> VerifyOrder:
    rest = DraftTree.chain(draft[len(tokens) - prompt_len :])
    return order(name, tokens, rest, base=len(tokens), prompt_len=prompt_len)


def p_value(one: Counter[Pair], other: Counter[Pair]) -> float:
    """The p-value of the hypothesis that both are drawn from the same distribution."""
    common = [pair for pair, count in (one + other).most_common() if count >= 12]
    rows = [[counts[pair] for pair in common] for counts in (one, other)]
    rest = [[counts.total() - sum(row)] for counts, row in zip((one, other), rows, strict=True)]
    table = np.hstack([rows, rest])
    assert table.shape[1] > 5, "the prompt leaves too little to chance"
    return float(chi2_contingency(table).pvalue)


def test_pairs_of_tokens_are_distributed_as_plain_vllms(
    prompt: list[int], plain: Counter[Pair]
) -> None:
    draft = plain.most_common(1)[0][0]
    pairs, accepted = drawn(prompt, PARAMS, draft)
    assert pairs.total() == plain.total() == DRAWS
    assert accepted > 0
    assert p_value(plain, pairs) > 1e-3
    # The test's power: a slightly different temperature is detected.
    other, _ = drawn(prompt, replace(PARAMS, temperature=1.2), draft)
    assert p_value(plain, other) < 1e-6
