"""Faults of the whole service, each in a `serve run` of its own, as `make serve` has it: what
clients, `/health`, the terminal and the exit status say. benchmarks.serving.chaos runs them by
name; each returns what was wrong."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import ClientError

from benchmarks.serving.requests import mixed_requests
from benchmarks.serving.serve_run import CALL_S, DRAIN_S, START_S, Service, served, until
from benchmarks.serving.streams import ReceivedStream, read, read_all, session
from cluster.built_in_models import TARGET

STREAMS = 6
TOKENS = 120
ENDS_S = 15.0
"""Within which `serve run` ends when one of Ray's processes is killed, and all streams."""
HEALTH_S = 10.0
"""Within which `/health` no longer says that all is well."""
REPLACED_S = 60.0
FILES = 256
CONNECTIONS = 300
HELD = 48
"""Streams of one client, of which three times as many run or wait as there are slots."""
HELD_TOKENS = 400
SHORT_S = 30.0
FULL_S = 20.0
"""For how long Ray's folder stays full."""


def bodies_of(streams: int = STREAMS, tokens: int = TOKENS) -> list[dict[str, Any]]:
    fields = {"model": TARGET, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return [{**fields, "prompt": list(one.prompt)[-64:]} for one in mixed_requests(streams, seed=3)]


async def start_streams(
    service: Service, bodies: Sequence[Mapping[str, Any]]
) -> tuple[list[ReceivedStream], asyncio.Future[Any]]:
    """Returns when one has tokens."""
    streams = [ReceivedStream() for _ in bodies]

    async def received(body: Mapping[str, Any], stream: ReceivedStream) -> None:
        try:
            async with session(START_S) as client:
                await read(client, service.url, body, stream)
        except (ClientError, TimeoutError) as error:
            stream.error = type(error).__name__

    reading = asyncio.gather(*map(received, bodies, streams))
    while not any(stream.token_ids for stream in streams):
        await asyncio.sleep(0.05)
    return streams, reading


async def stop(number: signal.Signals, environment: Mapping[str, str] | None = None) -> list[str]:
    """What is under way at the signal ends, other requests are refused, the exit status is 0."""
    async with served(environment=environment) as service:
        bodies = bodies_of()
        expected = await read_all(service.url, bodies, START_S)
        streams, reading = await start_streams(service, bodies)
        service.process.send_signal(number)
        await asyncio.sleep(1)
        status, retry_after, _ = await service.ask("/v1/completions", bodies[0])
        service.expect(status == 503 and retry_after != "", f"a new request: {status}")
        health, _, _ = await service.ask("/health")
        service.expect(health == 503, f"/health: {health}")
        await asyncio.wait_for(reading, DRAIN_S)
        same = sum(a.token_ids == b.token_ids for a, b in zip(expected, streams, strict=True))
        service.expect(same == STREAMS, f"{same} of {STREAMS} streams whole and identical")
        status = await asyncio.to_thread(service.process.wait, 60)
        service.expect(status == 0, f"exit status {status}")
        service.expect("stack trace" not in service.terminal, "a stack on the terminal")
        return service.problems


async def lose(part: str) -> list[str]:
    """`serve run` ends with one line, and nobody waits in silence."""
    async with served() as service:
        streams, reading = await start_streams(service, bodies_of())
        service.child(part).kill()
        killed = time.monotonic()
        well_s = 0.0
        while service.process.poll() is None and time.monotonic() < killed + 3 * ENDS_S:
            asked = time.monotonic() - killed
            if (await service.ask("/health"))[0] == 200:
                well_s = asked
            await asyncio.sleep(0.3)
        ended_s = time.monotonic() - killed
        print(f"  {part}: /health is well until {well_s:.1f} s, end after {ended_s:.1f} s")
        service.expect(well_s <= HEALTH_S, f"/health is well until {well_s:.1f} s")
        service.expect(ended_s <= ENDS_S, f"end: {ended_s:.1f} s")
        status = service.process.poll()
        service.expect(status == 1, f"exit status {status}")
        await asyncio.sleep(1)
        with suppress(TimeoutError):
            await asyncio.wait_for(reading, CALL_S)
        service.expect(all(one.finish or one.error for one in streams), "a stream hangs")
        lines = service.terminal.count("Spindle: Ray's")
        service.expect(lines == 1, f"{lines} lines about it on the terminal")
        left = [one for one in service.family if one.is_running() and one.status() != "zombie"]
        service.expect(not left, f"left over: {left}")
        return service.problems


async def lose_front(part: str) -> list[str]:
    """Streams through it break off, none hangs, and the next one is whole."""
    async with served() as service:
        bodies = bodies_of()
        expected = await read_all(service.url, bodies, START_S)
        streams, reading = await start_streams(service, bodies)
        service.child(part).kill()
        await asyncio.wait_for(reading, CALL_S)
        service.expect(all(one.finish or one.error for one in streams), "a stream hangs")
        broken = sum(one.error is not None for one in streams)
        seconds = await until(service.is_healthy, REPLACED_S, "another one")
        print(f"  {broken} of {STREAMS} streams break off; another one after {seconds:.1f} s")
        again = await read_all(service.url, bodies, START_S)
        same = sum(a.token_ids == b.token_ids for a, b in zip(expected, again, strict=True))
        service.expect(same == STREAMS, f"{same} of {STREAMS} later streams identical")
        return service.problems


async def lose_replica() -> list[str]:
    """`/health` says so until there is another one."""
    async with served() as service:
        service.child("ServeReplica:spindle:Replica").kill()
        said: list[str] = []

        async def back() -> bool:
            status, _, text = await service.ask("/health")
            said.append(text)
            return status == 200 and len(said) > 2

        seconds = await until(back, REPLACED_S, "another replica")
        print(f"  replaced after {seconds:.1f} s; /health: {said[len(said) // 2]}")
        service.expect(any("is lost" in text for text in said), f"/health: {said[0]}")
        return service.problems


async def few_files() -> list[str]:
    """Connections above what the limit of open files allows are answered with 503."""
    async with served(["bash", "-c", f'ulimit -n {FILES}; exec "$@"', "_"]) as service:
        answers = await asyncio.gather(*(service.ask("/health") for _ in range(CONNECTIONS)))
        statuses = [status for status, _, _ in answers]
        counts = {status: statuses.count(status) for status in set(statuses)}
        print(f"  {CONNECTIONS} connections: {counts}")
        service.expect(counts.keys() == {200, 503}, f"answers: {counts}")
        service.expect(f"may open {FILES} files" in service.terminal, "no line at the start")
        return service.problems


async def full_folder() -> list[str]:
    """A replica that dies while Ray's folder is full is replaced soon after there is room."""
    mounted = 'mount -t tmpfs -o size=1g none "$RAY_TMPDIR"; exec "$@"'
    async with served(["unshare", "-m", "bash", "-c", mounted, "_"]) as service:
        inside = Path(f"/proc/{service.process.pid}/root{service.folder}/ray/filling")
        with inside.open("wb", buffering=0) as filling, suppress(OSError):
            while True:
                filling.write(bytes(2**20))
        before = len(service.terminal.splitlines())
        service.child("ServeReplica:spindle:Replica").kill()
        await asyncio.sleep(FULL_S)
        service.expect(not await service.is_healthy(), "it is not full")
        inside.unlink()
        seconds = await until(service.is_healthy, 2 * REPLACED_S, "another replica")
        lines = service.terminal.splitlines()[before:]
        print(f"  replaced {seconds:.1f} s after there was room; {len(lines)} lines meanwhile")
        service.expect(seconds < REPLACED_S, f"replaced after {seconds:.1f} s")
        return service.problems


async def own_share() -> list[str]:
    """A client that holds many long streams gets two tokens more, or an answer of 429."""
    async with served() as service:
        _, reading = await start_streams(service, bodies_of(HELD, HELD_TOKENS))
        asked = time.monotonic()
        (short,) = await read_all(service.url, bodies_of(1, 2), START_S)
        seconds = time.monotonic() - asked
        print(f"  two tokens after {seconds:.1f} s; {short.error}")
        service.expect(seconds < SHORT_S, f"two tokens after {seconds:.1f} s")
        reading.cancel()
        await asyncio.wait([reading])
        return service.problems


CASES: Mapping[str, Callable[[], Coroutine[Any, Any, list[str]]]] = {
    "stop_sigterm": partial(stop, signal.SIGTERM),
    "stop_plain": partial(stop, signal.SIGTERM, {}),
    "stop_sigint": partial(stop, signal.SIGINT),
    "raylet": partial(lose, "raylet/raylet"),
    "agent": partial(lose, "dashboard/agent.py"),
    "gcs": partial(lose, "gcs/gcs_server"),
    "ingress": partial(lose_front, "ServeReplica:spindle:Ingress"),
    "proxy": partial(lose_front, "ProxyActor"),
    "lost_replica": lose_replica,
    "few_files": few_files,
    "full_folder": full_folder,
    "own_share": own_share,
}
