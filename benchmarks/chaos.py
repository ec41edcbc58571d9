"""Faults under load: `python -m benchmarks.chaos [--rounds 10] [--faults NAME ...] [--json FILE]`.

24 concurrent streams, first undisturbed; then the same streams while one part is killed: a
drafter, the verifier, a tensor-parallel rank, the router, a replica, a replica's node. Every
stream must end complete and equal to the undisturbed one. Names: chaos/FAULT/identical_share (with
excused near-ties), chaos/FAULT/excused_share, chaos/FAULT/recovery_s (until every stream that was
under way has got its next token). Exits with 1 when a stream was lost or differed.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import httpx
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from benchmarks.report import Record, parser, publish
from benchmarks.requests import mixed_requests
from benchmarks.serving.app import Actor, App, running, until
from benchmarks.serving.streams import Said, read
from cluster.zoo import TARGET, model_path
from engine.params import SamplingParams
from tests import reference
from tests.identity import NEAR_TIE

PORT = 8171
STREAMS = 24
KILL_AT = 0.25
"""The fault strikes when so much of all tokens has come."""
UNFINISHED = 0.5
"""A fault counts only if so many of the streams were still under way."""
STREAM_S = 180.0
RECOVERY_S = 120.0
CONFIG: dict[str, Any] = {
    # A share of CPU so large that only worker nodes have room for a replica (serving/app.py).
    "target": {"dtype": "float32", "tensor_parallel": 2, "cpus": 0.5, "kv_tokens": 16_384},
    "drafters": [
        {"name": "tiny", "model": "zoo/tiny", "cpus": 0.2},
        {"name": "tasks", "model": "zoo/tasks", "cpus": 0.2},
        {"name": "ngram", "kind": "ngram"},
    ],
    # Under our own policies drafting may not pay for so small a target.
    "policies": {"selection": {"name": "lbss"}, "speculation": {"name": "fixed"}},
    "limits": {"max_batch": 16, "max_waiting": 64},
    "scaling": {"min_replicas": 2, "max_replicas": 2},
}


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    victim: re.Pattern[str]
    """Of an actor's name or class."""
    node: bool = False
    """Takes the victim's whole node."""

    def hits(self, actor: Actor) -> bool:
        return bool(self.victim.search(actor.name) or self.victim.search(actor.kind))


FAULTS = (
    Fault("drafter", re.compile(r"^spindle:.*:tiny:")),
    Fault("verifier", re.compile(r"^spindle:.*:verifier(/rank0)?:")),
    Fault("tp_rank", re.compile(r"^spindle:.*:verifier/rank1:")),
    Fault("router", re.compile(r"Router")),
    Fault("replica", re.compile(r"^SERVE_REPLICA::spindle#Replica#")),
    Fault("node", re.compile(r"^SERVE_REPLICA::spindle#Replica#"), node=True),
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
    arguments.add_argument("--faults", nargs="+", choices=names, default=names)
    chosen = arguments.parse_args()
    faults = [fault for fault in FAULTS if fault.name in chosen.faults]
    with running(CONFIG, PORT, worker_nodes=2, cpus=2) as app:
        records = asyncio.run(rounds(app, faults, chosen.rounds, chosen.streams))
    publish(records, chosen.json)
    shares = [record.value for record in records if record.name.endswith("identical_share")]
    sys.exit(0 if all(share == 1 for share in shares) else 1)


async def rounds(app: App, faults: Sequence[Fault], count: int, streams: int) -> list[Record]:
    bodies = requests(streams)
    judge = Judge()
    await until(lambda: whole(app), RECOVERY_S, "all hosts are up")
    calm = await undisturbed(app, bodies)
    outcomes: dict[str, list[Outcome]] = {fault.name: [] for fault in faults}
    for number in range(count):
        for fault in faults:
            outcome = await strike(app, fault, bodies, calm, judge)
            outcomes[fault.name].append(outcome)
            print(f"round {number} {fault.name}: {outcome}", flush=True)
            if fault.node:
                app.cluster.add_node(num_cpus=2)
            await until(lambda: whole(app), RECOVERY_S, f"all hosts are back after {fault.name}")
    return [record for name, seen in outcomes.items() for record in report(name, seen)]


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


def whole(app: App) -> bool:
    """Two replicas with all their hosts, and the router."""
    actors = app.actors()
    hosts = sum(actor.name.startswith("spindle:") for actor in actors)
    replicas = sum(actor.name.startswith("SERVE_REPLICA::spindle#Replica#") for actor in actors)
    router = any("Router" in actor.kind or "Router" in actor.name for actor in actors)
    return hosts == 8 and replicas == 2 and router and _healthy(app.url)


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
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=STREAM_S, limits=limits) as client:
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
    judge: "Judge",
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
    waits = [after - moment for one in unfinished if (after := one.token_after(moment)) is not None]
    verdicts = [
        judge(body, before, after) for body, before, after in zip(bodies, calm, said, strict=True)
    ]
    return Outcome(
        identical=sum(verdict is not None for verdict in verdicts),
        excused=sum(verdict is True for verdict in verdicts),
        streams=len(said),
        recovery_s=max(waits),
    )


class Judge:
    """Grade F: equal to the undisturbed stream, or apart first at a near-tie of the reference."""

    def __init__(self) -> None:
        path = model_path(TARGET)
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(path)

    def __call__(self, body: Mapping[str, Any], calm: Said, said: Said) -> bool | None:
        """None: lost or different; else whether it had to be excused."""
        if not said.complete:
            print(f"  seed {body['seed']}: incomplete: {said.error}", flush=True)
            return None
        if said.token_ids == calm.token_ids and said.text == calm.text:
            return False
        pairs = zip(calm.token_ids, said.token_ids, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if first is not None and self._near_tie(body, calm.token_ids[:first]):
            return True
        print(f"  seed {body['seed']}: differs at output token {first}", flush=True)
        return None

    def _near_tie(self, body: Mapping[str, Any], output: Sequence[int]) -> bool:
        params = SamplingParams(
            temperature=body["temperature"],
            frequency_penalty=body["frequency_penalty"],
            max_tokens=body["max_tokens"],
        )
        tokens = [*body["prompt"], *output]
        logits = reference.forward(self._model, tokens)[-1]
        scores = reference.perturbed(logits, tokens, len(body["prompt"]), params, int(body["seed"]))
        second, best = np.sort(scores)[-2:]
        return bool(best - second < NEAR_TIE)


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
