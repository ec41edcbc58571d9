"""LoRA adapters on vLLM: each request's output is its adapter's, whatever is drafted and whoever
shares the batch."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.generation import generate
from cluster.built_in_models import TARGET, model_path
from cluster.config.drafter_kinds import drafter_kind
from engine.drafters.model import ModelDrafter, make_runner
from engine.errors import UnreadableCheckpoint
from engine.protocol import Drafter, Verdict
from engine.sampling.params import SamplingParams
from engine.verifiers.vllm.loading import VllmSpec, load_vllm
from tests import prompt_logprobs
from tests.adapters import merged, write_adapter
from tests.engine.drafters.feature_reader import FeatureReader, check_features
from tests.engine.streams import AMPLE, END, questions, reference_target, zoo_model
from tests.engine.verifiers.backends import EAGER
from tests.engine.verifiers.orders import order, verdict
from tests.engine.verifiers.test_vllm_features import CLOSE, LAYERS
from tests.identity import assert_identical, joined

if TYPE_CHECKING:  # imports vLLM, which takes every process that collects tests seconds
    from engine.verifiers.vllm.verifier import VllmVerifier

GREEDY = SamplingParams(temperature=0, max_tokens=40, stop_token_ids=(END,), seed=7)
NAMES = ("", "first", "second", "third")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, target = tmp_path_factory.mktemp("adapters"), model_path(TARGET)
    ranks = {"first": 4, "second": 11, "third": 1}
    return {
        name: write_adapter(folder / name, target, seed, rank)
        for seed, (name, rank) in enumerate(ranks.items())
    }


@pytest.fixture(scope="module")
def verifier(adapters: dict[str, Path]) -> "Iterator[VllmVerifier]":
    spec = VllmSpec(
        model_path(TARGET),
        "float32",
        AMPLE,
        engine_args=EAGER,
        feature_layers=LAYERS,
        adapters={name: str(path) for name, path in adapters.items()},
    )
    verifier = load_vllm(spec)
    yield verifier
    assert verifier.blocks().used == 0


def drafter(kind: str) -> Drafter:
    if kind != "tiny":
        return drafter_kind(kind).maker()(kind)
    runner = make_runner(zoo_model("tiny"), kv_tokens=AMPLE)
    return ModelDrafter("tiny", runner, target_vocab_size=reference_target().config.vocab_size)


@pytest.mark.parametrize(("kind", "reads"), [("tiny", True), ("suffix", False)])
def test_streams_are_those_of_the_merged_weights(
    kind: str, reads: bool, verifier: "VllmVerifier", adapters: dict[str, Path]
) -> None:
    """Batches mix all adapters and none, more requests than fit into one, greedy and sampled."""
    cases = [*product(NAMES, (0.0, 1.0), questions(False)[:4])]
    prompts = [prompt for *_, prompt in cases]
    params = [replace(GREEDY, adapter=name, temperature=heat) for name, heat, _ in cases]
    one = drafter(kind)
    reader = FeatureReader(one, LAYERS) if reads else one
    served = generate(verifier, prompts, params, drafter=reader, max_batch=7)
    streams, commits = joined(served, len(prompts))
    assert commits < 0.9 * sum(map(len, streams)), "drafts are accepted"
    plain = streams[: len(streams) // len(NAMES)]
    for place, name in enumerate(NAMES):
        model = merged(model_path(TARGET), adapters[name]) if name else reference_target()
        own = range(place * len(plain), (place + 1) * len(plain))
        part = slice(own.start, own.stop)
        assert_identical(model, prompts[part], streams[part], params[part])
        assert name == "" or streams[part] != plain
        if isinstance(reader, FeatureReader):
            those = FeatureReader(one, LAYERS)
            those.read = [row for row in reader.read if int(row[0]) in own]
            check_features(those, model, CLOSE)


def test_prompts_have_the_log_probabilities_of_their_adapter(
    verifier: "VllmVerifier", adapters: dict[str, Path]
) -> None:
    prompts = [prompt[: 20 + place] for place, prompt in enumerate(questions(False)[:4])]
    orders = [
        order(
            name or "none",
            prompt,
            params=SamplingParams(temperature=0, prompt_logprobs=2, adapter=name),
        )._replace(prompt_logprobs_from=1)
        for name, prompt in zip(NAMES, prompts, strict=True)
    ]
    answers = verifier.verify(orders)
    verifier.forget([one.prefix.request for one in orders])
    for name, prompt, answer in zip(NAMES, prompts, answers, strict=True):
        model = merged(model_path(TARGET), adapters[name]) if name else reference_target()
        assert isinstance(answer, Verdict)
        prompt_logprobs.check(model, prompt, 2, answer.prompt_logprobs)


def test_the_prefix_cache_is_the_adapters_own(verifier: "VllmVerifier") -> None:
    def cached(request: str, adapter: str) -> int | None:
        params = replace(GREEDY, adapter=adapter)
        answer = verdict(verifier, order(request, [31] * 70, params=params))
        verifier.forget([request])
        return answer.cached

    assert cached("a", "first") == cached("b", "second") == cached("c", "") == 0
    assert cached("d", "first") == cached("e", "second") == cached("f", "") == 64


def test_an_adapter_that_vllm_cannot_read_is_named_at_the_start(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "odd", model_path(TARGET), seed=1, bias="all")
    spec = VllmSpec(
        model_path(TARGET), "float32", 256, engine_args=EAGER, adapters={"odd": str(folder)}
    )
    with pytest.raises(UnreadableCheckpoint, match=f"{folder} cannot be read .* bias"):
        load_vllm(spec)
