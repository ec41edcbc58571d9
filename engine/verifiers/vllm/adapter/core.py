"""vLLM's engine core in this process, with our scheduler and sampler."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import vllm
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams as EngineParams
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.request import Request

from engine.parallel.ranks import RankLost
from engine.protocol import Start, TokenLogprobs
from engine.sampling.params import SamplingParams
from engine.verifiers.vllm.adapter.scheduler import Turn, TurnScheduler
from engine.verifiers.vllm.adapter.support import check, demand, unsupported
from engine.verifiers.vllm.adapter.worker import WISH
from engine.verifiers.vllm.sampling import Wish


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
        demand(
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
            raise unsupported("a request that is held back is run, or loses its KV")
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
