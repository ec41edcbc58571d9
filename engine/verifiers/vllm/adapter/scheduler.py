"""vLLM's scheduler, told who takes part in each step."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import Request, RequestStatus

NEVER = 1 << 62
"""A step that does not come: until then a running request is passed over and keeps its KV."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request does in a step."""

    draft: Sequence[int] = ()
    chunk: int = NEVER
    """At most this many committed tokens are computed; while some are left behind, the draft
    is not looked at."""


class TurnScheduler(Scheduler):
    """vLLM's scheduler over the requests of one step, in the order in which they were given.

    The others are held: a running one keeps its KV, unless a step needs the room; then those
    that ran longest ago lose theirs first. `running` is kept most recently run first.
    """

    running: list[Request]
    waiting: RequestQueue

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._turns: Mapping[str, Turn] = {}
        # A request that enters the batch with one token left would be padded with rows of
        # drafts that nobody made; a schedule of draft lengths (here a constant) turns that off.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)

    def plan(self, turns: Mapping[str, Turn]) -> None:
        """Who takes part in the next step."""
        self._turns = turns

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        batch = self._make_room([self.requests[name] for name in self._turns])
        members = set(batch)
        held = [request for request in self.running if request not in members]
        for request in held:
            request.next_decode_eligible_step = NEVER
        for request in batch:
            request.next_decode_eligible_step = 0
            request.spec_token_ids = list(self._turns[request.request_id].draft)
        waiting = self.waiting
        self.running = [one for one in batch if one.status == RequestStatus.RUNNING] + held
        self.waiting = self._queue(one for one in batch if one.status != RequestStatus.RUNNING)
        output = super().schedule(throttle_prefills)
        taken = set(self.running)
        self.waiting = self._queue(
            one for one in dict.fromkeys((*self.waiting, *waiting)) if one not in taken
        )
        ran = output.num_scheduled_tokens
        self.running.sort(key=lambda one: one.request_id not in ran)  # stable
        return output

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Drafts come with the turns."""

    def _reserve_prefill_lookahead(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """vLLM asks here, for every request, how many tokens may enter: the turn's chunk."""
        chunk = self._turns[request.request_id].chunk
        behind: int = request.num_tokens - num_computed_tokens
        return num_new_tokens if behind <= chunk else min(num_new_tokens, chunk)

    def _make_room(self, batch: list[Request]) -> list[Request]:
        """The requests of the batch that there is KV for, idle ones evicted until there is."""
        while batch:
            entering = sum(one.status != RequestStatus.RUNNING for one in batch)
            if (
                sum(map(self._missing_blocks, batch)) <= self.free_blocks
                and len(self.running) + entering <= self.max_num_running_reqs
            ):
                break
            members = set(batch)
            victim = next((one for one in reversed(self.running) if one not in members), None)
            if victim is None:
                batch = batch[:-1]
            else:
                self.running.remove(victim)
                self._preempt_request(victim, time.monotonic())
        return batch

    def _missing_blocks(self, request: Request) -> int:
        turn = self._turns[request.request_id]
        behind = request.num_tokens - request.num_computed_tokens
        if request.status != RequestStatus.RUNNING:
            length = request.num_tokens  # vLLM admits nobody whose prompt does not fit as a whole
        elif behind > turn.chunk:
            length = request.num_computed_tokens + turn.chunk
        else:
            length = request.num_tokens + len(turn.draft)
        length = min(length, self.max_model_len)
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)
        groups = self.kv_cache_config.kv_cache_groups
        return sum(
            max(0, -(-length // group.kv_cache_spec.block_size) - len(ids))
            for group, ids in zip(groups, blocks, strict=True)
        )

    def _queue(self, requests: Iterable[Request]) -> RequestQueue:
        queue = create_request_queue(self.policy)
        for request in requests:
            queue.add_request(request)
        return queue

    @property
    def free_blocks(self) -> int:
        free: int = self.kv_cache_manager.block_pool.get_num_free_blocks()
        return free
