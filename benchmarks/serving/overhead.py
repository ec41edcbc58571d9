"""What serving costs on top of the coordinator.

`python -m benchmarks.serving.overhead [--json FILE]`.

Time to the first token of single requests, over HTTP and from the same coordinator in this
process, in turns; once with every host inline, once with hosts as Ray actors. Names:
overhead/PLACEMENT/ttft_p50 (`value`: over HTTP, `reference`: in process),
overhead/PLACEMENT/added_p50 (`reference`: the bound), overhead/PLACEMENT/freed_worst (from when
eight clients go away in the middle until all of their KV is free) and overhead/lane/transport_p50
(a call that does nothing, to a drafter that is an actor) and overhead/lane/transport_of_ray_p50
(the same; `reference`: such a call to a bare actor, in turns, which tells the machine's share).
Exits with 1 when a bound is missed.
"""

import asyncio
from collections.abc import Sequence
from statistics import median
from typing import Any

import ray
import torch
from aiohttp import ClientSession
from ray import serve
from ray.actor import ActorHandle
from ray.serve.handle import DeploymentHandle

from actors.coordinator.estimates import Estimates
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Limits, Policies
from actors.hosts.fleet import Fleet, raise_fleet
from actors.hosts.spawn import Group
from actors.hosts.specs import DrafterSpec, TargetSpec, Where
from benchmarks.processes import end_after_ray
from benchmarks.report import Record, parser, publish
from benchmarks.serving.app import APP, App, running, until
from benchmarks.serving.requests import Request, mixed_requests
from benchmarks.serving.streams import Said, read, session
from cluster.zoo import TARGET, model_path
from cluster.zoo.paths import cache_dir
from engine.sampling.params import SamplingParams
from policies.catalogue import make_schedule, make_selection, make_speculation

PORT = 8173
BOUNDS_S = {"inline": 0.010, "actor": 0.020}
TRANSPORT_BOUND_S = 0.001
FREED_BOUND_S = 1.0
LEAVING = 8
DEPARTURES = 10
CALLS = 200
MAX_TOKENS = 4
LONG = 1500
KV_TOKENS = 16_384


