"""vLLM's hidden states, which heads read, are those of the stock model."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.generation import generate
from cluster.built_in_models import TARGET, model_path
from engine.drafters.model import ModelDrafter
from engine.drafters.runner import PackedRunner
from engine.errors import UnsupportedVLLM
from engine.model import PackedModel
from engine.protocol import FeatureRange, Features
from engine.sampling.params import SamplingParams
from engine.verifiers.vllm.loading import VllmSpec, engine_config, load_vllm
from tests.engine.drafters.feature_reader import FeatureReader, check_features, stock_features
from tests.engine.families import SUPPORTED, build
from tests.engine.streams import END, questions, reference_target, zoo_model
from tests.engine.verifiers.backends import AMPLE, EAGER, TIGHT
from tests.engine.verifiers.orders import order, verdict
from tests.identity import assert_identical, joined

if TYPE_CHECKING:  # imports vLLM, which takes every process that collects tests seconds
    from engine.verifiers.vllm.verifier import VllmVerifier

LAYERS = (3, 1, 2)
GREEDY = SamplingParams(temperature=0, max_tokens=24, stop_token_ids=(END,), seed=7)
SAMPLED = replace(GREEDY, temperature=1.0)
SHARED = [9] * 70
CLOSE = 0.01
"""Values are some hundreds."""


@cache
def verifier(kv_tokens: int) -> "VllmVerifier":
    spec = VllmSpec(
        model_path(TARGET), "float32", kv_tokens, engine_args=EAGER, feature_layers=LAYERS
    )
    return load_vllm(spec)


@pytest.mark.parametrize("kv_tokens", [AMPLE, TIGHT])
@pytest.mark.parametrize("chunk", [512, 7])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_drafters_get_the_features_of_all_they_read_and_outputs_stay(
    params: SamplingParams, chunk: int, kv_tokens: int
) -> None:
    """With prompts that share a prefix, in chunks, and preempted requests."""
    small = PackedRunner(PackedModel(zoo_model("small"), kv_tokens=AMPLE))
    vocab_size = reference_target().config.vocab_size
    reader = FeatureReader(ModelDrafter("small", small, target_vocab_size=vocab_size), LAYERS)
    prompts = questions(shared=True)
    served = generate(verifier(kv_tokens), prompts, params, drafter=reader, depth=4, chunk=chunk)
    streams, commits = joined(served, len(prompts))
    assert_identical(reference_target(), prompts, streams, [params] * len(prompts))
    check_features(reader, reference_target(), CLOSE)
    assert commits < 0.9 * sum(map(len, streams))


def test_a_hit_of_the_prefix_cache_ends_where_features_are_wanted() -> None:
    def computed(request: str, wanted: FeatureRange | None) -> tuple[int | None, Features | None]:
        one = order(request, SHARED, params=GREEDY)
        answer = verdict(verifier(AMPLE), one._replace(features=wanted))
        verifier(AMPLE).forget([request])
        return answer.cached, answer.features

    computed("first", None)
    assert computed("again", None) == (64, None)
    expected = stock_features(reference_target(), SHARED, (1, 3))
    for position, cached in ((0, 0), (40, 32), (69, 64)):
        from_cache, features = computed(f"from {position}", FeatureRange((1, 3), position))
        assert from_cache == cached
        assert features is not None
        assert features.first == position
        np.testing.assert_allclose(features.rows, expected[position:], atol=CLOSE)


def test_a_chunk_before_what_is_wanted_brings_nothing() -> None:
    pieces = []
    for base in (0, 70, 70, 70):
        one = order("a", [11] * 70, params=GREEDY, base=base, chunk=20)
        answer = verdict(verifier(AMPLE), one._replace(features=FeatureRange((2,), 45)))
        assert answer.features is not None
        pieces.append((answer.features.first, len(answer.features.rows)))
    verifier(AMPLE).forget(["a"])
    assert pieces == [(45, 0), (45, 0), (45, 15), (60, 10)]


def test_graphs_of_other_layers_have_another_key_in_vllms_cache() -> None:
    """vLLM would take a compiled graph that hands out other layers, without an error."""
    specs = (VllmSpec(model_path(TARGET), "float32", 256, feature_layers=(n,)) for n in (1, 2))
    assert len({engine_config(spec).compute_hash() for spec in specs}) == 2


def test_a_model_that_hands_out_no_hidden_states_is_refused(tmp_path: Path) -> None:
    build(SUPPORTED["gpt2"]).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedVLLM, match="GPT2LMHeadModel hands out no hidden states"):
        load_vllm(VllmSpec(tmp_path, "float32", 256, engine_args=EAGER, feature_layers=(1,)))
