"""All contact with vLLM's internals. Written against 0.32, and refused on anything else.

vLLM's engine core runs here step by step, and each step says who takes part in it and with which
draft. Three things of vLLM are replaced for that, by dotted paths that its workers can import:
the scheduler's choice of requests, the proposer (drafts come from outside), and the sampler. And
on a CPU with AMX its runner is told to compute 36 rows where there are 17 to 32.
"""

import atexit
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import vllm
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.distributed.parallel_state import (
    destroy_distributed_environment,
    destroy_model_parallel,
)
from vllm.forward_context import BatchDescriptor
from vllm.sampling_params import SamplingParams as EngineParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.outputs import DraftTokenIds, LogprobsTensors, SamplerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from engine.params import SamplingParams
from engine.protocol import Start, TokenLogprobs
from engine.ranks import RankLost
from engine.row_counts import has_dear_counts, without_dear_counts
from engine.verifiers.vllm_environment import mend_llvmlite
from engine.verifiers.vllm_errors import SUPPORTED, UnsupportedVLLM
from engine.verifiers.vllm_sampling import Asked, Said, Wish, decide

WISH = "spindle"
"""Our key in a request's `extra_args`."""
NO_TOKEN = -1
"""vLLM's own placeholder behind the last token that a request was given."""
NEVER = 1 << 62
"""A step that does not come: until then a running request is passed over and keeps its KV."""


mend_llvmlite()


@atexit.register
def _leave_groups() -> None:
    """All engines of a process share vLLM's process groups, so none of them may end these. Left
    alone, their threads (39 of gloo's after one engine) run on into the interpreter's teardown."""
    destroy_model_parallel()
    destroy_distributed_environment()


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request does in a step."""

    draft: Sequence[int] = ()
    chunk: int = NEVER
    """At most this many committed tokens are computed; while some are left behind, the draft
    is not looked at."""


@dataclass(frozen=True, slots=True)
class Outcome:
    tokens: tuple[int, ...]
    """Accepted draft tokens and one more; empty while committed tokens are `pending`."""
    pending: int
    reported: tuple[TokenLogprobs, ...] | None
    prompt: tuple[TokenLogprobs, ...]
    """Of the whole prompt but its first token, with the first token behind it."""
    finished: bool
    """vLLM is done with the request: it has as many tokens as the model takes."""


@dataclass(frozen=True, slots=True)
class KvBlocks:
    free: int
    used: int
    cached: int
    """Held by nobody, kept for prompts that begin alike."""
    total: int


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


class NoDrafts:
    """vLLM's proposer here: it has nothing to propose."""

    def __init__(self, _config: VllmConfig) -> None: ...

    def load_model(self, _model: torch.nn.Module) -> None: ...

    def propose(
        self, sampled: Sequence[Sequence[int]], *_: object, **__: object
    ) -> list[list[int]]:
        return [[] for _ in sampled]


class WorkerExtension:
    """Mixed into vLLM's worker, whichever the platform has."""

    model_runner: GPUModelRunner

    def replace_sampler(self) -> None:
        runner = self.model_runner
        _demand(
            runner,
            "_sample",
            "sampler.gather_logprobs",
            "requests",
            "input_batch.req_ids",
            "input_batch.num_tokens_no_spec",
            "discard_request_mask.np",
            "effective_drafter_max_model_len",
        )
        runner._sample = partial(sample, runner)
        runner.sampler.gather_logprobs = _gather_logprobs
        # Near the end of the context vLLM would tell the proposer to stand back, on a path that
        # needs CUDA; ours never stands in the way.
        runner.effective_drafter_max_model_len = NEVER

    def avoid_dear_row_counts(self) -> None:
        """Rows are added where vLLM adds them for CUDA graphs, which a CPU has none of."""
        runner = self.model_runner
        _demand(runner, "cudagraph_dispatcher.dispatch", "max_num_tokens", "dtype", "device")
        if not has_dear_counts(runner.device, runner.dtype):
            return
        dispatch = runner.cudagraph_dispatcher.dispatch

        def dispatch_more(
            num_tokens: int, *arguments: Any, **named: Any
        ) -> tuple[CUDAGraphMode, BatchDescriptor]:
            more = min(without_dear_counts(num_tokens), runner.max_num_tokens)
            mode, batch = dispatch(num_tokens, *arguments, **named)
            return mode, replace(batch, num_tokens=max(more, batch.num_tokens))

        runner.cudagraph_dispatcher.dispatch = dispatch_more


