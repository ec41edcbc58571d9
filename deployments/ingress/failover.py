"""One choice from its first dispatch to its last token, over as many replicas as necessary.

The ingress keeps every token that it has received. When a replica is lost, prompt and output so far
go to another one, in separate fields, with the same seed. The output is a function of prompt, seed
and parameters alone (docs/architecture.md, "Drafter-invariant sampling"), so the stream continues
unchanged.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence

from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from actors.coordinator.stream import Statistics
from cluster.config import LimitsConfig
from deployments.ingress.errors import ApiError
from deployments.messages import Committed, Message, StreamRequest, summed

_LOG = logging.getLogger(__name__)

_BACK_OFF_S = 0.1
"""Pause before the first resubmission, doubled for each further one."""
_RETRY_FULL_S = 0.5
"""Pause between two attempts to resubmit while the remaining replicas have no capacity."""


class _ReplicaLost(Exception):
    """The replica cannot continue the request, but another one may."""


class _Refused(ApiError):
    """By one replica; another one may have room."""


class FailoverStream:
    def __init__(
        self,
        request: StreamRequest,
        replicas: DeploymentHandle,
        silent: Collection[str],
        limits: LimitsConfig,
        on_loss: Callable[[str], None],
    ) -> None:
        """`on_loss`: called with a replica that is lost while it has the request."""
        self.request = request
        """The request as the first attempt sends it."""
        self._sent = request
        """The request as the latest attempt has sent it."""
        self.output_ids: list[int] = []
        self.attempt = 0
        self.finished = False
        """Whether the commit with a finish has been received."""
        self.written = 0
        """Output tokens that have reached the client."""
        self.statistics = Statistics()
        """Summed over all attempts, up to the last commit."""
        self._earlier = Statistics()
        """Statistics of all attempts before the present one."""
        self._handle = replicas
        self._silent = silent
        """Replicas that do not answer heartbeats at present; kept up to date by HeartbeatSender."""
        self._limits = limits
        self._on_loss = on_loss
        self._response: DeploymentResponseGenerator | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self.request["name"]

    @property
    def replica(self) -> str | None:
        """The replica that has the request or was sent it; None while it is not assigned, or after
        the replica was given up."""
        return self._sent["routed_to"]

    @property
    def replicas(self) -> list[str] | None:
        """All replicas when the request was sent last; None before that."""
        return self._sent.get("replicas")

    async def open(self) -> None:
        """Returns when a replica has accepted the request; raises ApiError if it is refused: for
        lack of capacity by all replicas that answer."""
        refused: list[str] = []
        while True:
            try:
                return await self._dispatch(refused)
            except _ReplicaLost as lost:
                return await self._resubmit(lost)
            except _Refused as refusal:
                replica = self.replica
                others = {*(self.replicas or ())} - {*refused, replica, *self._silent}
                if refusal.status == 400 or not others or replica is None or replica in refused:
                    raise
                refused.append(replica)
                self._leave_replica()

    async def commits(self) -> AsyncIterator[Committed]:
        """Yields every output token once and in order, across replica losses."""
        while True:
            try:
                commit = await self._next_commit()
            except _ReplicaLost as lost:
                await self._resubmit(lost)
                continue
            self.output_ids += commit["token_ids"]
            self.statistics = summed(self._earlier, commit["statistics"])
            self.finished = commit["finish"] is not None
            yield commit
            if self.finished:
                return

    def close(self) -> None:
        """Cancels the request at its replica; harmless if it has ended."""
        self._closed = True
        self._leave_replica()

    def give_up_replica(self) -> None:
        """Abandons a replica that does not answer; the rest of the output comes from another
        one."""
        self._sent["routed_to"] = None
        if self._response is not None:
            self._response.cancel()

    def _leave_replica(self) -> None:
        if self._response is not None:
            self._response.cancel()
            self._response = None

    async def _dispatch(self, refused: Sequence[str] = ()) -> None:
        """Sends the request with the output so far to a replica, and waits until it is accepted.
        `refused`: the replicas that have refused it."""
        self._sent = {
            **self.request,
            "attempt": self.attempt,
            "output_ids": list(self.output_ids),
            "avoid": [*self._silent, *refused],
        }
        self._response = self._handle.stream.remote(self._sent)
        try:
            async with asyncio.timeout(self._limits.recovery_s):
                message = await self._next_message()
        except TimeoutError:
            raise ApiError(503, "no replica has taken the request in time") from None
        if message["kind"] == "refused":
            raise _Refused(message["status"], message["message"], message["param"])
        if message["kind"] != "accepted":
            raise _ReplicaLost(f"began with {message['kind']!r}")
        self._sent["routed_to"] = message["replica"]

    async def _resubmit(self, lost: _ReplicaLost) -> None:
        """Sends the request to another replica, at most `limits.resubmits` times in all, so that a
        request that crashes replicas cannot bring down every one.

        Replicas that refuse it because they are full or starting do not count as lost, and are
        tried again.
        """
        deadline = asyncio.get_running_loop().time() + self._limits.recovery_s
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
                await self._dispatch_where_room(deadline)
            except _ReplicaLost as again:
                lost = again
            else:
                return

    async def _dispatch_where_room(self, deadline: float) -> None:
        while True:
            try:
                return await self._dispatch()
            except ApiError as refusal:
                expired = asyncio.get_running_loop().time() > deadline
                if refusal.status not in (429, 503) or expired:
                    raise
            self._leave_replica()
            await asyncio.sleep(_RETRY_FULL_S)

    async def _next_commit(self) -> Committed:
        """The next commit with new tokens, without those that an earlier attempt has delivered."""
        while True:
            message = await self._next_message()
            if message["kind"] != "commit":
                raise _ReplicaLost(f"sent {message['kind']!r} before its last commit")
            held = len(self.output_ids) - message["first_index"]
            if held < 0:
                raise _ReplicaLost(f"left out {-held} tokens")
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
            # The actor, its process or its node is lost: Ray raises errors of many kinds,
            # CancelledError among them. If the client has left, its cancellation takes precedence
            # over a resubmission.
            if self._closed or self._cancelling():
                raise asyncio.CancelledError from None
            if self.replica is not None:  # not given up before
                self._on_loss(self.replica)
            first_line = str(error).partition("\n")[0]
            raise _ReplicaLost(f"{type(error).__name__}: {first_line}") from error
        if message["kind"] == "failed":
            if message["retry"]:
                raise _ReplicaLost(message["message"])
            raise ApiError(message["status"], message["message"])
        return message

    @staticmethod
    def _cancelling() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
