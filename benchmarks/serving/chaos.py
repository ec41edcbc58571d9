"""Measures how many streams stay complete and identical, and how long they pause, under faults.

`python -m benchmarks.serving.chaos [--rounds 10] [--faults NAME ...] [--json FILE]`.

24 concurrent streams, first undisturbed; then the same requests while one part is killed: a
drafter, the verifier, a tensor-parallel rank, the router, one replica of two or the only one, a
replica's node; or while a drafter or the verifier hangs. Every stream must end complete and equal
to the undisturbed one. With `--backend vllm` the target is on vLLM, where a rank is killed in any
case. Names:
chaos/FAULT/identical_share (excused near-ties included), chaos/FAULT/excused_share,
chaos/FAULT/recovery_s (the longest pause of a stream that was unfinished at the fault).

`poison_2` and `poison_1`: requests that raise inside the system or kill drafters, thrown in among
the streams of two replicas and of one; `poison_verifier`: a request that kills verifiers, thrown in
among those of one (benchmarks/serving/poison.py; native backend). Names: chaos/poison_N/
identical_share, answered_s, pause_s, verifiers_lost, drafters_lost.

Faults of the whole service, each in a `serve run` of its own: signals to it, Ray's processes on the
head killed, a lost replica, few files, a full folder, one client's long queue
(benchmarks/serving/whole_service.py); a config that cannot be served, a full cache, a clock that
is set back (benchmarks/serving/start_faults.py). Native backend. Names: chaos/NAME/problems.

Exits with 1 when a stream was lost or differed, or anything else was not as it must be.
"""

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import psutil

from benchmarks.processes import end_after_ray
from benchmarks.report import Record, parser, publish
from benchmarks.serving import start_faults, whole_service
from benchmarks.serving.app import App, running, wait_until
from benchmarks.serving.faults import FAULTS, HANGS, NODE_CPUS, Fault, Setting
from benchmarks.serving.poison import RAISING, VERIFIER_PROCESS, build_poisoned, drill
from benchmarks.serving.requests import mixed_requests
from benchmarks.serving.stream_identity import StreamIdentity
from benchmarks.serving.streams import ReceivedStream, read_all
from cluster.built_in_models import TARGET

PORT = 8171
STREAMS = 24
FAULT_AT_SHARE = 0.25
"""Share of all tokens received at which the fault is injected."""
MIN_UNFINISHED_SHARE = 0.5
"""Least share of streams that must be unfinished then."""
STREAM_S = 180.0
RECOVERY_S = 120.0


CASES = {**whole_service.CASES, **start_faults.CASES}
POISON = {
    "poison_2": (2, RAISING),
    "poison_1": (1, RAISING),
    "poison_verifier": (1, (VERIFIER_PROCESS,)),
}
"""Drills with poisoned requests: how many replicas each has, and their kinds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All streams of one fault in one round."""

    identical: int
    excused: int
    streams: int
    recovery_s: float


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--streams", type=int, default=STREAMS)
    names = [fault.name for fault in (*FAULTS, *HANGS)]
    arguments.add_argument("--faults", nargs="+", choices=[*names, *POISON, *CASES])
    arguments.add_argument("--backend", choices=("native", "vllm"), default="native")
    options = arguments.parse_args()
    drills, cases = (POISON, CASES) if options.backend == "native" else ({}, {})
    wanted = options.faults or [*names, *drills, *cases]
    if {*wanted} - {*names, *drills, *cases}:
        arguments.error("--backend vllm: only faults of drafters, verifiers, replicas and nodes")
    bodies = request_bodies(options.streams)
    identity = StreamIdentity()
    outcomes: dict[str, list[Outcome]] = {}
    settings: dict[Setting, list[Fault]] = {}
    for fault in (*FAULTS, *HANGS):
        if fault.name in wanted:
            settings.setdefault(fault.setting(options.backend), []).append(fault)
    for setting, faults in settings.items():
        with running(setting.args(), PORT, setting.replicas, NODE_CPUS) as app:
            expected = asyncio.run(run_undisturbed(app, setting, bodies))
            outcomes |= asyncio.run(
                run_rounds(app, setting, faults, options.rounds, bodies, expected, identity)
            )
    records = [record for fault, rounds in outcomes.items() for record in report(fault, rounds)]
    lost = any(o.identical < o.streams for rounds in outcomes.values() for o in rounds)
    for name, (replicas, kinds) in drills.items():
        if name in wanted:
            setting = Setting(1, options.backend, replicas)
            with running(setting.args(), PORT, replicas, NODE_CPUS, build_poisoned) as app:
                expected = asyncio.run(run_undisturbed(app, setting, bodies))
                drilled = asyncio.run(drill(app, bodies, expected, identity, kinds))
            print(f"{setting}, poisoned requests: {drilled}", flush=True)
            records += drilled.records(name)
            lost |= not drilled.passed
    for name, case in cases.items():
        if name in wanted:
            problems = asyncio.run(case())
            print(f"{name}: {'; '.join(problems) or 'as it must be'}", flush=True)
            records.append(Record(f"chaos/{name}/problems", len(problems), "problems"))
            lost |= bool(problems)
    publish(records, options.json)
    end_after_ray(1 if lost else 0)


