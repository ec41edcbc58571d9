"""vLLM with all that is its own, but for what has to be mended on a CPU: served, or as a loop.

vLLM's own processes import this module as well, and so does the benchmark's main module, which
they import anew.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from benchmarks.serving.contenders import KV_TOKENS, Asked, Dtype, Served, closed_loop, in_order
from engine.verifiers.vllm.environment import patch_llvmlite

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

VLLM_BLOCK = 128
"""Tokens in a block of its own KV on a CPU."""

patch_llvmlite()  # at once: a worker of vLLM's looks into all modules as soon as it begins


class ServedVllm:
    """vLLM as `vllm serve` runs it, but for HTTP: AsyncLLM here, its engine core and its worker in
    processes of their own. A client reads its own stream."""

    def __init__(
        self, checkpoint: str, speculation: Mapping[str, Any] | None, dtype: Dtype
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._names = map(str, count())
        self._forwards = 0
        starting = self._start(_arguments(checkpoint, speculation, dtype))
        self._engine = self._loop.run_until_complete(starting)

    async def _start(self, arguments: Mapping[str, Any]) -> "AsyncLLM":
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.metrics.loggers import StatLoggerBase

        side = self

        class Forwards(StatLoggerBase):
            def __init__(self, *_: object) -> None: ...

            def record(self, scheduler_stats: object, *_: object, **__: object) -> None:
                side._forwards += scheduler_stats is not None

            def log_engine_initialized(self) -> None: ...

        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[Forwards])
        await engine.collective_rpc("mend_temperatures")
        return engine

    def serve(self, requests: Sequence[Asked], clients: int) -> Served:
        return self._loop.run_until_complete(self._serve(requests, clients))

    async def _serve(self, requests: Sequence[Asked], clients: int) -> Served:
        async def ask(asked: Asked) -> int:
            stream = self._engine.generate(_prompt(asked), _params(asked), next(self._names))
            return sum([len(one.outputs[0].token_ids) async for one in stream])

        self._forwards = 0
        lengths, took_s, seconds = await closed_loop(requests, clients, ask)
        return Served(lengths, took_s, seconds, self._forwards)


class VllmLoop:
    """vLLM's engine in this very thread, step by step. It is the fastest that vLLM gets here, and
    no server: nobody else's code runs, and a client hears of a token when the loop is asked."""

    def __init__(
        self, checkpoint: str, speculation: Mapping[str, Any] | None, dtype: Dtype
    ) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import EngineArgs, LLMEngine

        arguments = EngineArgs(**_arguments(checkpoint, speculation, dtype))
        self._engine = LLMEngine.from_engine_args(arguments)
        self._engine.collective_rpc("mend_temperatures")
        self._names = map(str, count())

    def serve(self, requests: Sequence[Asked], clients: int) -> Served:
        waiting = deque(enumerate(requests))
        places: dict[str, int] = {}
        lengths: dict[int, int] = {}
        sent_s: dict[int, float] = {}
        took_s: dict[int, float] = {}
        forwards = 0
        begun = time.perf_counter()
        while waiting or places:
            while waiting and len(places) < clients:
                place, asked = waiting.popleft()
                name = next(self._names)
                self._engine.add_request(name, _prompt(asked), _params(asked))
                places[name] = place
                sent_s[place] = time.perf_counter()
            forwards += 1
            for output in self._engine.step():
                place = places[output.request_id]
                lengths[place] = lengths.get(place, 0) + len(output.outputs[0].token_ids)
                if output.finished:
                    took_s[place] = time.perf_counter() - sent_s[place]
                    del places[output.request_id]
        seconds = time.perf_counter() - begun
        return Served(in_order(lengths), in_order(took_s), seconds, forwards)


class Mended:
    """Mixed into vLLM's worker."""

    def mend_temperatures(self) -> None:
        mend_temperatures()


def mend_temperatures() -> None:
    """On a CPU, vLLM 0.32's rejection sampler spreads the temperatures of requests over their
    tokens into a copy, and divides by memory that nobody has set: no sampled draft is accepted.
    """
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
    checkpoint: str, speculation: Mapping[str, Any] | None, dtype: Dtype
) -> dict[str, Any]:
    return {
        "model": checkpoint,
        "dtype": dtype,
        "skip_tokenizer_init": True,
        "num_gpu_blocks_override": KV_TOKENS // VLLM_BLOCK + 1,
        "kv_cache_memory_bytes": 1 << 20,  # overridden by the line above
        "speculative_config": speculation,
        "worker_extension_cls": f"{__name__}.{Mended.__name__}",
    }


def _prompt(asked: Asked) -> Any:
    from vllm.inputs import TokensPrompt

    return TokensPrompt(prompt_token_ids=list(asked.prompt))


def _params(asked: Asked) -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=asked.temperature,
        max_tokens=asked.max_tokens,
        stop_token_ids=list(asked.stop),
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
