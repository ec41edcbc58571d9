"""vLLM's engine core in this process, with our scheduler and sampler."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import vllm
from vllm.config import VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams as EngineParams
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.request import Request

from engine.errors import RankLost, reading
from engine.kv.blocks import KvState
from engine.protocol import Features, Start, TokenLogprobs
from engine.sampling.params import SamplingParams
from engine.verifiers.vllm.adapter.scheduler import Turn, TurnScheduler
from engine.verifiers.vllm.adapter.support import check, require_attributes, unsupported
from engine.verifiers.vllm.sampling import SAMPLER_INPUT, SamplerInput


@dataclass(frozen=True, slots=True)
class Outcome:
    tokens: tuple[int, ...]
    """The accepted draft tokens and the target's own; empty while `pending` is above 0."""
    pending: int
    """Committed tokens that are not in the KV yet."""
    reported: tuple[TokenLogprobs, ...] | None
    prompt: tuple[TokenLogprobs, ...]
    """Log-probabilities of all prompt tokens but the first, in the step that chooses a token."""
    finished: bool
    """vLLM has removed the request, as it has as many tokens as the model's context."""
    cached: int | None = None
    """Tokens from the prefix cache, with the first token that is chosen."""
    features: Features | None = None
    """As Verdict.features."""


class StepEngine:
    """Runs vLLM's engine core step by step, for the requests and drafts given in each step."""

    def __init__(
        self, config: VllmConfig, adapters: Mapping[str, str], ray_metrics: bool = False
    ) -> None:
        """`adapters`: VllmSpec.adapters, all of which are loaded here. `ray_metrics`: reports each
        step's statistics to Ray's metrics endpoint, under vLLM's own names."""
        check(config)
        self._config = config
        self._metrics = _ray_metrics(config) if ray_metrics else None
        set_num_threads = torch.set_num_threads
        try:
            self._core = EngineCore(config, _executor, log_stats=ray_metrics)
        finally:
            # On a CPU vLLM disables it for the whole process, including drafters beside it.
            torch.set_num_threads = set_num_threads
        self._scheduler: TurnScheduler = self._core.scheduler
        require_attributes(
            self._scheduler,
            "running",
            "waiting",
            "requests",
            "dynamic_sd_lookup",
            "max_num_running_reqs",
            "kv_cache_config.kv_cache_groups",
            "kv_cache_manager.block_pool.blocks",
            "kv_cache_manager.block_pool.get_num_free_blocks",
            "kv_cache_manager.block_pool.get_new_blocks",
            "kv_cache_manager.block_pool.touch",
            "kv_cache_manager.block_pool.free_block_queue.fake_free_list_head",
            "kv_cache_manager.block_pool.free_block_queue.remove",
            "kv_cache_manager.block_pool.free_block_queue.prepend_n",
        )
        self._logprob_counts: dict[str, int] = {}
        """The `logprobs` of each request that has requested them."""
        self._failure = ""
        """The error of a failed step, after which no other may run."""
        self._adapters = {
            name: LoRARequest(name, number, folder)
            for number, (name, folder) in enumerate(adapters.items(), start=1)
        }
        for adapter in self._adapters.values():
            with reading(Path(adapter.lora_path)):
                self._core.add_lora(adapter)
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
        inputs: SamplerInput,
        prompt_logprobs: int | None = None,
    ) -> None:
        """Adds a request, which runs only in steps that have a turn for it. It shares its scope's
        part of the prefix cache, and there its adapter's, and none with `prompt_logprobs`."""
        top_n = len(inputs.score) if inputs.score else inputs.start.params.logprobs
        params = EngineParams(
            temperature=0,
            max_tokens=self.max_context,
            ignore_eos=True,
            detokenize=False,
            logprobs=top_n,
            prompt_logprobs=prompt_logprobs,
            extra_args={SAMPLER_INPUT: inputs},
        )
        if top_n is not None:
            self._logprob_counts[name] = top_n
        hasher = self._core.request_block_hasher
        # vLLM chains the salt into the digests of all blocks.
        salt = inputs.start.scope.digest.hex() or None
        request = Request(
            name,
            list(tokens),
            params,
            None,
            lora_request=self._adapters.get(inputs.start.params.adapter),
            cache_salt=salt,
            block_hasher=hasher,
        )
        self._core.add_request(request)

    def close(self, names: Collection[str]) -> None:
        """Frees the KV of these requests; unknown ones are no error."""
        for name in names:
            self._logprob_counts.pop(name, None)
        self._core.abort_requests(list(names))

    def step(self, turns: Mapping[str, Turn]) -> dict[str, Outcome]:
        """One forward. A request without an outcome found no room for its KV.

        RankLost is final: after any error vLLM's state is unknown.
        """
        if not turns:
            return {}
        if self._failure:
            raise RankLost(self._failure)
        # In a new thread, this first call makes OpenMP use torch's number of threads. Without it
        # vLLM's attention would plan with one number and compute with the other.
        torch.get_num_threads()
        requests = {name: self._scheduler.requests[name] for name in turns}
        before = {name: one.num_computed_tokens for name, one in requests.items()}
        self._scheduler.plan(turns)
        try:
            outputs, _ = self._core.step()
        except Exception as error:
            self._failure = f"vLLM stopped: {error!r}"
            raise RankLost(self._failure) from error
        if self._metrics is not None:
            for client_outputs in outputs.values():
                self._metrics.record(client_outputs.scheduler_stats, None)
        by_request = {
            output.request_id: output
            for client_outputs in outputs.values()
            for output in client_outputs.outputs
        }
        outcomes = {}
        for name, request in requests.items():
            output, features = by_request.get(name), self._scheduler.features.get(name)
            if output is not None:
                tokens = tuple(output.new_token_ids)
                reported, prompt = self._reported(name, output), _prompt_logprobs(output)
                prefill = output.prefill_stats
                cached = None if prefill is None else prefill.num_cached_tokens
                finished = request.is_finished()
                outcomes[name] = Outcome(tokens, 0, reported, prompt, finished, cached, features)
            elif request.num_computed_tokens > before[name]:
                pending = request.num_tokens - request.num_computed_tokens
                outcomes[name] = Outcome((), pending, None, (), False, None, features)
        return outcomes

    def blocks(self) -> KvState:
        pool = self._scheduler.kv_cache_manager.block_pool
        # vLLM reserves block 0, and counts cached blocks without users as free.
        blocks = [block for block in pool.blocks if not block.is_null]
        cached = sum(not block.ref_cnt and block.block_hash is not None for block in blocks)
        free = self._scheduler.free_blocks
        return KvState(free - cached, len(blocks) - free, cached, len(blocks))

    def shutdown(self) -> None:
        """Stops the workers. The core's own shutdown would break other engines of this process."""
        self._core.model_executor.shutdown()
        self._core.scheduler.shutdown()

    def _reported(self, name: str, output: EngineCoreOutput) -> tuple[TokenLogprobs, ...] | None:
        top_n = self._logprob_counts.get(name)
        if top_n is None:
            return None
        lists = output.new_logprobs
        rows = zip(lists.logprob_token_ids.tolist(), lists.logprobs.tolist(), strict=True)
        return tuple(_token_logprobs(ids[: 1 + top_n], values[: 1 + top_n]) for ids, values in rows)

    def _probe(self) -> None:
        """Checks that vLLM passes over a held request, which keeps its tokens and KV."""
        inputs = SamplerInput(Start(SamplingParams(temperature=0), 0, 1))
        names = ("probe-held", "probe-running")
        for name in names:
            self.open(name, [0, 0], inputs)
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


def _executor(config: VllmConfig) -> Executor:
    """vLLM's own, whose workers are changed after they have loaded the weights and before anything
    is compiled."""
    executor = Executor.get_class(config)(config)
    executor.collective_rpc("adapt")
    return executor


def _prompt_logprobs(output: EngineCoreOutput) -> tuple[TokenLogprobs, ...]:
    tensors = output.new_prompt_logprobs_tensors
    if tensors is None:
        return ()
    rows = zip(tensors.logprob_token_ids.tolist(), tensors.logprobs.tolist(), strict=True)
    return tuple(_token_logprobs(ids, values) for ids, values in rows)


def _token_logprobs(ids: Sequence[int], values: Sequence[float]) -> TokenLogprobs:
    """From vLLM's format: the token itself, then its top tokens."""
    return TokenLogprobs(values[0], tuple(zip(ids[1:], values[1:], strict=True)))


def _ray_metrics(config: VllmConfig) -> StatLoggerBase:
    from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger  # imports Ray

    return RayPrometheusStatLogger(config)
