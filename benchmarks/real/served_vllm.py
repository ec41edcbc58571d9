"""vLLM with its own scheduler and sampler, as it is served.

Two defects of vLLM on a CPU are fixed. vLLM's processes import this module too, and the benchmark's
main module, which imports it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from benchmarks.real.spindle import Dtype, PeerRequest, TurnResult, serve_timed
from engine.verifiers.vllm.environment import patch_llvmlite

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

VLLM_BLOCK = 128
"""Tokens in a KV block of vLLM on a CPU."""

patch_llvmlite()  # at import: vLLM's worker searches all modules when it starts


class ServedVllm:
    """vLLM as `vllm serve` runs it, without HTTP: AsyncLLM here, engine core and worker in
    processes of their own."""

    def __init__(
        self,
        checkpoint: str,
        speculation: Mapping[str, Any] | None,
        dtype: Dtype,
        kv_tokens: int,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._names = map(str, count())
        self._forwards = self._drafted = 0
        starting = self._start(_arguments(checkpoint, speculation, dtype, kv_tokens))
        self._engine = self._loop.run_until_complete(starting)

    async def _start(self, arguments: Mapping[str, Any]) -> "AsyncLLM":
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.metrics.loggers import StatLoggerBase

        contender = self

        class ForwardCounter(StatLoggerBase):
            def __init__(self, *_: object) -> None: ...

            def record(self, scheduler_stats: Any, *_: object, **__: object) -> None:
                if scheduler_stats is not None:
                    contender._forwards += 1
                    if drafts := scheduler_stats.spec_decoding_stats:
                        contender._drafted += drafts.num_draft_tokens

            def log_engine_initialized(self) -> None: ...

        engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**arguments), stat_loggers=[ForwardCounter]
        )
        await engine.collective_rpc("mend_temperatures")
        await engine.collective_rpc("time_drafting")
        return engine

    def serve(self, requests: Sequence[PeerRequest], clients: int) -> TurnResult:
        return self._loop.run_until_complete(self._serve(requests, clients))

    async def _serve(self, requests: Sequence[PeerRequest], clients: int) -> TurnResult:
        async def send(request: PeerRequest) -> list[int]:
            stream = self._engine.generate(_prompt(request), _params(request), next(self._names))
            return [len(delta.outputs[0].token_ids) async for delta in stream]

        # Plain vLLM has seen the prompts: it was asked before how long its answers are.
        if not await self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache, with which it would skip prompts")
        self._forwards = self._drafted = 0
        timed = await serve_timed(requests, clients, send)
        (draft_s,) = await self._engine.collective_rpc("take_draft_s")
        return replace(timed, forwards=self._forwards, drafted=self._drafted, draft_s=draft_s)


class FixedWorker:
    """Mixed into vLLM's worker, so that `collective_rpc` finds the methods."""

    model_runner: Any
    _draft_s = 0.0

    def mend_temperatures(self) -> None:
        mend_temperatures()

    def time_drafting(self) -> None:
        propose = self.model_runner.propose_draft_token_ids

        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return propose(*arguments, **options)
            finally:
                self._draft_s += time.perf_counter() - started

        self.model_runner.propose_draft_token_ids = timed

    def take_draft_s(self) -> float:
        """Seconds of drafting since the last call."""
        taken, self._draft_s = self._draft_s, 0.0
        return taken


def mend_temperatures() -> None:
    """On a CPU, vLLM 0.32's rejection sampler expands the requests' temperatures to their tokens
    into a copy, and divides by uninitialised memory: no sampled draft is accepted."""
    import torch
    from vllm.v1.sample import rejection_sampler

    def expand_batch_to_tokens(
        x: torch.Tensor,
        cu_num_tokens: torch.Tensor,
        num_tokens: int,
        replace_from: int = 0,
        replace_to: int = 0,
    ) -> torch.Tensor:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        values = torch.where(x == replace_from, replace_to, x)
        return values.repeat_interleave(counts, output_size=num_tokens)

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


def _arguments(
    checkpoint: str, speculation: Mapping[str, Any] | None, dtype: Dtype, kv_tokens: int
) -> dict[str, Any]:
    return {
        "model": checkpoint,
        "dtype": dtype,
        "skip_tokenizer_init": True,
        "num_gpu_blocks_override": kv_tokens // VLLM_BLOCK + 1,
        "kv_cache_memory_bytes": 1 << 20,  # has no effect beside the line above
        "speculative_config": speculation,
        "worker_extension_cls": f"{__name__}.{FixedWorker.__name__}",
    }


def _prompt(request: PeerRequest) -> Any:
    from vllm.inputs import TokensPrompt

    return TokensPrompt(prompt_token_ids=list(request.prompt))


def _params(request: PeerRequest) -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=request.temperature,
        max_tokens=request.max_tokens,
        stop_token_ids=list(request.stop),
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
