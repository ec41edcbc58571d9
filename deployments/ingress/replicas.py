"""What the ingress asks replicas besides requests: above all whether any can serve."""

import asyncio
import logging
import time
from collections.abc import Awaitable
from contextvars import Context
from typing import TypeVar

from ray.serve.handle import DeploymentHandle

from deployments.ingress.answers.json_text import Body
from deployments.ingress.errors import ApiError
from deployments.ingress.heartbeat_sender import HeartbeatSender
from deployments.messages import Routed
from engine.request import TargetLimits

_LOG = logging.getLogger(__name__)
_WAIT_S = 2.0

_READ_CLOCK_S = 1.0
_LOG_CLOCK_S = 60.0
_CLOCK_STEP_S = 1.0
"""A change of the system's clock that is no drift."""

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


class ClockWatch:
    """Notices that the system's clock is set back, by one that never is. Serve takes its times from
    the system's, so it replaces no lost replica until that is where it was."""

    def __init__(self) -> None:
        self._ahead_s: float | None = None
        """How far the system's clock was ahead of the other one."""
        self._until_s = 0.0

    def read(self, system_s: float, monotonic_s: float) -> float:
        """Seconds until the system's clock is where it was; 0 if it was not set back."""
        ahead_s = system_s - monotonic_s
        back_s = 0.0 if self._ahead_s is None else self._ahead_s - ahead_s
        self._ahead_s = ahead_s
        if abs(back_s) > _CLOCK_STEP_S:
            self._until_s = max(self._until_s, monotonic_s) + back_s
        return max(0.0, self._until_s - monotonic_s)

    @property
    def warning(self) -> str:
        """Empty unless the clock was set back."""
        left_s = self.read(time.time(), time.monotonic())
        back = f"the system's clock was set back: for {left_s:.0f} s more Serve replaces no replica"
        return back if left_s else ""

    async def run(self) -> None:
        """Logs it."""
        while True:
            warning = self.warning
            if warning:
                _LOG.warning("%s; have clocks slewed, never stepped", warning)
            await asyncio.sleep(_LOG_CLOCK_S if warning else _READ_CLOCK_S)


class Readiness:
    def __init__(self, replicas: DeploymentHandle, heartbeats: HeartbeatSender) -> None:
        self._replicas = replicas
        self._heartbeats = heartbeats
        self.clock = ClockWatch()
        self._now = asyncio.get_running_loop().time
        self._drafters_down = 0
        """How many the replica that answered last has lost."""
        self._has_answered = False
        self._silent_since_s: float | None = None
        """When a check first found no replica that answers, after one had."""
        self._checking: asyncio.Task[TargetLimits | ApiError] | None = None

    async def check(self) -> TargetLimits:
        """The limits from the first replica that answers; raises ApiError 503 if none does. Callers
        share one check at a time: anyone may ask for any number."""
        if self._checking is None or self._checking.done():
            # In a context of its own: a task of a request's context would be cancelled with it.
            checking = self._outcome()
            self._checking = asyncio.get_running_loop().create_task(checking, context=Context())
        outcome = await asyncio.shield(self._checking)
        if isinstance(outcome, ApiError):
            raise ApiError(outcome.status, outcome.message)
        return outcome

    async def _outcome(self) -> TargetLimits | ApiError:
        try:
            return await self._check()
        except ApiError as error:
            return error

    async def _check(self) -> TargetLimits:
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
        finally:
            for call_args in calls:
                self._heartbeats.record_replicas(call_args.get("replicas"))
            for call, call_args in waiting.items():
                call.cancel()
                if call_args["routed_to"] is not None:
                    self._heartbeats.probe(call_args["routed_to"])
        raise ApiError(503, self._silence())

    @property
    def body(self) -> Body:
        """What `/health` says after a successful check."""
        warning = {"warning": self.clock.warning} if self.clock.warning else {}
        return {"status": "ok", "drafters_down": self._drafters_down, **warning}

    def _silence(self) -> str:
        if not self._has_answered:
            return "starting: no replica answers yet"
        self._silent_since_s = self._silent_since_s or self._now()
        silent_s = self._now() - self._silent_since_s
        return (
            f"no replica has answered for {silent_s:.0f} s: the last one is lost or hangs; "
            f"{self.clock.warning or 'Serve starts another (`serve status`)'}"
        )

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
        self._has_answered, self._silent_since_s = True, None
        self._drafters_down = len(target["down"])
        return TargetLimits(
            target["vocab_size"],
            target["max_context"],
            tuple(target["stop_token_ids"]),
            follows_grammars=target["follows_grammars"],
        )
