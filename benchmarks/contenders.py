"""Who competes in benchmarks/peers.py: vLLM with its own speculation, and Spindle on vLLM.

Both in this process, from token ids to token ids, on the same checkpoint, as large a KV memory and
as many threads. What serves is imported by the process that serves with it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from cluster.zoo.paths import cache_dir
from engine.verifiers.vllm_environment import mend_llvmlite

if TYPE_CHECKING:
    from actors.coordinator import Coordinator
    from actors.events import Event

Dtype = Literal["bfloat16", "float32"]
Number = TypeVar("Number", int, float)

PARAMS = 90_000_000
THREADS = 2
KV_TOKENS = 8192
VLLM_BLOCK = 128
"""Tokens in a block of its own KV on a CPU."""
TARGET: Mapping[str, Any] = {
    "inflate_to": PARAMS,
    "backend": "vllm",
    "placement": "inline",
    "kv_tokens": KV_TOKENS,
}
CONFIG: Mapping[str, Any] = {
    # With it, cluster/vllm.yaml in one process.
    "threads": THREADS,
    "drafters": [
        {"name": "tiny", "model": "zoo/tiny", "placement": "inline"},
        {"name": "tasks", "model": "zoo/tasks", "placement": "inline"},
        {"name": "suffix", "kind": "suffix"},
    ],
}


@dataclass(frozen=True, slots=True)
class Asked:
    prompt: tuple[int, ...]
    temperature: float
    max_tokens: int
    stop: tuple[int, ...] = ()
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """The same requests by one contender."""

    lengths: tuple[int, ...]
    took_s: tuple[float, ...]
    """Of each request, from when it was sent to its last token."""
    seconds: float
    forwards: int
    """Of the target."""
    verifying_s: float
    """Within them; of vLLM's own, its whole steps with drafting."""
    domains: tuple[str, ...] = ()
    """Of the requests."""

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


class Side(Protocol):
    def serve(self, requests: Sequence[Asked], clients: int) -> Served:
        """Closed loop: as many requests as clients are under way, as long as there are any."""
        ...


class Vllm:
    """vLLM with all that is its own, but for what has to be mended on a CPU."""

    def __init__(
        self, checkpoint: str, speculation: Mapping[str, Any] | None, dtype: Dtype
    ) -> None:
        mend_llvmlite()
        from vllm import EngineArgs, LLMEngine

        mend_temperatures()
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=checkpoint,
                dtype=dtype,
                skip_tokenizer_init=True,
                num_gpu_blocks_override=KV_TOKENS // VLLM_BLOCK + 1,
                kv_cache_memory_bytes=1 << 20,  # overridden by the line above
                speculative_config=speculation,
            )
        )
        self._names = map(str, count())

    def serve(self, requests: Sequence[Asked], clients: int) -> Served:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        waiting = deque(enumerate(requests))
        places: dict[str, int] = {}
        lengths: dict[int, int] = {}
        sent_s: dict[int, float] = {}
        took_s: dict[int, float] = {}
        forwards, verifying_s = 0, 0.0
        begun = time.perf_counter()
        while waiting or places:
            while waiting and len(places) < clients:
                place, asked = waiting.popleft()
                params = SamplingParams(
                    temperature=asked.temperature,
                    max_tokens=asked.max_tokens,
                    stop_token_ids=list(asked.stop),
                    ignore_eos=True,
                    detokenize=False,
                    output_kind=RequestOutputKind.DELTA,
                )
                name = next(self._names)
                prompt = TokensPrompt(prompt_token_ids=list(asked.prompt))
                self._engine.add_request(name, prompt, params)
                places[name] = place
                sent_s[place] = time.perf_counter()
            step = time.perf_counter()
            outputs = self._engine.step()
            verifying_s += time.perf_counter() - step
            forwards += 1
            for output in outputs:
                place = places[output.request_id]
                lengths[place] = lengths.get(place, 0) + len(output.outputs[0].token_ids)
                if output.finished:
                    took_s[place] = time.perf_counter() - sent_s[place]
                    del places[output.request_id]
        seconds = time.perf_counter() - begun
        return Served(_in_order(lengths), _in_order(took_s), seconds, forwards, verifying_s)


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


class Spindle:
    """The application's coordinator, policies and models, all in this process."""

    def __init__(self, objective: str, dtype: Dtype) -> None:
        """`objective`: of the planner."""
        self._objective = objective
        self._dtype = dtype
        # It runs only while it serves, so that nobody works while another is measured.
        self._loop = asyncio.new_event_loop()
        self._events: list[Event] = []
        self._names = map(str, count())
        self._coordinator = self._loop.run_until_complete(self._start())

    async def _start(self) -> "Coordinator":
        from actors.fleet import raise_fleet
        from cluster.config import AppConfig
        from cluster.placement import plan
        from deployments.hosts import drafter_specs, limits_of, target_spec
        from deployments.service import Service

        speculation = {"name": "planner", "options": {"objective": self._objective}}
        policies = {"speculation": speculation}
        target = {**TARGET, "dtype": self._dtype}
        config = AppConfig.model_validate({**CONFIG, "target": target, "policies": policies})
        placement = plan(config)
        fleet = await raise_fleet(
            target_spec(config, placement),
            drafter_specs(config, placement),
            cache_dir() / "profiles",
            limits=limits_of(config),
        )
        service = Service(config, fleet)
        await service.warm_up()
        service.report_to(self._events.append)
        return service.coordinator

    def serve(self, requests: Sequence[Asked], clients: int) -> Served:
        return self._loop.run_until_complete(self._serve(requests, clients))

    async def _serve(self, requests: Sequence[Asked], clients: int) -> Served:
        from actors.events import Verified
        from engine.params import SamplingParams

        self._events.clear()
        waiting = deque(enumerate(requests))
        lengths: dict[int, int] = {}
        took_s: dict[int, float] = {}

        async def client() -> None:
            while waiting:
                place, asked = waiting.popleft()
                params = SamplingParams(
                    temperature=asked.temperature,
                    max_tokens=asked.max_tokens,
                    stop_token_ids=asked.stop,
                    ignore_eos=True,
                )
                sent_s = time.perf_counter()
                stream = self._coordinator.submit(next(self._names), asked.prompt, params)
                lengths[place] = sum([len(commit.token_ids) async for commit in stream])
                took_s[place] = time.perf_counter() - sent_s

        begun = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        seconds = time.perf_counter() - begun
        forwards = [event for event in self._events if isinstance(event, Verified)]
        verifying_s = sum(one.seconds for one in forwards)
        return Served(_in_order(lengths), _in_order(took_s), seconds, len(forwards), verifying_s)


def _in_order(by_place: Mapping[int, Number]) -> tuple[Number, ...]:
    return tuple(by_place[place] for place in range(len(by_place)))