def config(placement: str) -> dict[str, Any]:
    return {
        "target": {"dtype": "float32", "placement": placement, "kv_tokens": KV_TOKENS},
        "drafters": [{"name": "tiny", "model": "zoo/tiny", "placement": placement}],
        "policies": {"selection": {"name": "fixed"}, "speculation": {"name": "fixed"}},
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--requests", type=int, default=100)
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    requests = mixed_requests(chosen.requests + 4, seed=5)
    records = []
    for placement in BOUNDS_S:
        with running(config(placement), PORT) as app:
            records += asyncio.run(compare(app, placement, requests))
            records.append(asyncio.run(freed(app, placement, requests)))
            if placement == "actor":
                records += asyncio.run(transport())
    publish(records, chosen.json)
    bounds = ("added_p50", "freed_worst", "transport_p50")
    bounded = [one for one in records if one.name.endswith(bounds)]
    end_after_ray(0 if all(one.ratio is not None and one.ratio <= 1 for one in bounded) else 1)


async def compare(app: App, placement: str, requests: Sequence[Request]) -> list[Record]:
    coordinator = await in_process()
    served: list[float] = []
    direct: list[float] = []
    async with session(60) as client:
        for number, request in enumerate(requests):
            ways = [over_http(client, app.url, request), in_this(coordinator, number, request)]
            seconds = [0.0, 0.0]
            for way in (0, 1) if number % 2 else (1, 0):
                seconds[way] = await ways[way]
            if number >= 4:  # the first compile, and open the connection
                served.append(seconds[0])
                direct.append(seconds[1])
    await coordinator.close()
    added = median(a - b for a, b in zip(served, direct, strict=True))
    bound = BOUNDS_S[placement]
    name = f"overhead/{placement}"
    ours, theirs = median(served), median(direct)
    return [
        Record(f"{name}/ttft_p50", ours, "s", theirs, ours / theirs),
        Record(f"{name}/added_p50", added, "s", bound, added / bound),
    ]


async def freed(app: App, placement: str, requests: Sequence[Request]) -> Record:
    replica = serve.get_deployment_handle("Replica", APP)
    clock = asyncio.get_running_loop().time
    seconds = []
    async with session(60) as client:
        for _ in range(DEPARTURES):
            said = [Said() for _ in range(LEAVING)]
            bodies = [body_of(request, LONG, ignore_eos=True) for request in requests[:LEAVING]]
            reading = [
                asyncio.create_task(read(client, app.url, body, one))
                for body, one in zip(bodies, said, strict=True)
            ]
            async with asyncio.timeout(60):
                while not all(one.times_s for one in said):
                    await asyncio.sleep(0.01)
            for one in reading:
                one.cancel()
            begun = clock()
            await asyncio.gather(*reading, return_exceptions=True)
            await until(lambda: is_free(replica), 30.0, "their KV is free", every_s=0.01)
            seconds.append(clock() - begun)
    worst = max(seconds)
    name = f"overhead/{placement}/freed_worst"
    return Record(name, worst, "s", FREED_BOUND_S, worst / FREED_BOUND_S)


def is_free(replica: DeploymentHandle) -> bool:
    """Nobody is there, and no block has got lost."""
    state = replica.state.remote().result(timeout_s=10)
    kv = state["kv_blocks"]
    idle: bool = state["running"] == state["waiting"] == kv["used"] == 0
    return idle and kv["free"] + kv["cached"] == kv["total"]


class Bare:
    async def forget(self, names: Sequence[str]) -> None: ...


async def transport() -> list[Record]:
    fleet = await hosts("actor")
    (lane,) = fleet.lanes
    bare: ActorHandle = ray.remote(num_cpus=0)(Bare).remote()
    clock = asyncio.get_running_loop().time
    ours: list[float] = []
    rays: list[float] = []
    for _ in range(CALLS):
        begun = clock()
        await lane.host.forget(())
        ours.append(clock() - begun)
        begun = clock()
        await bare.forget.remote(())
        rays.append(clock() - begun)
    await fleet.close()
    ray.kill(bare)
    took, its = median(ours), median(rays)
    name, bound = "overhead/lane/transport", TRANSPORT_BOUND_S
    return [
        Record(f"{name}_p50", took, "s", bound, took / bound),
        Record(f"{name}_of_ray_p50", took, "s", its, took / its),
    ]


async def in_process() -> Coordinator:
    """With the application's target, drafter and policies."""
    fleet = await hosts("inline")
    estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
    policies = Policies(
        make_schedule("default"),
        make_selection("fixed"),
        make_speculation("fixed", calibrations=estimates.calibrations),
    )
    limits = Limits(kv_tokens=KV_TOKENS)
    return Coordinator(fleet.verifier, fleet.lanes, policies, estimates, limits)


async def hosts(drafter: Where) -> Fleet:
    target = TargetSpec(model_path(TARGET), torch.float32, KV_TOKENS)
    drafters = [DrafterSpec("tiny", checkpoint=model_path("tiny"), placement=drafter)]
    return await raise_fleet(target, drafters, cache_dir() / "profiles", Group("overhead"))


async def over_http(client: ClientSession, url: str, request: Request) -> float:
    said = await read(client, url, body_of(request, MAX_TOKENS), Said())
    if not said.complete:
        raise SystemExit(f"a request failed: {said.error}")
    return said.times_s[0] - said.begun_s


def body_of(request: Request, max_tokens: int, ignore_eos: bool = False) -> dict[str, Any]:
    return {
        "model": TARGET,
        "prompt": list(request.prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": ignore_eos,
    }


async def in_this(coordinator: Coordinator, number: int, request: Request) -> float:
    clock = asyncio.get_running_loop().time
    begun = clock()
    first_s = 0.0
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    async for _commit in coordinator.submit(str(number), request.prompt, params):
        first_s = first_s or clock() - begun
    return first_s


if __name__ == "__main__":
    main()