def sample(
    runner: GPUModelRunner, logits: torch.Tensor, drafts: SpecDecodeMetadata | None
) -> SamplerOutput:
    """In place of GPUModelRunner._sample: a row for each request and each token of its draft."""
    names = runner.input_batch.req_ids
    counts = [0] * len(names) if drafts is None else drafts.num_draft_tokens
    tokens = [] if drafts is None else drafts.draft_token_ids.tolist()
    unfinished = runner.discard_request_mask.np[: len(names)].tolist()
    asked, places = [], []
    first_row = first_draft = 0
    for index, (name, count) in enumerate(zip(names, counts, strict=True)):
        if not unfinished[index]:
            request = runner.requests[name]
            wish: Wish = request.sampling_params.extra_args[WISH]
            history: list[int] = []
            if wish.start.params.has_penalties:
                history = [*request.prompt_token_ids, *request.output_token_ids]
            draft = tokens[first_draft : first_draft + count]
            position = int(runner.input_batch.num_tokens_no_spec[index])
            asked.append(Asked(wish, first_row, position, history, draft))
            places.append(index)
        first_row += count + 1
        first_draft += count
    said = decide(logits, asked)
    width = max(counts, default=0) + 1
    sampled = torch.full((len(names), width), NO_TOKEN, dtype=torch.int32)
    for place, one in zip(places, said, strict=True):
        sampled[place, : len(one.tokens)] = torch.tensor(one.tokens, dtype=torch.int32)
    return SamplerOutput(sampled.to(logits.device), _packed(said, places, sampled.shape))


def _gather_logprobs(
    logprobs: torch.Tensor, top_n: int, token_ids: torch.Tensor
) -> LogprobsTensors:
    """In place of Sampler.gather_logprobs, which the runner calls for prompts: that one counts
    ranks, too, with a function that is compiled for seconds while the first such request waits."""
    top = logprobs.topk(top_n, -1)
    tokens = token_ids[:, None]
    ids = torch.cat([tokens, top.indices], -1)
    values = torch.cat([logprobs.gather(-1, tokens), top.values], -1)
    return LogprobsTensors(ids.int(), values, torch.zeros_like(token_ids, dtype=torch.int32))


def _packed(
    said: Sequence[Said], places: Sequence[int], shape: Sequence[int]
) -> LogprobsTensors | None:
    """In vLLM's own form, a row for each place of the sampled tokens: the token, then its top."""
    columns = max((1 + len(row.top) for one in said for row in one.reported or ()), default=0)
    if not columns:
        return None
    ids = torch.zeros((*shape, columns), dtype=torch.int32)
    values = torch.zeros((*shape, columns), dtype=torch.float32)
    for place, one in zip(places, said, strict=True):
        for step, (token, row) in enumerate(zip(one.tokens, one.reported or (), strict=False)):
            top = [(token, row.logprob), *row.top]
            ids[place, step, : len(top)] = torch.tensor([one_id for one_id, _ in top])
            values[place, step, : len(top)] = torch.tensor([value for _, value in top])
    ranks = torch.zeros(ids.shape[:2].numel(), dtype=torch.int32)
    return LogprobsTensors(ids.flatten(0, 1), values.flatten(0, 1), ranks)


