"""Faults under load.

`python -m benchmarks.serving.chaos [--rounds 10] [--faults NAME ...] [--json FILE]`.
With `--backend vllm` the target is on vLLM; its ranks are no parts that could be killed alone.

24 concurrent streams, first undisturbed; then the same streams while one part is killed: a
drafter, the verifier, a tensor-parallel rank, the router, a replica, a replica's node. Every
stream must end complete and equal to the undisturbed one. Names: chaos/FAULT/identical_share (with
excused near-ties), chaos/FAULT/excused_share, chaos/FAULT/recovery_s (the longest that a stream
that was under way then had to wait for its next tokens). Exits with 1 when a stream was lost or
differed.
"""

import asyncio
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import httpx

from benchmarks.processes import end_after_ray
from benchmarks.report import Record, parser, publish
from benchmarks.serving.app import APP, Actor, App, running, small_args, until
from benchmarks.serving.judge import Judge
from benchmarks.serving.requests import mixed_requests
from benchmarks.serving.streams import Said, read, session
from cluster.zoo import TARGET

PORT = 8171
STREAMS = 24
KILL_AT = 0.25
"""The fault strikes when so much of all tokens has come."""
UNFINISHED = 0.5
"""A fault counts only if so many of the streams were still under way."""
STREAM_S = 180.0
RECOVERY_S = 120.0
NODE_CPUS = 2


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    victim: re.Pattern[str]
    """Of an actor's name or class."""
    node: bool = False
    """Takes the victim's whole node."""
    ranks: int = 1
    """Of each target that it strikes at."""

    def hits(self, actor: Actor) -> bool:
        return bool(self.victim.search(actor.name) or self.victim.search(actor.kind))


