"""`target.attention`, from the config to the streams: every layout serves the same tokens."""

import asyncio
from pathlib import Path

import pytest

from actors.coordinator.estimates import Estimates
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Limits, Policies
from actors.hosts.fleet import start_fleet
from actors.hosts.inline import ThreadVerifier
from cluster.config import AppConfig
from cluster.placement import plan
from deployments.replica.host_specs import drafter_specs, target_spec
from engine.model import PackedModel
from engine.sampling.params import SamplingParams
from policies.scheduling.baselines import fcfs
from policies.speculation.baselines import Fixed
from tests.actors.coordinator.policies import Touring

PROMPTS = [[5, 6, 7], list(range(40, 340)), [3], [11, 12] * 20]
"""Prompts of very different lengths, which decomposition cuts."""
KV_TOKENS = 4096
Streams = list[list[int]]


def config(attention: str) -> AppConfig:
    return AppConfig.model_validate(
        {
            "target": {
                "model": "zoo/target",
                "dtype": "float32",
                "placement": "inline",
                "kv_tokens": KV_TOKENS,
                "attention": attention,
            },
            "drafters": [
                {"name": "tiny", "model": "zoo/tiny", "placement": "inline"},
                {"name": "ngram", "kind": "ngram"},
            ],
        }
    )


async def serve(app: AppConfig, profiles: Path) -> Streams:
    placement = plan(app)
    fleet = await start_fleet(
        target_spec(app, placement), drafter_specs(app, placement), profiles, measure_s=0.1
    )
    assert isinstance(fleet.verifier, ThreadVerifier)
    coordinator = Coordinator(
        fleet.verifier,
        fleet.lanes,
        Policies(fcfs(), Touring(), Fixed()),
        Estimates(fleet.costs, [lane.view for lane in fleet.lanes]),
        Limits(max_batch=4, kv_tokens=KV_TOKENS),
    )

    async def stream(number: int, prompt: list[int]) -> list[int]:
        params = SamplingParams(
            temperature=float(number % 2), max_tokens=30, seed=number, ignore_eos=True
        )
        commits = coordinator.submit(str(number), prompt, params)
        return [token async for commit in commits for token in commit.token_ids]

    streams = await asyncio.gather(*(stream(*one) for one in enumerate(PROMPTS)))
    await coordinator.close()
    await fleet.close()
    return streams


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def packed(profiles: Path) -> Streams:
    return asyncio.run(serve(config("packed"), profiles))


@pytest.mark.parametrize("attention", ["decomposed", "padded"])
def test_every_layout_serves_the_same_tokens(
    attention: str, packed: Streams, profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards: set[str] = set()
    original = PackedModel.forward

    def recorded(model: PackedModel, *args, **kwargs):  # type: ignore[no-untyped-def]
        if len(model.hf_model.model.layers) > 2:  # the target
            forwards.add(model.layout)
        return original(model, *args, **kwargs)

    monkeypatch.setattr(PackedModel, "forward", recorded)
    assert asyncio.run(serve(config(attention), profiles)) == packed
    assert forwards == {attention}
