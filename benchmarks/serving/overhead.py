"""Measures what serving adds to the coordinator: TTFT over HTTP, release of KV, calls to actors.

`python -m benchmarks.serving.overhead [--requests 100] [--json FILE]`.

Time to the first token of single requests, over HTTP and from the same coordinator in this
process, in turns; once with all hosts inline, once with hosts as Ray actors. Names:
overhead/PLACEMENT/ttft_p50 (`value`: over HTTP, `reference`: in process),
overhead/PLACEMENT/added_p50 (`reference`: the bound), overhead/PLACEMENT/freed_worst (from when
eight clients disconnect during their streams until all of their KV is free),
overhead/PLACEMENT/ingress_message and proxy_message (CPU time of these processes for each event of
a stream, which bounds how many replicas one application can have; cluster/plan/runs.py),
overhead/lane/transport_p50 (an empty call to a drafter actor) and
overhead/lane/transport_of_ray_p50 (the same; `reference`: such a call to a bare actor, in turns,
which is the machine's share). Exits with 1 when a bound is exceeded.
"""

import asyncio
from collections.abc import Sequence
from statistics import median
from typing import Any

import psutil
import ray
import torch
from aiohttp import ClientSession
from ray import serve
from ray.actor import ActorHandle
from ray.serve.handle import DeploymentHandle

from actors.coordinator.estimates import Estimates
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Limits, Policies
from actors.hosts.fleet import Fleet, start_fleet
from actors.hosts.spawn import Group
from benchmarks.processes import end_after_ray
from benchmarks.report import Record, parser, publish
from benchmarks.serving.app import APP, App, running, wait_until
from benchmarks.serving.local import target_config
from benchmarks.serving.requests import Request, mixed_requests
from benchmarks.serving.streams import ReceivedStream, read, session
from cluster.built_in_models import TARGET
from cluster.cache import cache_dir
from cluster.config.models import DrafterConfig, Placement
from engine.sampling.params import SamplingParams
from policies.catalogue import make_schedule, make_selection, make_speculation

PORT = 8173
BOUNDS_S = {"inline": 0.010, "actor": 0.020}
TRANSPORT_BOUND_S = 0.001
FREED_BOUND_S = 1.0
DISCONNECTING = 8
"""Clients that disconnect at once."""
DISCONNECTS = 10
CALLS = 200
WARM_UP = 4
"""Requests that compile and open the connection."""
MAX_TOKENS = 4
MESSAGES_S = 4.0
"""How long messages are counted."""
LONG_TOKENS = 1500
"""Output tokens of requests whose clients disconnect."""
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
    options = arguments.parse_args()
    torch.set_num_threads(1)
    requests = mixed_requests(options.requests + WARM_UP, seed=5)
    records = []
    for placement in BOUNDS_S:
        with running(config(placement), PORT) as app:
            records += asyncio.run(compare(app, placement, requests))
            records.append(asyncio.run(kv_release(app, placement, requests)))
            records += asyncio.run(message_cost(app, placement, requests))
            if placement == "actor":
                records += asyncio.run(transport())
    publish(records, options.json)
    bounds = ("added_p50", "freed_worst", "transport_p50")
    ratios = [record.ratio for record in records if record.name.endswith(bounds)]
    end_after_ray(0 if all(ratio is not None and ratio <= 1 for ratio in ratios) else 1)


async def compare(app: App, placement: str, requests: Sequence[Request]) -> list[Record]:
    """Time to first token, over HTTP and in this process."""
    coordinator = await local_coordinator()
    served: list[float] = []
    direct: list[float] = []
    async with session(60) as client:
        for number, request in enumerate(requests):
            ways = [http_ttft(client, app.url, request), local_ttft(coordinator, number, request)]
            seconds = [0.0, 0.0]
            for way in (0, 1) if number % 2 else (1, 0):
                seconds[way] = await ways[way]
            if number >= WARM_UP:
                served.append(seconds[0])
                direct.append(seconds[1])
    await coordinator.close()
    added = median(a - b for a, b in zip(served, direct, strict=True))
    name = f"overhead/{placement}"
    return [
        Record.over(median(direct), f"{name}/ttft_p50", median(served), "s"),
        Record.over(BOUNDS_S[placement], f"{name}/added_p50", added, "s"),
    ]


