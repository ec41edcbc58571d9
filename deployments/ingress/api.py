"""The API behind HTTP, handles and gRPC: typed requests in, response bodies out."""

import asyncio
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from itertools import chain
from typing import Any

from ray.serve.handle import DeploymentHandle

from cluster.config import AppConfig
from cluster.config.keys import resolved
from deployments import version
from deployments.ingress.answers.choices import Answer, Choice, Piece
from deployments.ingress.answers.completion_bodies import (
    ChatFormat,
    CompletionFormat,
    ResponseFormat,
    joined,
    model_body,
)
from deployments.ingress.answers.json_text import Body
from deployments.ingress.answers.output_text import Echo, StopRule, echo
from deployments.ingress.clients import Client, Keys, Shares, trusted
from deployments.ingress.draining import Draining
from deployments.ingress.errors import ApiError, quoted
from deployments.ingress.failover import FailoverStream
from deployments.ingress.heartbeat_sender import HeartbeatSender
from deployments.ingress.metrics import IngressMetrics, RequestLog
from deployments.ingress.parsing.choose import OutputParsers
from deployments.ingress.reading import HEADER, IgnoredFields, Reader, shown
from deployments.ingress.replicas import Readiness
from deployments.ingress.requests.completions import ChatRequest, GenerationRequest, echoes
from deployments.ingress.requests.stream_requests import StreamRequestBuilder
from deployments.ingress.tokenizer import Tokens
from deployments.ingress.watching import LiveView, as_vllm, families_of, live, prometheus_text
from engine.errors import InvalidRequest
from engine.request import TargetLimits

ANY_CALLER = trusted("")
"""A handle's caller in the cluster: without a share, and free to set priorities."""
_LOG = logging.getLogger(__name__)