REPLICA = re.compile(r"^SERVE_REPLICA::spindle#Replica#")
ROUTER = re.compile(r"Router")
FAULTS = (
    Fault("drafter", re.compile(r"^spindle:.*:tiny:")),
    Fault("verifier", re.compile(r"^spindle:.*:verifier:")),
    Fault("router", ROUTER),
    Fault("replica", REPLICA),
    Fault("node", REPLICA, node=True),
    Fault("tp_rank", re.compile(r"^spindle:.*:verifier/rank1:"), ranks=2),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the faults of a series strike at."""

    ranks: int
    backend: str

    @property
    def replicas(self) -> int:
        """Only whole targets need another one beside them: ranks take all streams with them."""
        return 2 if self.ranks == 1 else 1

    def args(self) -> dict[str, Any]:
        args = small_args()
        args["target"] |= {
            "backend": self.backend,
            "tensor_parallel": self.ranks,
            # A share so large that every replica has a worker node to itself (serving/app.py).
            "cpus": NODE_CPUS / 2 / self.ranks,
            "kv_tokens": 16_384,
        }
        if self.backend == "vllm":  # without compilation it is back in a third of the time
            args["target"]["engine_args"] = {"enforce_eager": True}
        # Under our own policies drafting may not pay for so small a target.
        args["policies"] = {"selection": {"name": "lbss"}, "speculation": {"name": "fixed"}}
        args["scaling"] = {"min_replicas": self.replicas, "max_replicas": self.replicas}
        return args

    def is_up(self, app: App) -> bool:
        """All replicas serve, with all their hosts, and the router is there."""
        actors = app.actors()
        hosts = sum(actor.name.startswith(f"{APP}:") for actor in actors)
        drafters = 2
        return (
            hosts == self.replicas * (drafters + self.ranks)
            and app.replica_states() == {"RUNNING": self.replicas}
            and any(ROUTER.search(actor.name) or ROUTER.search(actor.kind) for actor in actors)
            and _healthy(app.url)
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    identical: int
    excused: int
    streams: int
    recovery_s: float


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--streams", type=int, default=STREAMS)
    names = [fault.name for fault in FAULTS]
    arguments.add_argument("--faults", nargs="+", choices=names)
    arguments.add_argument("--backend", choices=("native", "vllm"), default="native")
    chosen = arguments.parse_args()
    strikable = [one for one in FAULTS if chosen.backend == "native" or one.ranks == 1]
    wanted = chosen.faults or [one.name for one in strikable]
    if len(wanted) > sum(one.name in wanted for one in strikable):
        arguments.error("--faults tp_rank: vLLM's ranks are no parts that could be killed alone")
    bodies = requests(chosen.streams)
    judge = Judge()
    outcomes: dict[str, list[Outcome]] = {}
    for ranks in (1, 2):
        faults = [one for one in strikable if one.ranks == ranks and one.name in wanted]
        if faults:
            setting = Setting(ranks, chosen.backend)
            with running(setting.args(), PORT, setting.replicas, NODE_CPUS) as app:
                outcomes |= asyncio.run(series(app, setting, faults, chosen.rounds, bodies, judge))
    publish(
        [record for name, seen in outcomes.items() for record in report(name, seen)], chosen.json
    )
    lost = any(one.identical < one.streams for seen in outcomes.values() for one in seen)
    end_after_ray(1 if lost else 0)


async def series(
    app: App,
    setting: Setting,
    faults: Sequence[Fault],
    rounds: int,
    bodies: Sequence[Mapping[str, Any]],
    judge: Judge,
) -> dict[str, list[Outcome]]:
    """All rounds of the faults in one setting, one fault at a time: each strikes at a whole
    system."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    await until(lambda: setting.is_up(app), RECOVERY_S, "all hosts are up")
    calm = await undisturbed(app, bodies)
    print(f"{setting}: undisturbed streams {clock() - begun:.1f} s", flush=True)
    outcomes: dict[str, list[Outcome]] = {fault.name: [] for fault in faults}
    for number in range(rounds):
        for fault in faults:
            begun = clock()
            outcome = await strike(app, fault, bodies, calm, judge)
            outcomes[fault.name].append(outcome)
            ended = clock()
            if fault.node:
                app.cluster.add_node(num_cpus=NODE_CPUS)
            await until(lambda: setting.is_up(app), RECOVERY_S, f"all is back after {fault.name}")
            print(
                f"round {number}, {fault.name}: {outcome.identical} of {outcome.streams} identical,"
                f" {outcome.excused} excused; streams wait {outcome.recovery_s:.1f} s at most, end"
                f" after {ended - begun:.1f} s, all is back {clock() - ended:.1f} s later",
                flush=True,
            )
    return outcomes


def requests(count: int) -> list[dict[str, Any]]:
    """64 to 128 tokens each, greedy and sampled, some with penalties."""
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


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


async def undisturbed(app: App, bodies: Sequence[Mapping[str, Any]]) -> list[Said]:
    said = await under_way(app.url, bodies, lambda _said: None)
    for one in said:
        if not one.complete:
            raise SystemExit(f"an undisturbed stream failed: {one.error}")
    return said


async def under_way(
    url: str, bodies: Sequence[Mapping[str, Any]], progress: Callable[[list[Said]], None]
) -> list[Said]:
    said = [Said() for _ in bodies]
    async with session(STREAM_S) as client:
        await asyncio.gather(
            *(
                read(client, url, body, one, lambda: progress(said))
                for body, one in zip(bodies, said, strict=True)
            )
        )
    return said


async def strike(
    app: App,
    fault: Fault,
    bodies: Sequence[Mapping[str, Any]],
    calm: Sequence[Said],
    judge: Judge,
) -> Outcome:
    victim = next(actor for actor in app.actors() if fault.hits(actor))
    due = KILL_AT * sum(len(one.token_ids) for one in calm)
    struck: list[tuple[float, list[Said]]] = []

    def progress(said: list[Said]) -> None:
        if struck or sum(len(one.token_ids) for one in said) < due:
            return
        unfinished = [one for one in said if not one.complete]
        struck.append((asyncio.get_running_loop().time(), unfinished))
        if fault.node:
            node = next(n for n in app.cluster.worker_nodes if n.node_id == victim.node)
            asyncio.get_running_loop().run_in_executor(
                None, lambda: app.cluster.remove_node(node, allow_graceful=False)
            )
        else:
            os.kill(victim.pid, signal.SIGKILL)

    said = await under_way(app.url, bodies, progress)
    if not struck:
        raise SystemExit(f"{fault.name}: the streams ended before the fault")
    moment, unfinished = struck[0]
    if len(unfinished) < UNFINISHED * len(said):
        raise SystemExit(f"{fault.name}: only {len(unfinished)} streams were under way: no test")
    await until(
        lambda: all(actor.pid != victim.pid for actor in app.actors()), RECOVERY_S, "a victim dies"
    )
    verdicts = [
        judge(body, before, after) for body, before, after in zip(bodies, calm, said, strict=True)
    ]
    return Outcome(
        identical=sum(verdict is not None for verdict in verdicts),
        excused=sum(verdict is True for verdict in verdicts),
        streams=len(said),
        recovery_s=max(one.longest_pause_s(moment) for one in unfinished),
    )


def report(fault: str, outcomes: Sequence[Outcome]) -> list[Record]:
    streams = sum(one.streams for one in outcomes)
    identical = sum(one.identical for one in outcomes) / streams
    excused = sum(one.excused for one in outcomes) / streams
    recovery = mean(one.recovery_s for one in outcomes)
    return [
        Record(f"chaos/{fault}/identical_share", identical, "share"),
        Record(f"chaos/{fault}/excused_share", excused, "share"),
        Record(f"chaos/{fault}/recovery_s", recovery, "s"),
    ]


if __name__ == "__main__":
    main()
