"""Two tensor-parallel ranks: worker processes that import our classes by their dotted paths."""

import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

import pytest

from benchmarks.generation import generate
from cluster.built_in_models import TARGET, model_path
from engine.drafters.lookup import NgramDrafter
from engine.errors import RankLost
from engine.protocol import Commit
from engine.verifiers.vllm.loading import VllmSpec, load_vllm
from tests import prompt_logprobs
from tests.engine.drafters.feature_reader import FeatureReader, check_features
from tests.engine.streams import END, SAMPLING, questions, reference_target
from tests.engine.verifiers.backends import EAGER
from tests.engine.verifiers.orders import order, verdict
from tests.engine.verifiers.test_vllm_features import CLOSE, LAYERS
from tests.identity import assert_identical, joined

if TYPE_CHECKING:  # imports vLLM, which takes every process that collects tests seconds
    from engine.verifiers.vllm.verifier import VllmVerifier


@pytest.fixture(scope="module")
def verifier() -> "Iterator[VllmVerifier]":
    spec = VllmSpec(
        model_path(TARGET),
        "float32",
        2048,
        tensor_parallel=2,
        engine_args=EAGER,
        feature_layers=LAYERS,
    )
    verifier = load_vllm(spec)
    yield verifier
    verifier.shutdown()


def test_two_ranks_streams_equal_the_references(verifier: "VllmVerifier") -> None:
    params = [
        replace(one, seed=7, max_tokens=8, stop_token_ids=(END,)) for one in SAMPLING.values()
    ]
    prompts = list(islice(cycle(questions(False)), len(params)))
    reader = FeatureReader(NgramDrafter("ngram"), LAYERS)
    served = generate(verifier, prompts, params, drafter=reader, max_batch=3)
    assert_identical(reference_target(), prompts, joined(served, len(prompts))[0], params)
    check_features(reader, reference_target(), CLOSE)
    assert verifier.blocks().used == 0


def test_two_ranks_prompt_logprobs_equal_the_references(verifier: "VllmVerifier") -> None:
    prompt = questions(True)[2]
    params = replace(SAMPLING["greedy"], max_tokens=2, prompt_logprobs=2)
    first = next(generate(verifier, [prompt], params, chunk=10))
    assert isinstance(first, Commit)
    prompt_logprobs.check(reference_target(), prompt, 2, first.prompt_logprobs)


def test_a_killed_rank_makes_the_verifier_raise_rank_lost(verifier: "VllmVerifier") -> None:
    """The last test of this module, as the verifier cannot be used afterwards."""
    assert verdict(verifier, order("a", [21] * 40)).tokens
    ranks = [one for one in multiprocessing.active_children() if "Worker" in one.name]
    assert len(ranks) == 2
    ranks[1].kill()
    ranks[1].join()
    with pytest.raises(RankLost):
        verifier.verify([order("b", [22] * 40)])
