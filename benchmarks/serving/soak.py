"""Memory over time: `python -m benchmarks.serving.soak [--seconds 600] [--json FILE]`.

Clients send streams without a pause, some of which go away in the middle; every process's memory
is sampled meanwhile, and judged by its slope over these seconds. They come behind a warm-up of four
minutes, in which KV, prefix and suffix memories fill up to their bounds (the suffix drafter's is
set low for that). Names: soak/PROCESS/slope (MiB a minute), soak/PROCESS/memory, soak/requests.
Exits with 1 when a process grows or a request fails; a run of less than two minutes shows that it
works: it has no warm-up, and judges no growth.
"""

import asyncio
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psutil
from aiohttp import ClientSession

from benchmarks.report import Record, parser, publish
from benchmarks.serving.app import APP, App, running, small_args
from benchmarks.serving.requests import mixed_requests
from benchmarks.serving.streams import Said, read, session
from cluster.zoo import TARGET

PORT = 8172
CLIENTS = 12
SAMPLE_S = 2.0
LEAVES_EARLY = 0.2
"""The share of clients that go away after a few events."""
WARM_UP_S = 240.0
PAST_TOKENS = 20_000
"""So few that outputs fill them within the warm-up: what grows behind it is a leak."""
LEAST_JUDGED_S = 120.0
SHOWN_S = 30.0
MOST_GROWTH = 1.0
"""MiB a minute that a process may seem to grow: allocators' noise."""

Sample = tuple[float, float]
"""Seconds since the start, MiB."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=600.0)
    chosen = arguments.parse_args()
    judged = chosen.seconds >= LEAST_JUDGED_S
    warm_up_s = WARM_UP_S if judged else 0.0
    with running(args(), PORT) as app:
        samples, requests = asyncio.run(load(app, warm_up_s + chosen.seconds))
    since_s = warm_up_s or chosen.seconds / 2
    slopes = {name: slope(seen, since_s) for name, seen in samples.items()}
    records = [Record("soak/requests", float(sum(requests.values())), "requests")]
    records += [Record(f"soak/{how}", float(n), "requests") for how, n in requests.items()]
    for name, value in slopes.items():
        records += [
            Record(f"soak/{name}/slope", value, "MiB/min"),
            Record(f"soak/{name}/memory", samples[name][-1][1], "MiB"),
        ]
    publish(records, chosen.json)
    grows = judged and max(slopes.values()) > MOST_GROWTH
    sys.exit(1 if grows or requests["failed"] else 0)


def args() -> dict[str, Any]:
    args = small_args()
    args["drafters"].append({"name": "suffix", "kind": "suffix", "past_tokens": PAST_TOKENS})
    args["limits"] = {"max_batch": 8, "max_waiting": 16}
    return args


async def load(app: App, seconds: float) -> tuple[Mapping[str, list[Sample]], Counter[str]]:
    requests = mixed_requests(256, seed=4)
    rng = random.Random(0)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    counted: Counter[str] = Counter()

    async def client(number: int) -> None:
        async with session(60) as http:
            while loop.time() - begun < seconds:
                body = {
                    "model": TARGET,
                    "prompt": list(rng.choice(requests).prompt),
                    "max_tokens": rng.randint(16, 128),
                    "temperature": float(number % 2),
                }
                counted[await one(http, app.url, body, leaves=rng.random() < LEAVES_EARLY)] += 1

    samples: dict[str, list[Sample]] = defaultdict(list)

    async def watch() -> None:
        shown_s = 0.0
        while True:
            now = loop.time() - begun
            seen = await loop.run_in_executor(None, memories, app)
            for name, memory in seen.items():
                samples[name].append((now, memory))
            if now >= shown_s:
                shown_s += SHOWN_S
                sizes = ", ".join(f"{name} {memory:.0f}" for name, memory in seen.items())
                print(f"{now:.0f} s, {sum(counted.values())} requests; MiB: {sizes}", flush=True)
            await asyncio.sleep(SAMPLE_S)

    watching = loop.create_task(watch())
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    watching.cancel()
    return samples, counted


async def one(http: ClientSession, url: str, body: Mapping[str, Any], leaves: bool) -> str:
    said = Said()
    reading = asyncio.get_running_loop().create_task(read(http, url, body, said))
    if leaves:
        while not said.times_s and not reading.done():
            await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return "left"
    await reading
    return "complete" if said.complete else "failed"


def memories(app: App) -> dict[str, float]:
    """MiB of each process of the application that is not shared with others."""
    names = {actor.pid: label(actor.name, actor.kind) for actor in app.actors()}
    sizes = {}
    for pid, name in names.items():
        try:
            sizes[name] = psutil.Process(pid).memory_full_info().uss / 2**20
        except psutil.NoSuchProcess:
            continue
    return sizes


def label(name: str, kind: str) -> str:
    """`spindle:REPLICA:tiny:0` is tiny; Serve's own actors go by their class."""
    return name.split(":")[2] if name.startswith(f"{APP}:") else kind.split(":")[-1]


def slope(samples: Sequence[Sample], since_s: float) -> float:
    times, sizes = np.array([one for one in samples if one[0] >= since_s]).T
    return float(np.polyfit(times / 60, sizes, 1)[0])


if __name__ == "__main__":
    main()
