"""Which replica gets a call, through Serve's request-router API.

Serve pickles this module by value and runs it wherever a handle lives, which may lack our root:
it imports nothing of ours.
"""

import random
from collections import Counter, OrderedDict
from collections.abc import Sequence
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
"""Tokens by which prompts are compared; the verifier's KV blocks have as many."""
BLOCKS_PER_REPLICA = 4096
"""Remembered for each replica, the least recently used forgotten first."""
IMBALANCE = 8
"""Requests that a replica with the same prefix may have more than the least loaded one."""
_ROUTED = ("stream", "describe")
"""Methods whose request names replicas to avoid, and is told where it goes."""


class PrefixMemory:
    """The prompts that one replica has seen lately, as hashes of their beginnings."""

    def __init__(self, capacity: int = BLOCKS_PER_REPLICA) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def shared(self, blocks: Sequence[int]) -> int:
        """Leading blocks that it has seen."""
        return next((i for i, one in enumerate(blocks) if one not in self._blocks), len(blocks))

    def add(self, blocks: Sequence[int]) -> None:
        # Last things first: of a prompt, its end is forgotten before its beginning.
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)


def block_hashes(prompt: Sequence[int]) -> list[int]:
    """One for each whole block; equal hashes mean that everything up to there is equal."""
    hashes = []
    so_far = 0
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        so_far = hash((so_far, *prompt[end - BLOCK : end]))
        hashes.append(so_far)
    return hashes


class PrefixRouter(RequestRouter):
    """A stream goes where its prompt's beginning is known, unless that replica has too much to
    do; a sign of life goes to the replica that it names; all else to the less loaded of two. What
    need not go to a silent replica does not.

    A replica that drains (scale-down, redeploy) leaves Serve's list while its streams go on: it
    is kept here for their signs of life, without which it would take its ingress for dead.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._memories: dict[ReplicaID, PrefixMemory] = {}
        self._streams: Counter[ReplicaID] = Counter()
        self._stream_of: Counter[tuple[ReplicaID, str]] = Counter()
        """By the client's request that they belong to, which may have several choices."""
        self._draining: dict[ReplicaID, RunningReplica] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        running = [one for one in candidate_replicas if one.replica_id not in self._draining]
        if pending_request is None:
            return [_two_of(running)]
        # Serve tries again at once, without a pause, where this is left False.
        pending_request.routing_context.should_backoff = True
        method = pending_request.metadata.call_method
        if method == "heartbeat":
            name = pending_request.args[0]["replica"]
            named = [one for one in candidate_replicas if one.replica_id.unique_id == name]
            # Where it is gone, any other one takes the message and drops it, even one that drains:
            # a sign that waited for a new replica would hold up those of the streams that go on.
            return [named or candidate_replicas]
        if method not in _ROUTED:
            return [_two_of(running)]
        request = pending_request.args[0]
        speaking = [one for one in running if one.replica_id.unique_id not in request["avoid"]]
        if method == "stream":
            return self._for_prompt(speaking or running, request["prompt_ids"])
        return [_two_of(speaking or running)]

    def _for_prompt(
        self, running: list[RunningReplica], prompt: Sequence[int]
    ) -> list[list[RunningReplica]]:
        blocks = block_hashes(prompt)
        shared = {one.replica_id: self._memory(one.replica_id).shared(blocks) for one in running}
        least = min((self._streams[one.replica_id] for one in running), default=0)
        near = [
            one
            for one in running
            if shared[one.replica_id] and self._streams[one.replica_id] <= least + IMBALANCE
        ]
        best = max(near, key=lambda one: shared[one.replica_id], default=None)
        # Each rank is tried if the one before it is full.
        return [*([[best]] if best else []), _two_of(running)]

    def _memory(self, replica: ReplicaID) -> PrefixMemory:
        return self._memories.setdefault(replica, PrefixMemory())

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        metadata = pending_request.metadata
        if metadata.call_method == "stream":
            self._streams[replica_id] += 1
            self._stream_of[replica_id, metadata.internal_request_id] += 1
            blocks = block_hashes(pending_request.args[0]["prompt_ids"])
            self._memory(replica_id).add(blocks)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        key = replica_id, internal_request_id
        if not self._stream_of[key]:
            return  # no stream: a sign of life, or a call that was turned away
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
        """Gives the replica to the very call for which it was chosen.

        Serve's own finds the call by the id of the client's request. The choices of one request
        share that id, and all but one of them would wait for ever.
        """
        for pending in self._pending_requests_to_fulfill:
            if pending.metadata is request_metadata and not pending.future.done():
                _tell_sender(pending, replica)
                self._record_queue_wait_time(pending)
                pending.future.set_result(replica)
                self._remove_pending_request_from_indices(pending)
                return


def _tell_sender(pending: PendingRequest, replica: RunningReplica) -> None:
    """A replica that hangs would never say that it has the request."""
    if pending.metadata.call_method in _ROUTED:
        pending.args[0]["routed_to"] = replica.replica_id.unique_id


def _two_of(replicas: list[RunningReplica]) -> list[RunningReplica]:
    """Serve takes the less loaded one (power of two choices)."""
    return random.sample(replicas, min(2, len(replicas)))
