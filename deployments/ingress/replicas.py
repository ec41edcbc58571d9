"""What the ingress asks replicas besides requests: above all whether any can serve."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from ray.serve.handle import DeploymentHandle

from deployments.ingress.errors import ApiError
from deployments.ingress.heartbeat_sender import HeartbeatSender
from deployments.messages import Routed
from engine.request import TargetLimits

_LOG = logging.getLogger(__name__)
_WAIT_S = 2.0

Answer = TypeVar("Answer")


async def answer_of(replica: str, call: Awaitable[Answer]) -> Answer | None:
    """None if it does not answer in time."""
    try:
        async with asyncio.timeout(_WAIT_S):
            return await call
    except Exception as error:  # the replica is lost, or slow
        _LOG.warning("%s does not answer: %s", replica, error)
        return None


_NEXT_CALL_S = 0.25
"""If no replica has answered after this long, another one is called as well, since a replica may
hang."""
_MAX_CALLS = 8
"""The most calls for one check."""


class Readiness:
    def __init__(self, replicas: DeploymentHandle, heartbeats: HeartbeatSender) -> None:
        self._replicas = replicas
        self._heartbeats = heartbeats
        self.drafters_down = 0
        """How many the replica that answered last has lost."""

    async def check(self) -> TargetLimits:
        """The limits from the first replica that answers; raises ApiError 503 if none does."""
        problem = "starting: no replica answers yet"
        calls: list[Routed] = []
        waiting: dict[asyncio.Task[TargetLimits], Routed] = {}
        try:
            for _ in range(_MAX_CALLS):
                calls.append(self._call_args(calls))
                waiting[asyncio.create_task(self._describe(calls[-1]))] = calls[-1]
                answered, _ = await asyncio.wait(
                    waiting, timeout=_NEXT_CALL_S, return_when=asyncio.FIRST_COMPLETED
                )
                for call in answered:
                    del waiting[call]
                    # Serve also cancels the call if the replica's actor, process or node is lost.
                    error = "it is gone" if call.cancelled() else call.exception()
                    if error is None:
                        return call.result()
                    _LOG.warning("a replica cannot serve: %s", error)
                    problem = "no replica can serve now"
        finally:
            for call_args in calls:
                self._heartbeats.record_replicas(call_args.get("replicas"))
            for call, call_args in waiting.items():
                call.cancel()
                if call_args["routed_to"] is not None:
                    self._heartbeats.probe(call_args["routed_to"])
        raise ApiError(503, problem)

    def _call_args(self, before: list[Routed]) -> Routed:
        """The arguments of the next call: avoid silent replicas and those called before, if others
        exist."""
        called = [to for call_args in before if (to := call_args["routed_to"]) is not None]
        return {"avoid": [*called, *self._heartbeats.silent], "routed_to": None}

    async def _describe(self, call_args: Routed) -> TargetLimits:
        call = self._replicas.describe.remote(call_args)
        try:
            target = await call
        finally:
            call.cancel()
        self.drafters_down = len(target["down"])
        return TargetLimits(
            target["vocab_size"],
            target["max_context"],
            tuple(target["stop_token_ids"]),
            follows_grammars=target["follows_grammars"],
        )
