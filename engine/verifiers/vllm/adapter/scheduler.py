"""vLLM's scheduler, restricted in each step to the requests that the caller names."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from engine.protocol import FeatureRange, Features
from engine.verifiers.vllm.adapter.fair_cache import FairCache
from engine.verifiers.vllm.sampling import SAMPLER_INPUT, SamplerInput

NEVER = 1 << 62
"""A step that never comes: a running request held until then is passed over and keeps its KV."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request's part in a step."""

    draft: Sequence[int] = ()
    chunk: int = NEVER
    """At most this many committed tokens are computed; while some are left, the draft is
    ignored."""
    allowed: Sequence[NDArray[np.int32] | None] | None = None
    """For a request with a grammar: the tokens allowed (sampler.Row.allowed) after its last
    committed token and after each token of its draft."""
    features: FeatureRange | None = None
    """As VerifyOrder.features."""


class TurnScheduler(Scheduler):
    """Schedules the requests that have a turn in a step, in the order of the turns.

    All others are held. A held request keeps its KV unless a step needs the memory; then the least
    recently run lose theirs first. `running` is ordered most recently run first.
    """

    running: list[Request]
    waiting: RequestQueue

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._turns: Mapping[str, Turn] = {}
        self.features: Mapping[str, Features] = {}
        """Those of the last step, by request."""
        self._fair_cache = FairCache(self.kv_cache_manager.block_pool)
        # vLLM would pad a request that enters the batch with one token left by rows for a draft it
        # does not have; a schedule of draft lengths (here a constant) turns that off.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)

    def plan(self, turns: Mapping[str, Turn]) -> None:
        """Sets the turns of the next step."""
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
        now_running = set(self.running)
        self.waiting = self._queue(
            one for one in dict.fromkeys((*self.waiting, *waiting)) if one not in now_running
        )
        ran = output.num_scheduled_tokens
        self.running.sort(key=lambda one: one.request_id not in ran)  # stable
        turns = {name: self._turns[name] for name in ran}
        output.spindle_allowed = {
            name: turn.allowed for name, turn in turns.items() if turn.allowed is not None
        }
        output.spindle_features = {
            name: turn.features for name, turn in turns.items() if turn.features is not None
        }
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        self.features = getattr(model_runner_output, "spindle_features", {})
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        return outputs

    def _get_local_prefix_cache_hit(self, request: Request) -> tuple[KVCacheBlocks, int, int, bool]:
        """Stops at the position from which features are wanted, as the cache has none."""
        hit: tuple[KVCacheBlocks, int, int, bool] = super()._get_local_prefix_cache_hit(request)
        blocks, cached, *others = hit
        wanted = self._turns[request.request_id].features
        if wanted is None or cached <= wanted.first:
            return hit
        cached = wanted.first // self.block_size * self.block_size
        return self.kv_cache_manager.truncate_computed_blocks(blocks, cached), cached, *others

    def _reserve_prefill_lookahead(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """Limits the tokens that enter to the turn's chunk; vLLM calls this for every request."""
        chunk = self._turns[request.request_id].chunk
        left: int = request.num_tokens - num_computed_tokens
        return num_new_tokens if left <= chunk else min(num_new_tokens, chunk)

    def _free_request_blocks(self, request: Request) -> None:
        groups = self.kv_cache_manager.get_block_ids(request.request_id)
        super()._free_request_blocks(request)
        inputs: SamplerInput = request.sampling_params.extra_args[SAMPLER_INPUT]
        for blocks in groups:
            self._fair_cache.released(inputs.start.scope.tenant, blocks)

    def _make_room(self, batch: list[Request]) -> list[Request]:
        """Evicts held requests until the batch's KV fits, then drops requests off its end."""
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
        left = request.num_tokens - request.num_computed_tokens
        if request.status != RequestStatus.RUNNING:
            length = request.num_tokens  # vLLM admits a request only if its whole prompt fits
        elif left > turn.chunk:
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
