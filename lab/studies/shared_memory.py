"""Tokens per forward of replicas that have served nothing, over those of the one that has: another
replica beside it, one that has replaced a lost one, and one of a restarted application.

`python -m lab.studies.shared_memory [--data DIR] [--requests 240] [--json FILE]` serves the zoo's
target, or with `--data` (benchmarks/real/prompts.py) the default config, with two replicas and a
folder for past outputs. Requests go to one replica alone; then each replica in turn answers the
same prompts, never asked before, whose answers are not kept. Names: shared_memory/REPLICA.
"""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import serve

from benchmarks.real.prompts import real_prompts
from benchmarks.report import Record, parser, publish
from benchmarks.serving.app import APP, App, running, wait_until
from benchmarks.serving.requests import Request, mixed_requests
from cluster.config import AppConfig
from deployments.messages import StreamRequest
from engine.sampling.params import SamplingParams
from engine.scopes import SHARED
from policies.request import Slo

PORT = 8197
MAX_TOKENS = 48
CLIENTS = 4
PROBES = 60
WITHIN_S = 30.0
"""From a replica's start to the end of its first exchanges."""
KINDS = ("gsm8k", "humaneval")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path)
    arguments.add_argument("--requests", type=int, default=240)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder), zoo=options.data is None)
        prompts = _prompts(config, options.data, PROBES + options.requests)
        probes, asked = prompts[:PROBES], prompts[PROBES:]
        with running(config, PORT) as app:
            found = asyncio.run(_before_and_after(app, probes, asked))
        with running(config, PORT) as app:
            found["of a restarted application"] = asyncio.run(_newest(app, probes))
    records = [Record(f"shared_memory/{name}", value, "tokens") for name, value in found.items()]
    publish(records, options.json)


def _config(folder: Path, zoo: bool) -> dict[str, Any]:
    (application,) = yaml.safe_load(Path("cluster.yaml").read_text())["applications"]
    target = {"dtype": "float32", "placement": "inline"} if zoo else application["args"]["target"]
    return {
        "target": target,
        "drafters": application["args"]["drafters"],
        # For a target as small as the zoo's the planner finds that drafts do not pay.
        "policies": {"speculation": {"name": "fixed"}} if zoo else {},
        "scaling": {"min_replicas": 2, "max_replicas": 2},
        "limits": {"silent_ingress_s": 600.0},
        "past_outputs_folder": str(folder),
    }


def _prompts(config: dict[str, Any], data: Path | None, count: int) -> Sequence[Request]:
    if data is None:
        return mixed_requests(count, seed=11)
    checkpoint = AppConfig.model_validate(config).target.header_path()
    return real_prompts(data, checkpoint, KINDS)[:count]


async def _before_and_after(
    app: App, probes: Sequence[Request], asked: Sequence[Request]
) -> dict[str, float]:
    serving, beside = await _replicas()
    found = {"before": await _tokens_per_forward(probes, avoid=[beside], remember=False)}
    await _tokens_per_forward(asked, avoid=[beside], remember=True)
    found["serving"] = await _tokens_per_forward(probes, avoid=[beside], remember=False)
    found["beside it"] = await _tokens_per_forward(probes, avoid=[serving], remember=False)
    (lost,) = [actor for actor in app.actors() if actor.name.endswith(beside)]
    ray.kill(ray.get_actor(lost.name, namespace="serve"))
    found["replacing a lost one"] = await _newest(app, probes, avoid=[serving, beside])
    return found


async def _newest(app: App, probes: Sequence[Request], avoid: Sequence[str] = ()) -> float:
    """Tokens per forward of replicas that have just started, but for those to avoid."""
    await wait_until(lambda: app.replica_states() == {"RUNNING": 2}, 120, "two replicas run")
    began_s = time.monotonic()
    while (newest := set(await _replicas()) - set(avoid)) == set():
        await asyncio.sleep(1)
    await asyncio.sleep(WITHIN_S - (time.monotonic() - began_s))
    others = {*avoid, *await _replicas()} - {min(newest)}
    return await _tokens_per_forward(probes, avoid=list(others), remember=False)


async def _replicas() -> list[str]:
    """The names of both, as soon as calls reach them."""
    names: set[str] = set()
    end = time.monotonic() + 20
    while len(names) < 2 and time.monotonic() < end:
        names.add((await _handle().state.remote())["replica"])
    return sorted(names)


def _handle() -> Any:
    return serve.get_deployment_handle("Replica", APP)


async def _tokens_per_forward(
    requests: Sequence[Request], avoid: list[str], remember: bool
) -> float:
    """Verifications of a request, which share forwards with those of others."""
    left = list(enumerate(requests))
    tokens = rounds = 0

    async def client() -> None:
        nonlocal tokens, rounds
        while left:
            number, request = left.pop(0)
            last: Mapping[str, Any] = {}
            name = f"{time.monotonic()} {number}"
            stream = _handle().options(stream=True).stream
            async for message in stream.remote(_message(name, request, avoid, remember)):
                assert message["kind"] in ("accepted", "commit"), message
                last = message
                tokens += len(message.get("token_ids", ()))
            rounds += last["statistics"].rounds

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return tokens / rounds


def _message(name: str, request: Request, avoid: list[str], remember: bool) -> StreamRequest:
    return {
        "name": name,
        "attempt": 0,
        "ingress": "study",
        "prompt_ids": list(request.prompt),
        "output_ids": [],
        "params": SamplingParams(temperature=0, max_tokens=MAX_TOKENS),
        "slo": Slo(),
        "priority": 0,
        "tenant": "",
        "scope": SHARED,
        "remember": remember,
        "may_teach": False,
        "speculation": {"enabled": True, "drafter": None, "max_depth": None},
        "trace": False,
        "pause_s": 0.1,
        "avoid": avoid,
        "routed_to": None,
    }


if __name__ == "__main__":
    main()