class Api:
    """Must be constructed on the event loop that it runs on."""

    def __init__(self, config: AppConfig, replicas: DeploymentHandle) -> None:
        self.config = config
        keys = resolved("api_keys", config.api_keys, os.environ)
        self.keys = Keys(keys, config.priority_for, config.operators)
        self.version = version()
        # By gRPC, which takes 1 to 2 ms less than Ray's own calls. It was set where the handle was
        # made, possibly without the environment of cluster/serve.env.
        replicas = replicas.options(_by_reference=False)
        self.replicas = replicas
        self._streaming = replicas.options(stream=True)
        self.metrics = IngressMetrics(config.api_keys)
        self.log = RequestLog(self.metrics, config.served_name)
        self.tokens = Tokens(config.target.header_path())
        self.parsers = OutputParsers(config.target, self.tokens)
        ingress = uuid.uuid4().hex
        self._builder = StreamRequestBuilder(config, self.tokens, ingress)
        self._heartbeats = HeartbeatSender(
            ingress, replicas, config.limits, self.metrics.replica_lost
        )
        self._shares = Shares(config, lambda: len(self._heartbeats.replicas))
        self.readiness = Readiness(replicas, self._heartbeats)
        self.draining = Draining(self._shares, config.scaling.drain_s)
        self.reader = Reader(self.tokens)
        self.ignored_fields = IgnoredFields()
        self._looking = asyncio.Lock()
        self._created = int(time.time())
        self._limits: TargetLimits | None = None

    def close(self) -> None:
        self._heartbeats.close()

    async def health(self) -> Body:
        """Raises ApiError 503 while no replica can serve."""
        self.draining.check()
        await self.ready()
        return self.readiness.body

    async def ready(self) -> TargetLimits:
        """Returns the target's limits; raises ApiError 503 while no replica can serve."""
        self._limits = await self.readiness.check()
        return self._limits

    async def metrics_text(self) -> bytes:
        """The series of this ingress and of all replicas that answer in time."""
        with suppress(ApiError):  # finds out which replicas there are
            await self.ready()
        calls = [families_of(self.replicas, name) for name in sorted(self._heartbeats.replicas)]
        of_replicas = await asyncio.gather(*calls)
        families = [*chain(*of_replicas)]
        vllm = as_vllm(families, self.config.served_name)
        return prometheus_text([*self.metrics.families(), *families, *vllm])

    async def live(self, seconds: float, client: Client) -> LiveView:
        """The numbers of the replicas' last seconds, for operators; others learn what the config
        has."""
        if not self._heartbeats.replicas:
            await self.ready()
        hidden = not client.is_operator
        async with self._looking:  # each call takes time of every replica's event loop
            names = () if hidden else self._heartbeats.replicas
            return await live(self.config, self.replicas, names, seconds, hidden=hidden)

    async def models(self) -> Body:
        names = self.config.model_names
        return {"object": "list", "data": [await self.model(name) for name in names]}

    async def model(self, name: str) -> Body:
        self._check_model(name)
        limits = self._limits or await self.ready()
        target = self.config.served_name
        parent = None if name == target else target
        return model_body(name, self._created, limits.max_context, parent)

    async def open(
        self, request: GenerationRequest, client: Client, request_id: str | None = None
    ) -> Answer:
        """Sends the request's choices to replicas, which accept all of them; else raises ApiError.
        The caller must close the answer. `request_id`: the client's name for the request."""
        self._check_model(request.model)
        self.parsers.check(request.tool_use)
        limits = self._limits or await self.ready()
        most = self._shares.largest_request
        choices = self._builder.check_size(request, client, limits, most)
        self.draining.admit(client, choices)

        def on_close(answer: Answer) -> None:
            self.draining.end(client, choices, answer)
            self.log.ended(answer, client.tenant, request.model)

        try:
            answer = await self._answer(request, client.tenant, limits, on_close, request_id)
        except BaseException:
            self.draining.end(client, choices, None)
            raise
        return await self.draining.begun(answer)

    async def _answer(
        self,
        request: GenerationRequest,
        tenant: str,
        limits: TargetLimits,
        on_close: Callable[[Answer], None],
        public_id: str | None,
    ) -> Answer:
        # A client may use the same id again.
        name = "-".join([*([public_id] if public_id else []), uuid.uuid4().hex])
        arrived_s = asyncio.get_running_loop().time()
        sent = await self._builder.choices(request, name, tenant, limits)
        prompts = [one["prompt_ids"] for one in sent[:: request.n]]
        echoed = await self._echoes(prompts, tenant) if echoes(request) else [None] * len(prompts)
        stop = StopRule(request.stops, request.stop_token_ids, request.min_tokens)
        choices = [
            Choice(
                index,
                FailoverStream(
                    one,
                    self._streaming,
                    self._heartbeats.silent,
                    self.config.limits,
                    self._heartbeats.record_loss,
                ),
                stop,
                self.tokens,
                arrived_s,
                echoed[index // request.n],
                echo_only=request.token_limit == 0,
                special=not request.skip_special_tokens,
                parser=self.parsers.make(
                    request.tool_use, one["prompt_ids"], has_form=one["params"].grammar is not None
                ),
            )
            for index, one in enumerate(sent)
        ]
        prompt_tokens = sum(map(len, prompts))
        return Answer(
            name, choices, prompt_tokens, self._heartbeats, on_close, public_id, request.n
        )

    async def _echoes(self, prompts: Sequence[Sequence[int]], tenant: str) -> list[Echo]:
        """Runs in a thread, so that the event loop can go on serving streams."""
        size = sum(map(len, prompts))
        return await self.tokens.in_turn(
            lambda: [echo(self.tokens, one) for one in prompts], size, tenant
        )

    async def full_response(self, request: GenerationRequest, answer: Answer) -> Body:
        form = self._format(request)
        collected: dict[int, list[Piece]] = {choice.index: [] for choice in answer.choices}
        async for choice, piece in answer.pieces():
            collected[choice.index].append(piece)
        bodies: list[Body] = []
        for choice in answer.choices:
            piece = joined(collected.pop(choice.index))
            bodies.append(await form.aside(form.full, choice, piece))
            await asyncio.sleep(0)  # many choices take long, and streams go on meanwhile
        head = self._head(form.full_object, form.prefix, answer, request.model)
        return {**head, "choices": bodies, "usage": answer.usage}

    async def chunks(
        self, request: GenerationRequest, answer: Answer
    ) -> AsyncGenerator[Body, None]:
        """One chunk per verdict that adds something visible; of outputs that are parsed for tool
        calls or reasoning, one per part. An error becomes the last chunk."""
        form = self._format(request)
        head = self._head(form.chunk_object, form.prefix, answer, request.model)
        if request.include_usage:
            head["usage"] = None
        started: set[int] = set()
        try:
            async for choice, piece in answer.pieces():
                first = choice.index not in started
                for chunk in await form.aside(form.chunks, choice, piece, first):
                    started.add(choice.index)
                    yield {**head, "choices": [chunk]}
        except ApiError as error:
            yield error.body()
            return
        except Exception:
            _LOG.exception("request %s fails", answer.name)
            yield ApiError.internal(answer.name).body()
            return
        if request.include_usage:
            yield {**head, "choices": [], "usage": answer.usage}

    async def generate(self, fields: Mapping[str, Any], client: Client = ANY_CALLER) -> Body:
        """For callers by handle or gRPC: errors are returned as bodies, nothing is raised."""
        try:
            request, names = await self.reader.fields(fields, client.tenant)
            if request.stream:
                raise InvalidRequest("stream", "is for the streaming method")
            ignored = self._ignored_part(names)
            with closing(await self.open(request, client)) as answer:
                return {**await self.full_response(request, answer), **ignored}
        except (ApiError, InvalidRequest) as error:
            return self._refused(error, client)
        except Exception:
            _LOG.exception("a request fails because of a defect")
            return self._refused(ApiError.internal(), client)

    async def stream(
        self, fields: Mapping[str, Any], client: Client = ANY_CALLER
    ) -> AsyncGenerator[Body, None]:
        """Like `generate`, but yields chunks."""
        try:
            request, names = await self.reader.fields(fields, client.tenant, stream=True)
            if not request.stream:
                raise InvalidRequest("stream", "cannot be false for the streaming method")
            ignored = self._ignored_part(names)
            with closing(await self.open(request, client)) as answer:
                async with aclosing(self.chunks(request, answer)) as chunks:
                    async for chunk in chunks:
                        yield {**chunk, **ignored}
                        ignored = {}
        except (ApiError, InvalidRequest) as error:
            yield self._refused(error, client)
        except Exception:
            _LOG.exception("a request fails because of a defect")
            yield self._refused(ApiError.internal(), client)

    def _refused(self, error: Exception, client: Client) -> Body:
        refusal = ApiError.of(error)
        self.log.refused(refusal, client.tenant)
        return refusal.body()

    def _ignored_part(self, names: Sequence[str]) -> Body:
        """For callers without headers."""
        self.ignored_fields.check(names)
        return {HEADER: shown(names)} if names else {}

    def _check_model(self, name: str | None) -> None:
        served = self.config.model_names
        if name is not None and name not in served:
            there = ", ".join(map(repr, served))
            message = f"model: {quoted(name)} is not served here; there is {there}"
            raise ApiError(404, message, "model", "model_not_found")

    def _format(self, request: GenerationRequest) -> ResponseFormat:
        form = ChatFormat if isinstance(request, ChatRequest) else CompletionFormat
        return form(self.tokens, request.alternatives, request.return_token_ids)

    def _head(self, kind: str, prefix: str, answer: Answer, model: str) -> Body:
        return {
            "id": f"{prefix}-{answer.public_id}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
