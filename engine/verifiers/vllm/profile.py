"""Measures what a step of a vLLM target costs: SpecServe's offline analyzer on this backend.

Steps are measured through the verifier, so they include vLLM's scheduler and our sampler.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.checkpoint import load_config
from engine.cpu.row_counts import row_cost_step
from engine.profiler import (
    Grid,
    Profile,
    ProfileKey,
    Shape,
    cached_profile,
    device_name,
    digest,
    measure_alternately,
    shapes_of,
)
from engine.protocol import Prefix, Start, Verdict, VerifyOrder
from engine.sampling.params import SamplingParams
from engine.soft_state import EMPTY_HASH, CommittedTokens
from engine.verifiers.vllm.loading import VllmSpec
from policies.cost import ForwardSample
from policies.tree import DraftTree

if TYPE_CHECKING:
    from engine.verifiers.vllm.verifier import VllmVerifier

GREEDY = SamplingParams(temperature=0)


def profile_vllm(
    verifier: "VllmVerifier", spec: VllmSpec, cache_dir: Path, grid: Grid | None = None
) -> Profile:
    """As engine.profiler.profile: reads a cached profile of the same setup, or measures one, which
    requires that nothing else runs on the device."""
    device, dtype = torch.device(verifier.device), getattr(torch, spec.dtype)
    config = load_config(spec.checkpoint)
    key = ProfileKey(
        model=f"{config.model_type}-{digest(config.to_json_string(use_diff=False))}",
        setup=f"vllm {verifier.version}, {spec.tensor_parallel} ranks, {dict(spec.engine_args)}"
        + (", adapters" if spec.adapters else ""),
        device=device_name(device),
        dtype=spec.dtype,
        threads=torch.get_num_threads(),
        grid=grid or Grid(),
        step=row_cost_step(device, dtype),
    )
    return cached_profile(key, cache_dir, partial(measure, verifier))


def measure(verifier: "VllmVerifier", grid: Grid) -> tuple[ForwardSample, ...]:
    """Uses prompts of whole blocks and one token, so that the prefix cache holds all but that token
    and only the first step over a prompt is expensive."""
    block = verifier.block_size
    contexts = [1 + -(-context // block) * block for context in grid.context]
    grid = replace(grid, context=tuple(contexts))
    shapes = shapes_of(grid)
    fitting = [shape for shape in shapes if _fits(verifier, shape)]
    return measure_alternately(fitting, grid, lambda shape, rng: _time_step(verifier, shape, rng))


def _fits(verifier: "VllmVerifier", shape: Shape) -> bool:
    length = shape.context + 1 + shape.rows
    blocks = shape.requests * -(-length // verifier.block_size)
    return length <= verifier.max_context and blocks <= verifier.blocks().total


def _time_step(verifier: "VllmVerifier", shape: Shape, rng: np.random.Generator) -> float:
    """Seconds of one step in which each request verifies a random draft."""
    prompts = {
        f"profile-{number}": _prompt(number, shape.context, verifier.vocab_size)
        for number in range(shape.requests)
    }
    orders = []
    for request, first in _prefill(verifier, prompts).items():
        committed = CommittedTokens()
        committed.extend([*prompts[request], *first])
        base = len(committed)
        draft = DraftTree.chain(rng.integers(verifier.vocab_size, size=shape.rows - 1).tolist())
        prefix = Prefix(request, 0, 1, base, committed.hashes[base], ())
        orders.append(VerifyOrder(prefix, draft, 1))
    start = perf_counter()
    verifier.verify(orders)
    elapsed = perf_counter() - start
    verifier.forget(prompts)
    return elapsed


def _prefill(
    verifier: "VllmVerifier", prompts: Mapping[str, list[int]]
) -> dict[str, Sequence[int]]:
    """Runs the prompts; returns the tokens chosen after them."""
    first: dict[str, Sequence[int]] = {}
    while len(first) < len(prompts):
        orders = [
            VerifyOrder(_prompt_prefix(request, prompt), DraftTree.empty(), len(prompt))
            for request, prompt in prompts.items()
            if request not in first
        ]
        for answer in verifier.verify(orders):
            if isinstance(answer, Verdict) and answer.tokens:
                first[answer.request] = answer.tokens
    return first


def _prompt_prefix(request: str, prompt: Sequence[int]) -> Prefix:
    return Prefix(request, 0, 0, 0, EMPTY_HASH, tuple(prompt), Start(GREEDY, 0, len(prompt)))


def _prompt(number: int, length: int, vocab_size: int) -> list[int]:
    """A prompt that every longer prompt of the same number starts with."""
    return [(number * 31 + index * (index + number)) % vocab_size for index in range(length)]
