"""Chooses the replica for each call, through Serve's request-router API.

Serve pickles this module by value and runs it in any process that has a handle, where the project
root may be missing from the import path. So it imports nothing from the project.
"""

import random
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from ray.serve._private.common import RequestMetadata
from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    ReplicaResult,
    RequestRouter,
    RunningReplica,
)

BLOCK = 16
"""Prompts are compared in blocks of this many tokens, as large as the verifier's KV blocks."""
BLOCKS_PER_REPLICA = 4096
"""Block hashes remembered per replica; the least recently used are dropped first."""
IMBALANCE = 8
"""A replica with a matching prefix is chosen while it has at most this many streams more than the
least loaded replica."""
_NAMED = ("heartbeat", "metrics", "live")
"""Methods whose argument names the replica that they are for."""
_ROUTED = ("stream", "describe")
"""Methods whose argument is a `Routed`: `avoid` is read, `routed_to` and `replicas` are
written."""


class PrefixMemory:
    """The prompts that one replica has served recently, as hashes of their leading blocks."""

    def __init__(self) -> None:
        self._blocks = OrderedDict[int, None]()
        """The least recently used first."""

    def shared(self, blocks: Sequence[int]) -> int:
        """Number of leading blocks that this replica has served."""
        return next((i for i, one in enumerate(blocks) if one not in self._blocks), len(blocks))

    def add(self, blocks: Sequence[int]) -> None:
        # In reverse order, so that the end of a prompt is dropped before its beginning, without
        # which it could not be matched.
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > BLOCKS_PER_REPLICA:
            self._blocks.popitem(last=False)


def block_hashes(prompt: Sequence[int], scope: Sequence[str] = ()) -> list[int]:
    """One hash per whole block, over all tokens up to its end: equal hashes mean equal prefixes of
    requests in one scope. Which replica answers would otherwise tell what others have asked."""
    hashes = []
    so_far = hash(tuple(scope))
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        so_far = hash((so_far, *prompt[end - BLOCK : end]))
        hashes.append(so_far)
    return hashes


class PrefixRouter(RequestRouter):
    """Sends a stream to the replica that has served the longest prefix of its prompt, unless that
    one has far more streams than others; a heartbeat to the replica that it names; other calls to
    the less loaded of two random replicas. Replicas that do not answer heartbeats are avoided.

    A replica that drains (scale-down, redeploy) leaves Serve's list while its streams continue. It
    is kept here to receive heartbeats for them, without which it would cancel these streams.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._memories: dict[ReplicaID, PrefixMemory] = {}
        self._streams: Counter[ReplicaID] = Counter()
        self._stream_of: Counter[tuple[ReplicaID, str]] = Counter()
        """Open streams by replica and client request; a client request may have several choices."""
        self._draining: dict[ReplicaID, RunningReplica] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        running = [one for one in candidate_replicas if one.replica_id not in self._draining]
        if pending_request is None:
            return [_two_random(running)]
        # If this stays False, Serve retries in a busy loop.
        pending_request.routing_context.should_backoff = True
        method = pending_request.metadata.call_method
        if method in _NAMED:
            name = pending_request.args[0]["replica"]
            named = [one for one in candidate_replicas if one.replica_id.unique_id == name]
            # If the named replica is gone, any other one (draining ones included) receives the
            # message and drops it. Waiting for a new replica would delay the heartbeats of live
            # streams.
            return [named or candidate_replicas]
        if method not in _ROUTED:
            return [_two_random(running)]
        request = pending_request.args[0]
        responsive = [one for one in running if one.replica_id.unique_id not in request["avoid"]]
        if method == "stream":
            return self._for_prompt(responsive or running, request)
        return [_two_random(responsive or running)]

    def _for_prompt(
        self, running: list[RunningReplica], request: Mapping[str, Any]
    ) -> list[list[RunningReplica]]:
        blocks = block_hashes(request["prompt_ids"], request["scope"])
        shared = {one.replica_id: self._memory(one.replica_id).shared(blocks) for one in running}
        least = min((self._streams[one.replica_id] for one in running), default=0)
        candidates = [
            one
            for one in running
            if shared[one.replica_id] and self._streams[one.replica_id] <= least + IMBALANCE
        ]
        best = max(candidates, key=lambda one: shared[one.replica_id], default=None)
        # Serve tries the next group if all replicas of the one before it are full.
        return [*([[best]] if best else []), _two_random(running)]

    def _memory(self, replica: ReplicaID) -> PrefixMemory:
        return self._memories.setdefault(replica, PrefixMemory())

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        metadata = pending_request.metadata
        if metadata.call_method == "stream":
            self._streams[replica_id] += 1
            self._stream_of[replica_id, metadata.internal_request_id] += 1
            request = pending_request.args[0]
            blocks = block_hashes(request["prompt_ids"], request["scope"])
            self._memory(replica_id).add(blocks)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        key = replica_id, internal_request_id
        if not self._stream_of[key]:
            return  # not a stream: a heartbeat, or a call that was rejected
        self._stream_of[key] -= 1
        if not self._stream_of[key]:
            del self._stream_of[key]
        self._streams[replica_id] -= 1
        if replica_id in self._draining and not self._streams[replica_id]:
            self.on_replica_actor_died(replica_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        listed = {one.replica_id for one in replicas}
        for replica_id, one in self._replicas.items():
            if replica_id not in listed and self._streams[replica_id] > 0:
                self._draining[replica_id] = one
        for replica_id in listed:
            self._draining.pop(replica_id, None)
        super().update_replicas([*replicas, *self._draining.values()])
        for replica_id in self._memories.keys() - listed:
            del self._memories[replica_id]

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._draining.pop(replica_id, None)
        self._memories.pop(replica_id, None)
        self._streams.pop(replica_id, None)
        for key in [key for key in self._stream_of if key[0] == replica_id]:
            del self._stream_of[key]

    def _fulfill_next_pending_request(
        self, replica: RunningReplica, request_metadata: RequestMetadata | None = None
    ) -> None:
        """Assigns the replica to exactly the call for which it was chosen.

        Serve's own implementation finds the call by the id of the client's request. The choices of
        one request share that id, so all but one of them would wait forever.
        """
        for pending in self._pending_requests_to_fulfill:
            if pending.metadata is request_metadata and not pending.future.done():
                self._record_choice(pending, replica)
                self._record_queue_wait_time(pending)
                pending.future.set_result(replica)
                self._remove_pending_request_from_indices(pending)
                return

    def _record_choice(self, pending: PendingRequest, replica: RunningReplica) -> None:
        """Writes the chosen replica into the request, because a replica that hangs would never
        report that it has the request; and all replicas, which only the router knows."""
        if pending.metadata.call_method in _ROUTED:
            running = self._replicas.keys() - self._draining.keys()
            pending.args[0]["routed_to"] = replica.replica_id.unique_id
            pending.args[0]["replicas"] = sorted(one.unique_id for one in running)


def _two_random(replicas: list[RunningReplica]) -> list[RunningReplica]:
    """Two random replicas, of which Serve takes the less loaded one (power of two choices)."""
    return random.sample(replicas, min(2, len(replicas)))