class StepEngine:
    """vLLM's engine core in this process, one step at a time."""

    def __init__(self, config: VllmConfig, ray_metrics: bool = False) -> None:
        """`ray_metrics`: each step's statistics go to Ray's metrics endpoint, under the names
        that vLLM gives them there."""
        check(config)
        self._config = config
        self._metrics = _ray_metrics(config) if ray_metrics else None
        set_num_threads = torch.set_num_threads
        try:
            self._core = EngineCore(config, Executor.get_class(config), log_stats=ray_metrics)
        finally:
            # On a CPU vLLM forbids it to the whole process, drafters beside it included.
            torch.set_num_threads = set_num_threads
        self._scheduler: TurnScheduler = self._core.scheduler
        _demand(
            self._scheduler,
            "running",
            "waiting",
            "requests",
            "dynamic_sd_lookup",
            "max_num_running_reqs",
            "kv_cache_config.kv_cache_groups",
            "kv_cache_manager.block_pool.blocks",
            "kv_cache_manager.block_pool.get_num_free_blocks",
        )
        self._core.model_executor.collective_rpc("replace_sampler")
        self._core.model_executor.collective_rpc("avoid_dear_row_counts")
        self._reports: dict[str, int] = {}
        self._lost = ""
        """What ended it."""
        self._probe()

    @property
    def vocab_size(self) -> int:
        size: int = self._config.model_config.get_vocab_size()
        return size

    @property
    def max_context(self) -> int:
        length: int = self._config.model_config.max_model_len
        return length

    @property
    def version(self) -> str:
        version: str = vllm.__version__
        return version

    @property
    def device(self) -> str:
        device: str = self._config.device_config.device_type
        return device

    @property
    def block_size(self) -> int:
        size: int = self._config.cache_config.block_size
        return size

    def open(
        self,
        name: str,
        tokens: Sequence[int],
        wish: Wish,
        prompt_logprobs: int | None = None,
    ) -> None:
        """Adds a request; it takes part in no step until it has a turn. With `prompt_logprobs`
        nothing of it comes from the prefix cache."""
        top_n = len(wish.score) if wish.score else wish.start.params.logprobs
        params = EngineParams(
            temperature=0,
            max_tokens=self.max_context,
            ignore_eos=True,
            detokenize=False,
            logprobs=top_n,
            prompt_logprobs=prompt_logprobs,
            extra_args={WISH: wish},
        )
        if top_n is not None:
            self._reports[name] = top_n
        hasher = self._core.request_block_hasher
        self._core.add_request(Request(name, list(tokens), params, None, block_hasher=hasher))

    def close(self, names: Collection[str]) -> None:
        """Frees the KV of these requests; unknown ones are no error."""
        for name in names:
            self._reports.pop(name, None)
        self._core.abort_requests(list(names))

    def step(self, turns: Mapping[str, Turn]) -> dict[str, Outcome]:
        """One forward. A request that is missing in the answer found no room for its KV.

        RankLost is final: whatever went wrong, vLLM's state is not to be trusted any more.
        """
        if not turns:
            return {}
        if self._lost:
            raise RankLost(self._lost)
        # In a thread that is new to torch, OpenMP's count of threads becomes torch's when torch
        # first asks. vLLM's attention would plan with one count and compute with the other.
        torch.get_num_threads()
        requests = {name: self._scheduler.requests[name] for name in turns}
        before = {name: one.num_computed_tokens for name, one in requests.items()}
        self._scheduler.plan(turns)
        try:
            outputs, _ = self._core.step()
        except Exception as error:
            self._lost = f"vLLM stopped: {error!r}"
            raise RankLost(self._lost) from error
        if self._metrics is not None:
            for every in outputs.values():
                self._metrics.record(every.scheduler_stats, None)
        said = {one.request_id: one for every in outputs.values() for one in every.outputs}
        outcomes = {}
        for name, request in requests.items():
            output = said.get(name)
            if output is not None:
                tokens = tuple(output.new_token_ids)
                reported, prompt = self._reported(name, output), _of_prompt(output)
                outcomes[name] = Outcome(tokens, 0, reported, prompt, request.is_finished())
            elif request.num_computed_tokens > before[name]:
                pending = request.num_tokens - request.num_computed_tokens
                outcomes[name] = Outcome((), pending, None, (), False)
        return outcomes

    def blocks(self) -> KvBlocks:
        pool = self._scheduler.kv_cache_manager.block_pool
        # vLLM keeps block 0 for itself, and counts cached blocks that nobody holds as free.
        blocks = [block for block in pool.blocks if not block.is_null]
        cached = sum(not block.ref_cnt and block.block_hash is not None for block in blocks)
        free = self._scheduler.free_blocks
        return KvBlocks(free - cached, len(blocks) - free, cached, len(blocks))

    def shutdown(self) -> None:
        """Ends its workers. The core's own shutdown would break other engines of this process."""
        self._core.model_executor.shutdown()
        self._core.scheduler.shutdown()

    def _reported(self, name: str, output: EngineCoreOutput) -> tuple[TokenLogprobs, ...] | None:
        top_n = self._reports.get(name)
        if top_n is None:
            return None
        lists = output.new_logprobs
        rows = zip(lists.logprob_token_ids.tolist(), lists.logprobs.tolist(), strict=True)
        return tuple(_token_logprobs(ids[: 1 + top_n], values[: 1 + top_n]) for ids, values in rows)

    def _probe(self) -> None:
        """What holding relies on: the held request is passed over and keeps what it has."""
        wish = Wish(Start(SamplingParams(temperature=0), 0, 1))
        names = ("probe-held", "probe-running")
        for name in names:
            self.open(name, [0, 0], wish)
        self.step({name: Turn() for name in names})
        held = self._scheduler.requests[names[0]]
        blocks = self._scheduler.kv_cache_manager.get_block_ids(names[0])
        tokens = held.num_tokens
        outcome = self.step({names[1]: Turn()})
        if (
            tokens != 3
            or list(outcome) != [names[1]]
            or held.num_tokens != tokens
            or held.num_computed_tokens != tokens - 1
            or self._scheduler.kv_cache_manager.get_block_ids(names[0]) != blocks
        ):
            raise _unsupported("a request that is held back is run, or loses its KV")
        self.close(names)


