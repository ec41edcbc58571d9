"""Measures the growth of every process's memory under load, hostile requests among it.

`python -m benchmarks.serving.soak [--seconds 600] [--json FILE]`.

Clients send requests without pause; some disconnect during their streams, and some send malformed
bodies: fields with extreme values or of wrong types, and changed bytes, which must not be answered
with a server's error. Each process's memory
is sampled, and its slope over these seconds is compared with a bound. Before them is a warm-up of
four minutes, in which KV, prefix and suffix memories fill up to their limits (the suffix drafter's
is set low for that). Names: soak/PROCESS/slope, soak/PROCESS/memory, soak/requests, and
soak/OUTCOME by how requests ended. Exits with 1 when a process grows or a request fails. A run of
less than two minutes has no warm-up and does not check growth.
"""

import asyncio
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psutil
from aiohttp import ClientSession

from benchmarks.report import Record, parser, publish
from benchmarks.serving.app import APP, Actor, App, running, small_args
from benchmarks.serving.requests import mixed_requests
from benchmarks.serving.streams import ReceivedStream, read, session
from cluster.built_in_models import TARGET

PORT = 8172
CLIENTS = 12
SAMPLE_S = 2.0
DISCONNECT_SHARE = 0.2
"""Share of the valid requests whose client disconnects after the first event."""
HOSTILE_SHARE = 0.4
"""Share of requests with a malformed body."""
MOST_TOKENS = 8
"""The longest output if a malformed body happens to be valid."""
VALUES: Sequence[Any] = (
    *(None, True, -1, 0, 0.5, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf")),
    *("", "x" * 20_000, "\ud800", "\x00", [], [[]], [None], [5] * 3000, {}, {"": None}),
    *({"json": {"$ref": "#"}}, {"json": {"type": ["string", "nothing"]}}, {"json": {"not": {}}}),
    *({"regex": "(" * 500}, {"regex": "(a*)*" * 9}, {"grammar": "root ::= root"}, {"choice": []}),
)
FIELDS = (
    *("model", "prompt", "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "logit_bias", "stop", "stop_token_ids", "seed"),
    *("min_tokens", "logprobs", "echo"),
    *("structured_outputs", "response_format", "stream_options", "slo", "priority", "spindle"),
    *("speculation", "messages", "tools", "unknown"),
)
PATHS = ("completions", "completions", "chat/completions", "responses")
WARM_UP_S = 240.0
PAST_TOKENS = 20_000
"""Few enough that outputs fill the suffix memory within the warm-up: growth after it is a leak."""
MIN_CHECKED_S = 120.0
PRINT_S = 30.0
MAX_SLOPE = 1.0
"""MiB a minute, the noise of allocators."""

Sample = tuple[float, float]
"""Seconds since the start, MiB."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=600.0)
    options = arguments.parse_args()
    checked = options.seconds >= MIN_CHECKED_S
    warm_up_s = WARM_UP_S if checked else 0.0
    with running(args(), PORT) as app:
        samples, requests = asyncio.run(run_load(app, warm_up_s + options.seconds))
    since_s = warm_up_s or options.seconds / 2
    slopes = {name: slope(of_process, since_s) for name, of_process in samples.items()}
    records = [Record("soak/requests", float(sum(requests.values())), "requests")]
    records += [Record(f"soak/{outcome}", float(n), "requests") for outcome, n in requests.items()]
    for name, value in slopes.items():
        records += [
            Record(f"soak/{name}/slope", value, "MiB/min"),
            Record(f"soak/{name}/memory", samples[name][-1][1], "MiB"),
        ]
    publish(records, options.json)
    grows = checked and max(slopes.values()) > MAX_SLOPE
    sys.exit(1 if grows or requests["failed"] else 0)


def args() -> dict[str, Any]:
    args = small_args()
    args["drafters"].append({"name": "suffix", "kind": "suffix", "past_tokens": PAST_TOKENS})
    args["limits"] = {"max_batch": 8, "max_waiting": 16}
    return args


async def run_load(app: App, seconds: float) -> tuple[Mapping[str, list[Sample]], Counter[str]]:
    """Memory samples by process, and numbers of requests by outcome."""
    requests = mixed_requests(256, seed=4)
    rng = random.Random(0)
    loop = asyncio.get_running_loop()
    started = loop.time()
    outcomes: Counter[str] = Counter()

    async def client(number: int) -> None:
        async with session(60) as http:
            while loop.time() - started < seconds:
                body = {
                    "model": TARGET,
                    "prompt": list(rng.choice(requests).prompt),
                    "max_tokens": rng.randint(16, 128),
                    "temperature": float(number % 2),
                }
                if rng.random() < HOSTILE_SHARE:
                    outcomes[await send_hostile(http, app.url, body, rng)] += 1
                    continue
                disconnects = rng.random() < DISCONNECT_SHARE
                outcomes[await send(http, app.url, body, disconnects)] += 1

    samples: dict[str, list[Sample]] = defaultdict(list)

    async def sample() -> None:
        printed_s = 0.0
        while True:
            now = loop.time() - started
            memory_of = await loop.run_in_executor(None, process_memory, app)
            for name, memory in memory_of.items():
                samples[name].append((now, memory))
            if now >= printed_s:
                printed_s += PRINT_S
                sizes = ", ".join(f"{name} {memory:.0f}" for name, memory in memory_of.items())
                print(f"{now:.0f} s, {sum(outcomes.values())} requests; MiB: {sizes}", flush=True)
            await asyncio.sleep(SAMPLE_S)

    sampling = loop.create_task(sample())
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    sampling.cancel()
    return samples, outcomes


async def send(http: ClientSession, url: str, body: Mapping[str, Any], disconnects: bool) -> str:
    """Returns the outcome: `left` (disconnected), `complete` or `failed`."""
    stream = ReceivedStream()
    reading = asyncio.get_running_loop().create_task(read(http, url, body, stream))
    if disconnects:
        while not stream.times_s and not reading.done():
            await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return "left"
    await reading
    return "complete" if stream.complete else "failed"


def hostile_body(body: Mapping[str, Any], rng: random.Random) -> bytes:
    """The body with a few fields of other values, and every third with changed bytes."""
    changed = {name: rng.choice(VALUES) for name in rng.sample(FIELDS, rng.randint(1, 4))}
    text = json.dumps({**body, "max_tokens": MOST_TOKENS, **changed}).encode()
    if rng.random() < 1 / 3:
        start = rng.randrange(len(text))
        end = start + rng.randrange(20)
        text = text[:start] + rng.choice((b"", b'"', b"[" * 5000, b"9" * 5000)) + text[end:]
    return text


async def send_hostile(
    http: ClientSession, url: str, body: Mapping[str, Any], rng: random.Random
) -> str:
    """Returns `answered` or, after a server's error other than that it is full, `failed`."""
    text = hostile_body(body, rng)
    headers = {"Content-Type": "application/json"}
    address = f"{url}/v1/{rng.choice(PATHS)}"
    async with http.post(address, data=text, headers=headers) as response:
        answer = await response.read()
        if response.status < 500 or (response.status == 503 and "Retry-After" in response.headers):
            return "answered"
    print(f"{response.status} {answer[:500]!r} to {text[:2000]!r}", flush=True)
    return "failed"


def process_memory(app: App) -> dict[str, float]:
    """MiB of each process of the application, without what it shares with others."""
    names = {actor.pid: process_name(actor) for actor in app.actors()}
    sizes = {}
    for pid, name in names.items():
        try:
            sizes[name] = psutil.Process(pid).memory_full_info().uss / 2**20
        except psutil.NoSuchProcess:
            continue
    return sizes


def process_name(actor: Actor) -> str:
    """`tiny` of the host `spindle:REPLICA:tiny:0`; the class of Serve's own actors."""
    if actor.name.startswith(f"{APP}:"):
        return actor.name.split(":")[2]
    return actor.class_name.split(":")[-1]


def slope(samples: Sequence[Sample], since_s: float) -> float:
    """MiB a minute, of the samples after that time."""
    times, sizes = np.array([sample for sample in samples if sample[0] >= since_s]).T
    return float(np.polyfit(times / 60, sizes, 1)[0])


if __name__ == "__main__":
    main()
