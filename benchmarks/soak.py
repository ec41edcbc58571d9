"""Memory over time: `python -m benchmarks.soak [--seconds 600] [--json FILE]`.

Clients send streams without a pause, some of which go away in the middle; every process's memory
is sampled meanwhile. Names: soak/PROCESS/slope (MiB a minute over the second half, when caches
are full), soak/PROCESS/memory, soak/requests. Exits with 1 when a process grows.
"""

import asyncio
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import numpy as np
import psutil

from benchmarks.report import Record, parser, publish
from benchmarks.requests import mixed_requests
from benchmarks.serving.app import APP, App, running
from benchmarks.serving.streams import Said, read
from cluster.zoo import TARGET

PORT = 8172
CLIENTS = 12
SAMPLE_S = 2.0
LEAVES_EARLY = 0.2
"""The share of clients that go away after a few events."""
MOST_GROWTH = 1.0
"""MiB a minute that a process may seem to grow: allocators' noise."""
CONFIG: dict[str, Any] = {
    "target": {"dtype": "float32"},
    "drafters": [
        {"name": "tiny", "model": "zoo/tiny"},
        {"name": "tasks", "model": "zoo/tasks"},
        {"name": "ngram", "kind": "ngram"},
        {"name": "suffix", "kind": "suffix"},
    ],
    "limits": {"max_batch": 8, "max_waiting": 16},
}

Sample = tuple[float, float]
"""Seconds since the start, MiB."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=600.0)
    chosen = arguments.parse_args()
    with running(CONFIG, PORT) as app:
        samples, requests = asyncio.run(load(app, chosen.seconds))
    slopes = {name: slope(seen, chosen.seconds / 2) for name, seen in samples.items()}
    records = [Record("soak/requests", float(sum(requests.values())), "requests")]
    records += [Record(f"soak/{how}", float(n), "requests") for how, n in requests.items()]
    for name, value in slopes.items():
        records += [
            Record(f"soak/{name}/slope", value, "MiB/min"),
            Record(f"soak/{name}/memory", samples[name][-1][1], "MiB"),
        ]
    publish(records, chosen.json)
    sys.exit(0 if max(slopes.values()) <= MOST_GROWTH and not requests["failed"] else 1)


async def load(app: App, seconds: float) -> tuple[Mapping[str, list[Sample]], Counter[str]]:
    requests = mixed_requests(256, seed=4)
    rng = random.Random(0)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    counted: Counter[str] = Counter()

    async def client(number: int) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
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
        while True:
            for name, memory in (await loop.run_in_executor(None, memories, app)).items():
                samples[name].append((loop.time() - begun, memory))
            await asyncio.sleep(SAMPLE_S)

    watching = loop.create_task(watch())
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    watching.cancel()
    return samples, counted


async def one(http: httpx.AsyncClient, url: str, body: Mapping[str, Any], leaves: bool) -> str:
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
            sizes[f"{name}"] = psutil.Process(pid).memory_full_info().uss / 2**20
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
