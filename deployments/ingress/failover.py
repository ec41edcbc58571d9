"""One choice from its first dispatch to its last token, over as many replicas as that takes.

The ingress keeps every token that it has received. When a replica dies, the prompt and the output
so far go to another one, apart, with the same seed. The output is a function of prompt, seed and
parameters alone (DESIGN 4.1), so the stream goes on as if nothing had happened.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection

from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from cluster.config import LimitsConfig
from deployments.ingress.errors import ApiError
from deployments.messages import NO_STATISTICS, Committed, Message, StreamRequest, together

_LOG = logging.getLogger(__name__)

_BACK_OFF_S = 0.1
"""Before the first resubmission; doubled for each further one."""
_FULL_S = 0.5
"""Between two tries of an accepted request while the replicas that are left have no room."""


class _Lost(Exception):
    """The replica cannot go on with the request; another one may."""


class FailoverStream:
    def __init__(
        self,
        request: StreamRequest,
        replicas: DeploymentHandle,
        silent: Collection[str],
        limits: LimitsConfig,
    ) -> None:
        self.request = request
        """As the first attempt sends it."""
        self._sent = request
        """As the last attempt has sent it."""
        self.output_ids: list[int] = []
        self.attempt = 0
        self.finished = False
        """Its replica has said all of it."""
        self.written = 0
        """Output tokens that have reached the client."""
        self.statistics = NO_STATISTICS
        """Up to the last commit, of all attempts together."""
        self._earlier = NO_STATISTICS
        """Of the attempts before the present one."""
        self._replicas = replicas
        self._silent = silent
        """The replicas that are just now."""
        self._limits = limits
        self._response: DeploymentResponseGenerator | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self.request["name"]

    @property
    def replica(self) -> str | None:
        """Which has it, or was sent it and has not answered yet, unless that was given up."""
        return self._sent["routed_to"]

    async def open(self) -> None:
        """Returns when a replica has accepted it; ApiError when it is refused."""
        try:
            await self._dispatch()
        except _Lost as lost:
            await self._resubmit(lost)

    async def commits(self) -> AsyncIterator[Committed]:
        """Every output token once, in order, whatever dies meanwhile."""
        while True:
            try:
                commit = await self._next_commit()
            except _Lost as lost:
                await self._resubmit(lost)
                continue
            self.output_ids += commit["token_ids"]
            self.statistics = together(self._earlier, commit["statistics"])
            self.finished = commit["finish"] is not None
            yield commit
            if self.finished:
                return

    def close(self) -> None:
        """Cancels it at the replica; no error when it has ended."""
        self._closed = True
        self._leave_replica()

    def give_up_replica(self) -> None:
        """It is silent: what it has not sent comes from another one."""
        self._sent["routed_to"] = None
        if self._response is not None:
            self._response.cancel()

    def _leave_replica(self) -> None:
        if self._response is not None:
            self._response.cancel()
            self._response = None

    async def _dispatch(self) -> None:
        """Sends what is left of it to a replica, and waits for the answer to that."""
        self._sent = {
            **self.request,
            "attempt": self.attempt,
            "output_ids": list(self.output_ids),
            "avoid": list(self._silent),
        }
        self._response = self._replicas.stream.remote(self._sent)
        try:
            async with asyncio.timeout(self._limits.recovery_s):
                message = await self._next_message()
        except TimeoutError:
            raise ApiError(503, "no replica has taken the request in time") from None
        if message["kind"] == "refused":
            raise ApiError(message["status"], message["message"], message["param"])
        if message["kind"] != "accepted":
            raise _Lost(f"began with {message['kind']!r}")
        self._sent["routed_to"] = message["replica"]

    async def _resubmit(self, lost: _Lost) -> None:
        """Up to `limits.resubmits` times in all: a request that kills replicas must not kill each.

        Replicas that refuse it because they are full or starting are not lost, and asked again.
        """
        give_up = asyncio.get_running_loop().time() + self._limits.recovery_s
        while True:
            self._leave_replica()
            _LOG.warning("%s at token %d: %s", self.name, len(self.output_ids), lost)
            if self.attempt == self._limits.resubmits:
                raise ApiError(
                    503, f"{self.attempt + 1} replicas were lost over it; try again later"
                )
            await asyncio.sleep(_BACK_OFF_S * 2**self.attempt)
            self.attempt += 1
            self._earlier = self.statistics
            try:
                await self._dispatch_where_room(give_up)
            except _Lost as again:
                lost = again
            else:
                return

    async def _dispatch_where_room(self, give_up: float) -> None:
        while True:
            try:
                return await self._dispatch()
            except ApiError as refusal:
                waited_out = asyncio.get_running_loop().time() > give_up
                if refusal.status not in (429, 503) or waited_out:
                    raise
            self._leave_replica()
            await asyncio.sleep(_FULL_S)

    async def _next_commit(self) -> Committed:
        """The next one that brings something new, without what an earlier attempt has brought."""
        while True:
            message = await self._next_message()
            if message["kind"] != "commit":
                raise _Lost(f"sent {message['kind']!r} before its last commit")
            held = len(self.output_ids) - message["first_index"]
            if held < 0:
                raise _Lost(f"left out {-held} tokens")
            if held < len(message["token_ids"]):
                logprobs = message["logprobs"]
                return {
                    **message,
                    "first_index": len(self.output_ids),
                    "token_ids": message["token_ids"][held:],
                    "logprobs": None if logprobs is None else logprobs[held:],
                }

    async def _next_message(self) -> Message:
        assert self._response is not None
        try:
            message: Message = await anext(self._response)
        except BackPressureError as error:
            raise ApiError(429, "too many requests wait; try again later") from error
        except (Exception, asyncio.CancelledError) as error:
            # The actor, its process or its node is gone: errors of many kinds, CancelledError
            # among them. Unless the client has gone, which wins over any resubmission.
            if self._closed or self._cancelling():
                raise asyncio.CancelledError from None
            first_line = str(error).partition("\n")[0]
            raise _Lost(f"{type(error).__name__}: {first_line}") from error
        if message["kind"] == "failed":
            if message["retry"]:
                raise _Lost(message["message"])
            raise ApiError(message["status"], message["message"])
        return message

    @staticmethod
    def _cancelling() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
