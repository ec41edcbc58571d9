"""The application with its target on vLLM, over HTTP: clients get what the oracle generates.

What the official client sees on either backend is in test_openai_client.py, what does not depend on
the backend in test_app.py.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.streams import ReceivedStream, read_all
from cluster.built_in_models import TARGET, model_path
from engine.sampling.params import SamplingParams
from engine.verifiers.vllm.environment import process_environment
from tests.actors.hosts.cluster import processes
from tests.adapters import merged
from tests.deployments.killing import Kill
from tests.deployments.served.application import ADAPTER, KEYS, adapter
from tests.deployments.serving import PROMPT, URL, eventually, is_idle, replicas, tokenizer
from tests.engine.streams import reference_target
from tests.identity import Identity

pytestmark = [
    pytest.mark.parametrize("app", ["vllm"], indirect=True),
    pytest.mark.usefixtures("app"),
]
AUTHORIZED = {"Authorization": f"Bearer {KEYS['alpha']}"}
PROMPTS = (
    PROMPT,
    "<|user|>List 6 animals.<|end|><|assistant|>",
    '<|user|>Repeat "blue cup" 4 times.<|end|><|assistant|>',
    "<|user|>Make a table of 5 rivers with length.<|end|><|assistant|>",
)
OPTIONS: Sequence[Mapping[str, Any]] = (
    {"temperature": 0},
    {"temperature": 1},
    {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"temperature": 0.9, "top_k": 40, "min_p": 0.02, "repetition_penalty": 1.2,
     "logit_bias": {100: 3.0, 7: -5.0}},
)  # fmt: skip


def bodies(max_tokens: int) -> list[dict[str, Any]]:
    """Eight of them: all prompts, all options, one half of the adapter."""
    return [
        {
            "model": (TARGET, ADAPTER)[number // 4],
            "prompt": PROMPTS[number % 4],
            "max_tokens": max_tokens,
            "seed": number,
            "ignore_eos": True,
            **OPTIONS[(number + number // 4) % 4],
        }
        for number in range(8)
    ]


def stream(
    asked: Sequence[Mapping[str, Any]],
    progress: Callable[[Sequence[ReceivedStream]], None] = lambda _streams: None,
) -> list[ReceivedStream]:
    return asyncio.run(read_all(URL, asked, 240, progress, AUTHORIZED))


def check(received: Sequence[ReceivedStream], asked: Sequence[Mapping[str, Any]]) -> None:
    """Every stream is complete and the oracle's, with the adapter or without."""
    with_adapter = merged(model_path(TARGET), adapter())
    identities = {TARGET: Identity(reference_target()), ADAPTER: Identity(with_adapter)}
    names = SamplingParams.__dataclass_fields__.keys() - {"seed", "ignore_eos"}
    for one, body in zip(received, asked, strict=True):
        assert one.error is None
        assert one.finish == "length"
        params = SamplingParams(**{name: body[name] for name in names & body.keys()})
        prompt = tokenizer()(body["prompt"])["input_ids"]
        identities[body["model"]].check(prompt, one.token_ids, params, body["seed"])
        assert one.text == tokenizer().decode(one.token_ids, skip_special_tokens=True)
    for identity in identities.values():
        identity.finish()


def test_eight_streams_at_once_are_the_oracles_and_drafts_are_accepted() -> None:
    asked = [{**body, "speculation": "tiny"} for body in bodies(max_tokens=32)]
    received = stream(asked)
    check(received, asked)
    statistics = [one.statistics for one in received if one.statistics is not None]
    assert len(statistics) == len(received)
    assert sum(one["accepted"] for one in statistics) > len(received)
    assert sum(one["rounds"] for one in statistics) < sum(len(one.token_ids) for one in received)
    assert all("tiny" in one["rounds_by_lane"] for one in statistics)
    eventually(is_idle, "nothing runs")


@pytest.mark.parametrize("part", ["verifier", "tiny"])
def test_a_killed_part_comes_back_and_streams_are_unchanged(part: str) -> None:
    asked = bodies(max_tokens=96)
    replica = replicas().state.remote().result(timeout_s=10)["replica"]
    victim = processes(replica)[part]
    kill = Kill(victim)
    received = stream(asked, kill)
    assert kill.unfinished == len(received), "the fault came too late"
    check(received, asked)
    eventually(lambda: processes(replica).get(part, victim) != victim, f"{part} is back", 60)
    eventually(is_idle, "nothing runs")


def test_intels_openmp_is_loaded_before_anything_else() -> None:
    """Without it threads that share their cores cost up to ten times."""
    replica = replicas().state.remote().result(timeout_s=10)["replica"]
    pid = processes(replica)["verifier"]
    preloaded = process_environment().get("LD_PRELOAD")
    if preloaded is None:
        pytest.skip("intel-openmp is not installed")
    assert preloaded in Path(f"/proc/{pid}/maps").read_text()
