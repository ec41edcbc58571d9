"""Measures the time of a forward on a CPU, ours over vLLM's.

`python -m benchmarks.step_time [--threads 2] [--json FILE]`.

The zoo's target inflated to 90M in bf16, 1 to 16 requests with 1 or 5 new tokens each. Ours is
`PackedModel.forward`; the reference is vLLM's `execute_model`, so neither side's scheduler and
sampler count. Each has a process of its own with the same number of threads, and they take turns in
short bursts. Exits with 1 where a ratio is above 1.1, or not resolved.
"""

import importlib.metadata
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.processes import environment
from benchmarks.report import Record, paired_ratio, parser, publish, seconds
from cluster.built_in_models import inflated_target
from engine.cpu.environment import openmp_environment
from engine.verifiers.vllm.environment import patch_llvmlite

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

PARAMS = 90_000_000
VOCAB = 2048
PREFIX = 256
MOST_ROWS = 5
CASES = tuple((requests, rows) for rows in (1, MOST_ROWS) for requests in (1, 4, 8, 16))
"""(requests, new rows of each request)"""
PAIRS = 20
BURST_STEPS = 3
IDLE_S = 0.01
"""Between bursts: vLLM's threads spin for 5 ms after a burst."""
BOUND = 1.1


class StepEngine(Protocol):
    """Runs steps: each step runs `rows` new tokens of each request and commits one of them."""

    def open(self, requests: int, rows: int) -> None: ...

    def step(self) -> float:
        """Returns its seconds."""
        ...

    def close(self) -> None: ...


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--threads", type=int, default=2, help="of each side (default 2)")
    options = arguments.parse_args()
    checkpoint = inflated_target(PARAMS)
    ours = _start(PackedSteps, checkpoint, openmp_environment(options.threads))
    theirs = _start(VllmSteps, checkpoint, _vllm_environment(options.threads))
    records, missed = [], []
    for requests, rows in CASES:
        name = f"step_time/{requests} requests/{rows} rows"
        times = compare((ours, theirs), requests, rows)
        ratio = paired_ratio(*times)
        ms, reference = (1000 * statistics.median(side) for side in times)
        records.append(Record(name, ms, "ms", reference, ratio.median))
        if not ratio.at_most(BOUND):
            missed.append(f"{name}: {ratio}")
    publish(records, options.json)
    if missed:
        sys.exit("\n".join([f"not at most {BOUND}, or not resolved (95% interval):", *missed]))


def compare(sides: tuple[Connection, Connection], requests: int, rows: int) -> list[list[float]]:
    """Seconds per step of each side; each value is the median of one burst."""
    times: list[list[float]] = [[], []]
    for side in sides:
        _call(side, "open", requests, rows)
    for _ in range(PAIRS + 1):  # the first burst warms up
        for side, medians in zip(sides, times, strict=True):
            medians.append(statistics.median(_call(side, "burst")))
            time.sleep(IDLE_S)
    for side in sides:
        _call(side, "close")
    return [medians[1:] for medians in times]


def _call(side: Connection, method: str, *arguments: int) -> list[float]:
    side.send((method, arguments))
    answer: list[float] = side.recv()
    return answer


def _start(
    make: Callable[[Path], StepEngine], checkpoint: Path, changes: Mapping[str, str]
) -> Connection:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with environment(changes):
        context.Process(target=_serve, args=(make, checkpoint, theirs), daemon=True).start()
    return ours


def _serve(make: Callable[[Path], StepEngine], checkpoint: Path, connection: Connection) -> None:
    side = make(checkpoint)
    with suppress(EOFError):  # the benchmark has ended
        while True:
            method, arguments = connection.recv()
            if method == "burst":
                connection.send([side.step() for _ in range(BURST_STEPS)])
            else:
                connection.send(getattr(side, method)(*arguments))


def _vllm_environment(threads: int) -> dict[str, str]:
    """As vLLM's documentation and its launcher of workers set it."""
    files = importlib.metadata.files("intel-openmp") or []
    openmp = next(file for file in files if file.name == "libiomp5.so")
    return {
        "OMP_NUM_THREADS": str(threads),
        "LD_PRELOAD": str(Path(str(openmp.locate())).resolve()),
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }


def _prompt(request: int) -> NDArray[np.int32]:
    return np.random.default_rng(request).integers(5, VOCAB, PREFIX, dtype=np.int32)


class PackedSteps:
    """`PackedModel.forward`."""

    def __init__(self, checkpoint: Path) -> None:
        import torch

        from engine.model import PackedModel

        self._model = PackedModel.load(
            checkpoint, dtype=torch.bfloat16, device="cpu", kv_tokens=16 * 2 * PREFIX
        )
        self._requests: list[str] = []
        self._rows = 0

    def open(self, requests: int, rows: int) -> None:
        self._requests, self._rows = [str(number) for number in range(requests)], rows
        for number, request in enumerate(self._requests):
            self._model.kv.open(request, [])
            prompt = _prompt(number)
            self._forward([request], prompt)
            self._model.kv.commit(request, range(PREFIX), prompt.tolist())

    def step(self) -> float:
        tokens = np.arange(7, 7 + self._rows, dtype=np.int32)
        took_s = seconds(lambda: self._forward(self._requests, tokens))
        for request in self._requests:
            self._model.kv.commit(request, [0], [7])
        return took_s

    def close(self) -> None:
        for request in self._requests:
            self._model.kv.release(request)

    def _forward(self, requests: list[str], tokens: NDArray[np.int32]) -> None:
        from engine.model import Segment

        rows = np.arange(len(tokens), dtype=np.int32)
        self._model.forward(
            [
                Segment(request, tokens, self._model.kv.length(request) + rows, None, rows)
                for request in requests
            ]
        )


class VllmSteps:
    """vLLM's `execute_model`, with drafts set by the benchmark."""

    def __init__(self, checkpoint: Path) -> None:
        patch_llvmlite()
        from vllm import EngineArgs, LLMEngine

        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(checkpoint),
                dtype="bfloat16",
                skip_tokenizer_init=True,
                max_model_len=2048,
                max_num_seqs=16,
                max_num_batched_tokens=16 * 2 * PREFIX,
                kv_cache_memory_bytes=1 << 28,
                async_scheduling=False,
                enable_prefix_caching=False,
                speculative_config={
                    "method": "custom_class",
                    "model": "engine.verifiers.vllm.adapter.worker.NoDrafts",
                    "num_speculative_tokens": MOST_ROWS - 1,
                },
            )
        )
        core = self._engine.engine_core.engine_core
        self._scheduler = core.scheduler
        runner = core.model_executor.driver_worker.worker.model_runner
        self._execute = runner.execute_model
        runner.execute_model = self._timed
        self._took_s = 0.0
        self._tokens = 0
        self._requests: list[str] = []
        self._rows = 0

    def open(self, requests: int, rows: int) -> None:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        greedy = SamplingParams(temperature=0, max_tokens=1024, ignore_eos=True, detokenize=False)
        self._requests, self._rows = [str(number) for number in range(requests)], rows
        for number, request in enumerate(self._requests):
            prompt = TokensPrompt(prompt_token_ids=_prompt(number).tolist())
            self._engine.add_request(request, prompt, greedy)
        self._engine.step()  # all prompts fit one batch

    def step(self) -> float:
        for request in self._scheduler.running:
            request.spec_token_ids = list(range(7, 6 + self._rows))
        self._engine.step()
        expected = len(self._requests) * self._rows
        if self._tokens != expected:
            raise RuntimeError(f"vLLM ran {self._tokens} tokens instead of {expected}")
        return self._took_s

    def close(self) -> None:
        self._engine.abort_request(self._requests)
        self._engine.step()

    def _timed(self, scheduled: "SchedulerOutput", *arguments: object, **named: object) -> object:
        started = time.perf_counter()
        result = self._execute(scheduled, *arguments, **named)
        self._took_s = time.perf_counter() - started
        self._tokens = scheduled.total_num_scheduled_tokens
        return result


if __name__ == "__main__":
    main()