async def run_rounds(
    app: App,
    setting: Setting,
    faults: Sequence[Fault],
    rounds: int,
    bodies: Sequence[Mapping[str, Any]],
    expected: Sequence[ReceivedStream],
    identity: StreamIdentity,
) -> dict[str, list[Outcome]]:
    """Injects one fault at a time, and waits for full recovery before the next one."""
    clock = asyncio.get_running_loop().time
    outcomes: dict[str, list[Outcome]] = {fault.name: [] for fault in faults}
    for number in range(rounds):
        for fault in faults:
            started = clock()
            outcome = await inject(app, fault, bodies, expected, identity)
            outcomes[fault.name].append(outcome)
            ended = clock()
            if fault.node:
                app.cluster.add_node(num_cpus=NODE_CPUS)
            await wait_until(
                lambda: setting.is_up(app), RECOVERY_S, f"all hosts are back after {fault.name}"
            )
            print(
                f"round {number}, {fault.name}: {outcome.identical} of {outcome.streams} identical,"
                f" {outcome.excused} excused; streams pause {outcome.recovery_s:.1f} s at most, end"
                f" after {ended - started:.1f} s, all is back {clock() - ended:.1f} s later",
                flush=True,
            )
    return outcomes


def request_bodies(count: int) -> list[dict[str, Any]]:
    """64 to 128 tokens each, greedy and sampled, some with a frequency penalty."""
    bodies = []
    for number, request in enumerate(mixed_requests(count, seed=3)):
        bodies.append(
            {
                "model": TARGET,
                "prompt": list(request.prompt),
                "max_tokens": 64 + 64 * number // max(1, count - 1),
                "temperature": float(number % 2),
                "frequency_penalty": 0.5 if number % 3 == 0 else 0.0,
                "seed": number,
                "ignore_eos": True,
            }
        )
    return bodies


async def run_undisturbed(
    app: App, setting: Setting, bodies: Sequence[Mapping[str, Any]]
) -> list[ReceivedStream]:
    started = time.monotonic()
    await wait_until(lambda: setting.is_up(app), RECOVERY_S, "all hosts are up")
    streams = await read_all(app.url, bodies, STREAM_S)
    for stream in streams:
        if not stream.complete:
            raise SystemExit(f"an undisturbed stream failed: {stream.error}")
    print(f"{setting}: undisturbed streams {time.monotonic() - started:.1f} s", flush=True)
    return streams


async def inject(
    app: App,
    fault: Fault,
    bodies: Sequence[Mapping[str, Any]],
    expected: Sequence[ReceivedStream],
    identity: StreamIdentity,
) -> Outcome:
    victim = next(actor for actor in app.actors() if fault.matches(actor))
    fault_at = FAULT_AT_SHARE * sum(len(stream.token_ids) for stream in expected)
    injected: list[tuple[float, list[ReceivedStream]]] = []

    def progress(streams: Sequence[ReceivedStream]) -> None:
        if injected or sum(len(stream.token_ids) for stream in streams) < fault_at:
            return
        unfinished = [stream for stream in streams if not stream.complete]
        injected.append((asyncio.get_running_loop().time(), unfinished))
        if fault.node:
            node = next(n for n in app.cluster.worker_nodes if n.node_id == victim.node)
            asyncio.get_running_loop().run_in_executor(
                None, lambda: app.cluster.remove_node(node, allow_graceful=False)
            )
        elif fault.rank:
            kill_rank(victim.pid)
        else:
            os.kill(victim.pid, signal.SIGSTOP if fault.hangs else signal.SIGKILL)

    streams = await read_all(app.url, bodies, STREAM_S, progress)
    if not injected:
        raise SystemExit(f"{fault.name}: the streams ended before the fault")
    injected_s, unfinished = injected[0]
    if len(unfinished) < MIN_UNFINISHED_SHARE * len(streams):
        raise SystemExit(f"{fault.name}: only {len(unfinished)} streams were unfinished")
    await wait_until(
        lambda: all(actor.pid != victim.pid for actor in app.actors()), RECOVERY_S, "a victim dies"
    )
    verdicts = [
        identity(body, undisturbed, stream)
        for body, undisturbed, stream in zip(bodies, expected, streams, strict=True)
    ]
    return Outcome(
        identical=sum(verdict is not None for verdict in verdicts),
        excused=sum(verdict is True for verdict in verdicts),
        streams=len(streams),
        recovery_s=max(stream.longest_pause_s(injected_s) for stream in unfinished),
    )


def kill_rank(verifier: int) -> None:
    """Kills the largest child of vLLM's process: each of its ranks holds a share of the model."""
    children = psutil.Process(verifier).children(recursive=True)
    max(children, key=lambda child: child.memory_info().rss).kill()


def report(fault: str, outcomes: Sequence[Outcome]) -> list[Record]:
    streams = sum(outcome.streams for outcome in outcomes)
    identical = sum(outcome.identical for outcome in outcomes) / streams
    excused = sum(outcome.excused for outcome in outcomes) / streams
    recovery = mean(outcome.recovery_s for outcome in outcomes)
    return [
        Record(f"chaos/{fault}/identical_share", identical, "share"),
        Record(f"chaos/{fault}/excused_share", excused, "share"),
        Record(f"chaos/{fault}/recovery_s", recovery, "s"),
    ]


if __name__ == "__main__":
    main()
