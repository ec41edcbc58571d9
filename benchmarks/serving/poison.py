"""Requests that raise inside the system, or kill a process of it, and what must come of them.

The application of `build_poisoned` is the product's but for subclasses of its hosts, its replica
and its ingress, which inject a fault where they meet a request with one of SEEDS (in the tokenizer:
with a prompt that begins with TEXT). `drill` throws one request of each given kind among streams:
these must be identical to undisturbed ones, the poisoned ones be answered at once, and no replica
or verifier be restarted, but for the two verifiers that a request which kills them may cost.
"""

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from unittest.mock import patch

from fastapi import FastAPI
from ray.serve import Application

from actors.hosts.workers import DrafterWorker, VerifierWorker
from benchmarks.report import Record
from benchmarks.serving.app import APP, App, wait_until
from benchmarks.serving.stream_identity import StreamIdentity
from benchmarks.serving.streams import ReceivedStream, read, read_all, session
from deployments import app as product
from deployments.ingress.deployment import Ingress
from deployments.replica.deployment import Replica
from engine.attention.context import AttentionBatch
from engine.hidden_states import HiddenStates
from engine.model import Segment
from engine.protocol import Draft, DraftOrder, Failed, Missing, NoRoom, Verdict, VerifyOrder
from engine.sampling.sampler import Row, choose
from engine.verifiers import native
from policies.protocols import StepRule

TOKENIZER = "tokenizer"
VERIFIER_PROCESS = "verifier_process"
RAISING = ("sampler", "attention", "drafter", "drafter_process", TOKENIZER)
"""What the fault is injected into. `drafter_process` kills the drafter's process; none of these may
cost a verifier."""
SEEDS = {
    kind: 6_660_000 + number
    for number, kind in enumerate(
        ("sampler", "attention", "drafter", "drafter_process", VERIFIER_PROCESS)
    )
}
TEXT = "poison"
FAILING = ("sampler", "attention", TOKENIZER, VERIFIER_PROCESS)
"""Requests of these kinds are answered with an error; the others only draft less."""
ANSWER_S = 5.0
"""The longest time until the answer to a request that fails without ending a process."""
MOST_VERIFIERS = 2
"""The most verifiers that may be lost over one (actors/coordinator/suspects.py)."""
MOST_DRAFTERS = 2
"""The most drafters that may be lost over one (actors/coordinator/request_state.py)."""
_STREAM_S = 180.0
_BACK_S = 120.0
_FROM_SHARE = 0.25
"""Share of the streams' tokens received at which the poisoned requests are sent."""


class Poison(Exception):
    """The injected error."""


class _Kinds(dict[str, str]):
    """The kind of each poisoned request of which a host has had orders, by its name."""

    def note(self, orders: Iterable[DraftOrder | VerifyOrder]) -> None:
        kinds = {seed: kind for kind, seed in SEEDS.items()}
        for order in orders:
            start = order.prefix.start
            if start is not None and start.seed in kinds:
                self[order.prefix.request] = kinds[start.seed]

    def among(self, requests: Iterable[str]) -> set[str]:
        return {self[request] for request in requests if request in self}


class PoisonedVerifier(VerifierWorker):
    def load(self) -> None:
        super().load()
        self._kinds = _Kinds()
        patch.object(native, "choose", _poisoned_choose).start()
        assert isinstance(self._verifier, native.NativeVerifier)
        model = self._verifier._model
        forward, plan = model.forward, model.plan

        def poisoned_forward(
            segments: Sequence[Segment], states: HiddenStates | None = None
        ) -> Any:
            kinds = self._kinds.among(segment.request for segment in segments)
            model.plan = _raising_layout if "attention" in kinds else plan
            return forward(segments, states)

        model.forward = poisoned_forward

    def verify(self, orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom | Failed]:
        self._kinds.note(orders)
        if VERIFIER_PROCESS in self._kinds.among(order.prefix.request for order in orders):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().verify(orders)


class PoisonedDrafter(DrafterWorker):
    def load(self) -> None:
        super().load()
        self._kinds = _Kinds()
        draft = self._drafter.draft

        def poisoned_draft(
            orders: Sequence[DraftOrder], *rule: Any
        ) -> list[Draft | Missing | NoRoom]:
            kinds = self._kinds.among(order.prefix.request for order in orders)
            if "drafter_process" in kinds:
                os.kill(os.getpid(), signal.SIGKILL)
            if "drafter" in kinds:
                raise Poison
            return draft(orders, *rule)

        patch.object(self._drafter, "draft", poisoned_draft).start()

    def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom | Failed]:
        self._kinds.note(orders)
        return super().draft(orders, rule)


class PoisonedReplica(Replica):
    async def _start(self) -> Any:
        # For good, because those that take the place of lost ones must be poisoned too.
        patch("actors.hosts.spawn.VERIFIER_WORKER", f"{__name__}:PoisonedVerifier").start()
        patch("actors.hosts.spawn.DRAFTER_WORKER", f"{__name__}:PoisonedDrafter").start()
        return await super()._start()


class PoisonedIngress(Ingress):
    def __serve_build_asgi_app__(self) -> FastAPI:
        tokens = self._api.tokens
        encode_all = tokens.encode_all

        async def poisoned_encode_all(texts: Sequence[str], *options: Any) -> list[list[int]]:
            if any(text.startswith(TEXT) for text in texts):
                raise Poison
            return await encode_all(texts, *options)

        patch.object(tokens, "encode_all", poisoned_encode_all).start()
        return super().__serve_build_asgi_app__()


def _poisoned_choose(logits: Any, rows: Sequence[Row]) -> list[int]:
    if any(row.seed == SEEDS["sampler"] for row in rows):
        raise Poison
    return choose(logits, rows)


