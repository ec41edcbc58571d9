"""The API over a real coordinator in this process, behind the few methods of a Serve handle that it
uses, so that replicas can die at a chosen token."""

import asyncio
import functools
import inspect
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import uvicorn
from ray.exceptions import RayActorError

from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from actors.coordinator.stream import Overloaded, RequestFailed, Stream
from cluster.config import AppConfig
from deployments import messages
from deployments.ingress.api import Api
from deployments.ingress.http import make_http
from deployments.messages import Heartbeat, Message, Routed, StreamRequest
from engine.drafters.model import ModelDrafter
from engine.drafters.runner import PackedRunner
from engine.errors import InvalidRequest, SpindleError
from engine.model import PackedModel
from engine.verifiers.native import NativeVerifier
from policies.cost import ForwardCost
from policies.request import LaneView
from policies.scheduling.fcfs import fcfs
from policies.speculation.fixed import Fixed
from tests.actors.coordinator.fake_hosts import PacedDrafter, PacedVerifier
from tests.actors.coordinator.policies import Touring
from tests.checkpoints import blurred, llama

T = TypeVar("T")
P = ParamSpec("P")
VOCAB = 2048
"""As many tokens as the zoo's tokenizer has. The model has random weights: its texts are full of
broken characters."""
CONTEXT = 512

DiesAfter = Callable[[StreamRequest], int | None]
"""After how many output tokens the replica of this request dies; None: it does not die."""


def within(
    context: Callable[..., AbstractAsyncContextManager[T]], *given: Any, **options: Any
) -> Callable[[Callable[Concatenate[T, P], Awaitable[None]]], Callable[P, None]]:
    """Makes an async test one that pytest runs; its first argument is what the context yields."""

    def decorated(test: Callable[Concatenate[T, P], Awaitable[None]]) -> Callable[P, None]:
        def inside(*arguments: P.args, **named: P.kwargs) -> None:
            async def run() -> None:
                async with context(*given, **options) as yielded:
                    await test(yielded, *arguments, **named)

            asyncio.run(run())

        signature = inspect.signature(test)
        functools.update_wrapper(inside, test)
        _, *others = signature.parameters.values()
        inside.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return inside

    return decorated