def _of_prompt(output: EngineCoreOutput) -> tuple[TokenLogprobs, ...]:
    told = output.new_prompt_logprobs_tensors
    if told is None:
        return ()
    rows = zip(told.logprob_token_ids.tolist(), told.logprobs.tolist(), strict=True)
    return tuple(_token_logprobs(ids, values) for ids, values in rows)


def _token_logprobs(ids: Sequence[int], values: Sequence[float]) -> TokenLogprobs:
    """From vLLM's own form: the token itself, then its top."""
    return TokenLogprobs(values[0], tuple(zip(ids[1:], values[1:], strict=True)))


def _ray_metrics(config: VllmConfig) -> StatLoggerBase:
    from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger  # imports Ray

    return RayPrometheusStatLogger(config)


def check(config: VllmConfig) -> None:
    """Raises UnsupportedVLLM where the version or the configuration is not what we rely on."""
    if not vllm.__version__.startswith(f"{SUPPORTED}."):
        raise _unsupported("another version")
    _demand(Scheduler, "schedule", "_reserve_prefill_lookahead", "_preempt_request")
    _demand(EngineCore, "step", "add_request", "abort_requests")
    _demand(GPUModelRunner, "_sample")
    if config.use_v2_model_runner:
        raise _unsupported("model runner V2 is on, set VLLM_USE_V2_MODEL_RUNNER=0")
    if config.scheduler_config.async_scheduling:
        raise _unsupported("asynchronous scheduling is on, and each step needs the last one's")


def _unsupported(problem: str) -> UnsupportedVLLM:
    return UnsupportedVLLM(vllm.__version__, problem)


def _demand(owner: object, *paths: str) -> None:
    for path in paths:
        value = owner
        for name in path.split("."):
            if not hasattr(value, name):
                kind = owner.__name__ if isinstance(owner, type) else type(owner).__name__
                raise _unsupported(f"{kind} has no {path}")
            value = getattr(value, name)