def _raising_layout(_batch: AttentionBatch) -> Any:
    class Raising:
        def attend(self, *_: object) -> NoReturn:
            raise Poison

    return Raising()


def build_poisoned(args: Mapping[str, Any]) -> Application:
    with (
        patch.object(product, "Replica", PoisonedReplica),
        patch.object(product, "Ingress", PoisonedIngress),
    ):
        return product.build(args)


@dataclass(frozen=True, slots=True)
class DrillOutcome:
    streams: int
    identical: int
    excused: int
    pause_s: float
    """The longest of a stream after the poisoned requests were sent."""
    answered_s: Mapping[str, float]
    """Until the error of a request that fails, by its kind."""
    wrong: Mapping[str, str]
    """Poisoned requests that were not answered as they must be, and their answers."""
    replicas_lost: Sequence[str]
    verifiers_lost: int
    drafters_lost: int

    @property
    def passed(self) -> bool:
        killed = VERIFIER_PROCESS in self.answered_s
        return (
            self.identical == self.streams
            and not self.wrong
            and not self.replicas_lost
            and self.verifiers_lost <= MOST_VERIFIERS * killed
            and self.drafters_lost <= MOST_DRAFTERS
            and (killed or max(self.answered_s.values()) <= ANSWER_S)
        )

    def records(self, drill: str) -> list[Record]:
        name = f"chaos/{drill}"
        return [
            Record(f"{name}/identical_share", self.identical / self.streams, "share"),
            Record(f"{name}/answered_s", max(self.answered_s.values()), "s"),
            Record(f"{name}/pause_s", self.pause_s, "s"),
            Record(f"{name}/verifiers_lost", float(self.verifiers_lost), "verifiers"),
            Record(f"{name}/drafters_lost", float(self.drafters_lost), "drafters"),
        ]


async def drill(
    app: App,
    bodies: Sequence[Mapping[str, Any]],
    expected: Sequence[ReceivedStream],
    identity: StreamIdentity,
    kinds: Sequence[str],
) -> DrillOutcome:
    """`expected`: the undisturbed streams of the bodies."""
    clock = asyncio.get_running_loop().time
    poisoned = {kind: _poisoned(bodies[0], kind) for kind in kinds}
    failing = [kind for kind in kinds if kind in FAILING]
    continuing = [kind for kind in kinds if kind not in FAILING]
    # Without drafters there is no fault in them.
    plain = [{**poisoned[kind], "speculation": "off"} for kind in continuing]
    expected_of = dict(zip(continuing, await read_all(app.url, plain, _STREAM_S), strict=True))
    before = _processes(app)
    send_at = _FROM_SHARE * sum(len(stream.token_ids) for stream in expected)
    due = asyncio.Event()

    def progress(streams: Sequence[ReceivedStream]) -> None:
        if sum(len(stream.token_ids) for stream in streams) >= send_at:
            due.set()

    async def send(kind: str) -> tuple[ReceivedStream, float]:
        await due.wait()
        sent_s = clock()
        async with session(_STREAM_S) as client:
            stream = await read(client, app.url, poisoned[kind], ReceivedStream())
        return stream, clock() - sent_s

    sending = [asyncio.create_task(send(kind)) for kind in poisoned]
    streams = await read_all(app.url, bodies, _STREAM_S, progress)
    answers = dict(zip(poisoned, await asyncio.gather(*sending), strict=True))
    sent_s = min(stream.started_s for stream, _ in answers.values())
    verdicts = [
        identity(body, undisturbed, stream)
        for body, undisturbed, stream in zip(bodies, expected, streams, strict=True)
    ]
    right = {kind: "failed inside the server" in (answers[kind][0].error or "") for kind in failing}
    for kind in continuing:
        right[kind] = identity(poisoned[kind], expected_of[kind], answers[kind][0]) is not None
    await wait_until(lambda: len(_processes(app)) == len(before), _BACK_S, "lost hosts are back")
    after = _processes(app)
    return DrillOutcome(
        streams=len(streams),
        identical=sum(verdict is not None for verdict in verdicts),
        excused=sum(verdict is True for verdict in verdicts),
        pause_s=max(stream.longest_pause_s(sent_s) for stream in streams),
        answered_s={kind: answers[kind][1] for kind in failing},
        wrong={
            kind: stream.error or stream.text
            for kind, (stream, _) in answers.items()
            if not right[kind]
        },
        replicas_lost=sorted(_replicas(before) - _replicas(after)),
        verifiers_lost=_lives(after, verifiers=True) - _lives(before, verifiers=True),
        drafters_lost=_lives(after, verifiers=False) - _lives(before, verifiers=False),
    )


def _poisoned(body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    if kind == TOKENIZER:
        return {**body, "prompt": f"{TEXT} in the tokenizer"}
    return {**body, "seed": SEEDS[kind]}


def _processes(app: App) -> dict[str, int]:
    """The living hosts and replicas, and their process ids."""
    return {
        actor.name: actor.pid
        for actor in app.actors()
        if actor.name.startswith((f"{APP}:", "SERVE_REPLICA::spindle#Replica#"))
    }


def _replicas(processes: Mapping[str, int]) -> set[str]:
    return {name for name in processes if "SERVE_REPLICA" in name}


def _lives(processes: Mapping[str, int], verifiers: bool) -> int:
    """How often the living verifiers, or drafters, were restarted (docs/hosts.md, names of
    actors)."""
    hosts = processes.keys() - _replicas(processes)
    return sum(int(name.rsplit(":", 1)[1]) for name in hosts if (":verifier" in name) is verifiers)