def counted(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The usage without what the prefix cache had, which depends on earlier requests."""
    usage = {**answer["usage"]}
    del usage["prompt_tokens_details"]
    return usage


def never_dies(_request: StreamRequest) -> int | None:
    return None


def make_config(**sections: Any) -> AppConfig:
    target = {"dtype": "float32", "placement": "inline"}
    drafters = [{"name": "near", "model": "zoo/tiny", "placement": "inline"}]
    return AppConfig.model_validate({"target": target, "drafters": drafters, **sections})


def random_target() -> PackedModel:
    return PackedModel(llama(vocab=VOCAB, context=CONTEXT), kv_tokens=8192)


def make_verifier() -> NativeVerifier:
    return NativeVerifier(random_target())


def make_drafter() -> ModelDrafter:
    model = PackedModel(blurred(llama(vocab=VOCAB, context=CONTEXT), 0.02), kv_tokens=8192)
    return ModelDrafter("near", PackedRunner(model), target_vocab_size=VOCAB)


def make_coordinator(config: AppConfig, seconds: float) -> Coordinator:
    lanes = [Lane(LaneView("near", "near", capacity=64), PacedDrafter(make_drafter, 0.0))]
    costs = Costs(ForwardCost(0, 1e-5, 0.001), {"near": ForwardCost(0, 0, 1e-4)}, 64, {}, 64)
    limits = config.limits
    return Coordinator(
        PacedVerifier(make_verifier, seconds),
        lanes,
        Policies(fcfs(), Touring(1000), Fixed()),
        Estimates(costs, [lane.view for lane in lanes]),
        Limits(
            max_batch=limits.max_batch,
            max_waiting=limits.max_waiting,
            kv_tokens=8192,
            unread_tokens=limits.unread_tokens,
            stalled_s=limits.stalled_s,
        ),
    )


class Handle:
    """The methods of a Serve handle of replicas that the API uses."""

    stop_token_ids: Sequence[int] = ()
    follows_grammars = False

    def options(self, **_options: Any) -> Self:
        return self

    @property
    def stream(self) -> "Method":
        return Method(lambda request: Response(self._stream(request)))

    @property
    def heartbeat(self) -> "Method":
        return Method(self._heartbeat)

    @property
    def describe(self) -> "Method":
        return Method(lambda routed: asyncio.create_task(self._describe(routed)))

    def _stream(self, request: StreamRequest) -> AsyncGenerator[Message, None]:
        raise NotImplementedError

    async def _heartbeat(self, heartbeat: Heartbeat) -> None:
        pass

    async def _describe(self, _routed: Routed) -> dict[str, Any]:
        return {
            "max_context": CONTEXT,
            "vocab_size": VOCAB,
            "stop_token_ids": list(self.stop_token_ids),
            "follows_grammars": self.follows_grammars,
            "down": [],
        }


@dataclass
class LocalReplicas(Handle):
    """One coordinator in the role of every replica: a death ends one of its streams, at a token."""

    coordinator: Coordinator
    dies: DiesAfter = never_dies
    requests: list[StreamRequest] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    streams: dict[str, Stream] = field(default_factory=dict)
    """Streams being read, by the names that their ingress gave them."""

    async def _stream(self, request: StreamRequest) -> AsyncGenerator[Message, None]:
        self.requests.append(request)
        name = f"{request['name']}/{request['attempt']}"
        dies = self.dies(request)
        if dies is not None and dies <= len(request["output_ids"]):
            raise RayActorError
        try:
            stream = self.coordinator.submit(
                name,
                request["prompt_ids"],
                request["params"],
                output=request["output_ids"],
                attempt=request["attempt"],
                speculate=request["speculation"]["enabled"],
                traced=request["trace"],
            )
        except (InvalidRequest, Overloaded) as error:
            yield messages.refused(429, error)
            return
        self.streams[request["name"]] = stream
        try:
            yield {"kind": "accepted", "replica": f"replica-{request['attempt']}"}
            async for commit in stream.relay():
                if dies is not None and dies < commit.first_index + len(commit.token_ids):
                    raise RayActorError
                yield messages.committed(commit, stream.statistics)
        except RequestFailed:
            yield messages.failed_by_defect(request["name"])
        except SpindleError as error:
            yield messages.failed(str(error), retry=False)
        finally:
            stream.close()
            if self.streams.get(request["name"]) is stream:
                del self.streams[request["name"]]

    async def _heartbeat(self, heartbeat: Heartbeat) -> None:
        self.heartbeats.append(heartbeat)
        for name, tokens in heartbeat["read"].items():
            if name in self.streams:
                self.streams[name].acknowledge(tokens)


class Method:
    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def remote(self, *arguments: Any) -> Any:
        return self._call(*arguments)


class Response:
    """As Serve's: iterated, or cancelled from outside."""

    def __init__(self, messages: AsyncGenerator[Message, None]) -> None:
        self._messages = messages
        self._next: asyncio.Task[Message] | None = None

    async def __anext__(self) -> Message:
        self._next = asyncio.create_task(anext(self._messages))
        return await self._next

    def cancel(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.cancel()
            await asyncio.wait([self._next])
        await self._messages.aclose()


@asynccontextmanager
async def local_api(
    config: AppConfig | None = None, dies: DiesAfter = never_dies, seconds: float = 0.0
) -> AsyncIterator[tuple[Api, LocalReplicas]]:
    config = config or make_config()
    coordinator = make_coordinator(config, seconds)
    replicas = LocalReplicas(coordinator, dies)
    api = Api(config, replicas)
    try:
        yield api, replicas
    finally:
        api.close()
        await coordinator.close()


@asynccontextmanager
async def serving(api: Api) -> AsyncIterator[str]:
    """Yields the URL. Small buffers, so that a stalled reader has an effect soon."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(make_http(api), log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
