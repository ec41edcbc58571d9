"""The default model and the shipped head over HTTP, in processes that are killed.

Slow, for the model is loaded four times: it is the only module in which a model that was not made
for our tests is served whole.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.generation import generate
from benchmarks.serving.streams import ReceivedStream, read_all
from cluster.built_in_models import smollm2_path
from cluster.check import read
from engine.model import PackedModel
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from tests.deployments.serving import URL, application
from tests.identity import joined
from tests.smollm2 import chats, needs_smollm2

pytestmark = needs_smollm2
HEAD = "general"
MAX_TOKENS = 32
QUESTIONS = ("What is gravity?", "Count to 20.", "Say a b c d twice: a b c d")


@pytest.fixture(scope="module", autouse=True)
def _app() -> Iterator[None]:
    """cluster.yaml's application with the head, each model in a process of its own."""
    (config,) = read(Path("cluster.yaml"))
    args = {
        **config.args,
        "target": {**config.args["target"], "placement": "actor"},
        "drafters": [
            *config.args["drafters"],
            {"name": HEAD, "kind": "eagle3", "model": "zoo/smollm2-general"},
        ],
        # The planner might find that the head does not pay on this machine.
        "policies": {"selection": {"name": "fixed"}, "speculation": {"name": "fixed"}},
    }
    del args["grpc"]
    with application(args):
        yield


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What the engine says of each request alone, without drafts."""
    model = PackedModel.load(
        smollm2_path(), dtype=torch.float32, device="cpu", kv_tokens=1024, quantize="auto"
    )
    verifier = NativeVerifier(model)
    return [
        joined(generate(verifier, [body["prompt"]], params(body)), 1)[0][0] for body in bodies()
    ]


def params(body: Mapping[str, Any]) -> SamplingParams:
    return SamplingParams(
        temperature=body["temperature"], max_tokens=MAX_TOKENS, seed=body["seed"], ignore_eos=True
    )


def bodies() -> list[dict[str, Any]]:
    """All questions, greedy and sampled."""
    return [
        {
            "model": "SmolLM2-135M-Instruct",
            "prompt": prompt,
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "temperature": temperature,
            "seed": number,
        }
        for number, prompt in enumerate(chats(QUESTIONS))
        for temperature in (0.0, 0.8)
    ]


def stream(
    asked: Sequence[Mapping[str, Any]],
    progress: Callable[[Sequence[ReceivedStream]], None] = lambda _streams: None,
) -> list[ReceivedStream]:
    return asyncio.run(read_all(URL, asked, 120, progress))


def check(received: Sequence[ReceivedStream], expected: Sequence[Sequence[int]]) -> None:
    """Every stream is complete and equal in each token."""
    assert [one.error for one in received] == [None] * len(received)
    assert [list(one.token_ids) for one in received] == [list(one) for one in expected]


def test_streams_are_the_engines_own_with_drafts_and_without(expected: list[list[int]]) -> None:
    asked = bodies()
    drafted, plain = stream(asked), stream([{**body, "speculation": "off"} for body in asked])
    check(drafted, expected)
    check(plain, expected)
    statistics = [one.statistics for one in drafted if one.statistics is not None]
    undrafted = [one.statistics for one in plain if one.statistics is not None]
    assert len(statistics) == len(undrafted) == len(asked)
    assert all(HEAD in one["rounds_by_lane"] for one in statistics)
    assert sum(one["accepted"] for one in statistics) > len(drafted)
    assert not any(one["drafted"] for one in undrafted)
