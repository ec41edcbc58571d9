"""Measures the time of a step of our vLLM adapter over that of bare vLLM.

`python -m lab.micro.vllm_step [--threads 2] [--json FILE]`.

The zoo's target inflated to 90M in bf16, 8 requests with 1 or 5 new tokens each. Ours is
`VllmVerifier.verify`, from orders to verdicts; the reference is a step of vLLM's engine core with
its own scheduler and sampler, given the same drafts. Both run in one process and take turns in
short bursts, greedy; ours at temperature 1 is reported without a bound. Exits with 1 where
a greedy step takes more than 1.05 of the reference's time, or where that is not resolved.
"""

import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from benchmarks.report import Ratio, Record, paired_ratio, parser, publish, seconds
from cluster.built_in_models import inflated_target
from engine.protocol import Failed, Missing, NoRoom, Verdict, VerifyOrder
from engine.request import VERIFIER, ServedRequest, TargetLimits, admit
from engine.sampling.params import SamplingParams
from engine.verifiers.vllm.environment import process_environment
from engine.verifiers.vllm.loading import BLOCK_SIZE, TYPICAL_DRAFT, VllmSpec, load_vllm
from policies.tree import DraftTree

if TYPE_CHECKING:
    from engine.verifiers.vllm.verifier import VllmVerifier

PARAMS = 90_000_000
VOCAB = 2048
REQUESTS = 8
ROWS = (1, 5)
PREFIX = 256
MAX_TOKENS = 1024
PAIRS = 30
BURST_STEPS = 5
BOUND = 1.05
CHILD = "SPINDLE_VLLM_STEP"
"""Set in the process that measures."""


class StepEngine(Protocol):
    def step(self) -> float:
        """Seconds of one step, in which each request runs `rows` new tokens and commits one."""
        ...


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--threads", type=int, default=2, help="of the process (default 2)")
    options = arguments.parse_args()
    if CHILD not in os.environ:  # run again: libraries are preloaded only in a new process
        threads = {"OMP_NUM_THREADS": str(options.threads), CHILD: "1"}
        environment = os.environ | process_environment() | threads
        command = [sys.executable, "-m", "lab.micro.vllm_step", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
    checkpoint = inflated_target(PARAMS)
    kv_tokens = 2 * REQUESTS * (PREFIX + MAX_TOKENS)
    verifier = load_vllm(VllmSpec(checkpoint, "bfloat16", kv_tokens))
    core = _bare_core(str(checkpoint), kv_tokens)
    records, missed = [], []
    for rows in ROWS:
        for temperature, bound in ((0.0, BOUND), (1.0, None)):
            bare, ours = BareSteps(core, rows), AdapterSteps(verifier, rows, temperature)
            name = f"vllm_step/{REQUESTS} requests/{rows} rows/temperature {temperature:g}"
            ratio, record = compare(name, ours, bare)
            records.append(record)
            if bound is not None and not ratio.at_most(bound):
                missed.append(f"{name}: {ratio}")
            bare.close()
            ours.close()
    publish(records, options.json)
    if missed:
        sys.exit("\n".join([f"not at most {BOUND}, or not resolved (95% interval):", *missed]))


def compare(name: str, ours: StepEngine, bare: StepEngine) -> tuple[Ratio, Record]:
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(PAIRS + 1):  # the first pair warms up
        for side, medians in zip((ours, bare), times, strict=True):
            median = statistics.median(side.step() for _ in range(BURST_STEPS))
            if pair:
                medians.append(median)
    ratio = paired_ratio(*times)
    ms, reference = (1000 * statistics.median(medians) for medians in times)
    return ratio, Record(name, ms, "ms", reference, ratio.median)


def _prompt(request: int) -> list[int]:
    prompt: list[int] = np.random.default_rng(request).integers(5, VOCAB, PREFIX).tolist()
    return prompt


def _draft(rows: int) -> list[int]:
    return list(range(7, 6 + rows))


class AdapterSteps:
    """`VllmVerifier.verify` of orders as a coordinator sends them, far from the requests' end."""

    def __init__(self, verifier: "VllmVerifier", rows: int, temperature: float) -> None:
        self._verifier = verifier
        self._tree = DraftTree.chain(_draft(rows))
        limits = TargetLimits(verifier.vocab_size, verifier.max_context, ())
        params = SamplingParams(temperature, max_tokens=MAX_TOKENS)
        self._requests = [
            admit(str(number), _prompt(number), params, limits) for number in range(REQUESTS)
        ]
        for request in self._requests:  # one after the other, so that prompts fit any token budget
            self._verify([request], DraftTree.empty())

    def step(self) -> float:
        return self._verify(self._requests, self._tree)

    def close(self) -> None:
        self._verifier.forget([request.name for request in self._requests])

    def _verify(self, requests: list[ServedRequest], tree: DraftTree) -> float:
        orders = [VerifyOrder(request.prefix_for(VERIFIER), tree, PREFIX) for request in requests]
        answers: list[Verdict | Missing | NoRoom | Failed] = []
        took_s = seconds(lambda: answers.extend(self._verifier.verify(orders)))
        for request, answer in zip(requests, answers, strict=True):
            if not isinstance(answer, Verdict) or not answer.tokens:
                raise RuntimeError(f"a step without a token: {answer}")
            request.known[VERIFIER] = len(request.committed) + len(answer.tokens)
            request.commit(answer.tokens)
        return took_s


class BareSteps:
    """vLLM's engine core with its own scheduler and sampler, given the same drafts."""

    def __init__(self, core: Any, rows: int) -> None:
        from vllm import SamplingParams as EngineParams
        from vllm.v1.request import Request

        self._core = core
        self._draft = _draft(rows)
        greedy = EngineParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
        self._names = [str(number) for number in range(REQUESTS)]
        for number, name in enumerate(self._names):
            hasher = core.request_block_hasher
            core.add_request(Request(name, _prompt(number), greedy, None, block_hasher=hasher))
            core.step()

    def step(self) -> float:
        for request in self._core.scheduler.running:
            request.spec_token_ids = list(self._draft)
        return seconds(self._core.step)

    def close(self) -> None:
        self._core.abort_requests(self._names)


def _bare_core(checkpoint: str, kv_tokens: int) -> Any:
    from vllm import EngineArgs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    config = EngineArgs(
        model=checkpoint,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=kv_tokens // BLOCK_SIZE + 1,
        kv_cache_memory_bytes=1 << 20,
        async_scheduling=False,
        speculative_config={
            "method": "custom_class",
            "model": "engine.verifiers.vllm.adapter.worker.NoDrafts",
            "num_speculative_tokens": TYPICAL_DRAFT,
        },
    ).create_engine_config()
    return EngineCore(config, Executor.get_class(config), log_stats=False)


if __name__ == "__main__":
    main()