async def kv_release(app: App, placement: str, requests: Sequence[Request]) -> Record:
    """The longest time until the KV of clients that disconnect is free."""
    replica = serve.get_deployment_handle("Replica", APP)
    clock = asyncio.get_running_loop().time
    seconds = []
    async with session(60) as client:
        for _ in range(DISCONNECTS):
            streams = [ReceivedStream() for _ in range(DISCONNECTING)]
            bodies = [
                completion_body(request, LONG_TOKENS, ignore_eos=True)
                for request in requests[:DISCONNECTING]
            ]
            reading = [
                asyncio.create_task(read(client, app.url, body, stream))
                for body, stream in zip(bodies, streams, strict=True)
            ]
            async with asyncio.timeout(60):
                while not all(stream.times_s for stream in streams):
                    await asyncio.sleep(0.01)
            for task in reading:
                task.cancel()
            started = clock()
            await asyncio.gather(*reading, return_exceptions=True)
            await wait_until(lambda: kv_is_free(replica), 30.0, "all KV is free", every_s=0.01)
            seconds.append(clock() - started)
    name = f"overhead/{placement}/freed_worst"
    return Record.over(FREED_BOUND_S, name, max(seconds), "s")


async def message_cost(app: App, placement: str, requests: Sequence[Request]) -> list[Record]:
    """CPU time for each event of streams that all clients read at once."""
    processes = {
        name: [psutil.Process(actor.pid) for actor in app.actors() if part in actor.class_name]
        for name, part in (("ingress", "Ingress"), ("proxy", "Proxy"))
    }

    def spent_s() -> dict[str, float]:
        times = {name: [one.cpu_times() for one in own] for name, own in processes.items()}
        return {name: sum(one.user + one.system for one in own) for name, own in times.items()}

    streams = [ReceivedStream() for _ in range(DISCONNECTING)]
    async with session(60) as client:
        reading = [
            asyncio.create_task(
                read(client, app.url, completion_body(request, LONG_TOKENS, True), stream)
            )
            for request, stream in zip(requests, streams, strict=False)
        ]
        await asyncio.sleep(1.0)
        before, begun = spent_s(), sum(len(stream.times_s) for stream in streams)
        await asyncio.sleep(MESSAGES_S)
        after, ended = spent_s(), sum(len(stream.times_s) for stream in streams)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    return [
        Record(f"overhead/{placement}/{name}_message", (after[name] - own) / (ended - begun), "s")
        for name, own in before.items()
    ]


def kv_is_free(replica: DeploymentHandle) -> bool:
    """No request is left, and every block is free or cached."""
    state = replica.state.remote().result(timeout_s=10)
    kv = state["kv_blocks"]
    idle: bool = state["running"] == state["waiting"] == kv["used"] == 0
    return idle and kv["free"] + kv["cached"] == kv["total"]


class BareActor:
    """The cost of Ray's own actor call."""

    async def forget(self, names: Sequence[str]) -> None: ...


async def transport() -> list[Record]:
    """Empty calls to a drafter actor and to a bare one, in turns."""
    fleet = await load_hosts("actor")
    (lane,) = fleet.lanes
    bare: ActorHandle = ray.remote(num_cpus=0)(BareActor).remote()
    clock = asyncio.get_running_loop().time
    ours_s: list[float] = []
    bare_s: list[float] = []
    for _ in range(CALLS):
        started = clock()
        await lane.host.forget(())
        ours_s.append(clock() - started)
        started = clock()
        await bare.forget.remote(())
        bare_s.append(clock() - started)
    await fleet.close()
    ray.kill(bare)
    name = "overhead/lane/transport"
    return [
        Record.over(TRANSPORT_BOUND_S, f"{name}_p50", median(ours_s), "s"),
        Record.over(median(bare_s), f"{name}_of_ray_p50", median(ours_s), "s"),
    ]


async def local_coordinator() -> Coordinator:
    """In this process, with the application's target, drafter and policies."""
    fleet = await load_hosts("inline")
    estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
    policies = Policies(
        make_schedule("default"),
        make_selection("fixed"),
        make_speculation("fixed", calibrations=estimates.calibrations),
    )
    limits = Limits(kv_tokens=KV_TOKENS)
    return Coordinator(fleet.verifier, fleet.lanes, policies, estimates, limits)


async def load_hosts(drafter: Placement) -> Fleet:
    target = target_config(None, None, "float32")
    drafters = [DrafterConfig(name="tiny", model="zoo/tiny", placement=drafter)]
    return await start_fleet(target, drafters, cache_dir() / "profiles", Group("overhead"))


async def http_ttft(client: ClientSession, url: str, request: Request) -> float:
    stream = await read(client, url, completion_body(request, MAX_TOKENS), ReceivedStream())
    if not stream.complete:
        raise SystemExit(f"a request failed: {stream.error}")
    return stream.times_s[0] - stream.started_s


def completion_body(request: Request, max_tokens: int, ignore_eos: bool = False) -> dict[str, Any]:
    return {
        "model": TARGET,
        "prompt": list(request.prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": ignore_eos,
    }


async def local_ttft(coordinator: Coordinator, number: int, request: Request) -> float:
    clock = asyncio.get_running_loop().time
    started = clock()
    first_s = 0.0
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    async for _commit in coordinator.submit(str(number), request.prompt, params):
        first_s = first_s or clock() - started
    return first_s


if __name__ == "__main__":
    main()
