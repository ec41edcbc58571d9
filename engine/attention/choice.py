"""Measures which attention layout is the fastest on this device: `target.attention: auto`."""

import logging
import math
from collections.abc import Mapping
from functools import partial
from statistics import mean
from time import perf_counter

import numpy as np
import torch

from engine.attention.context import AttentionBatch, AttentionPlan, Layout, Scoring
from engine.attention.layouts import LAYOUTS, LayoutName
from engine.kv.cache import KVCache

_LOG = logging.getLogger("spindle")

SECONDS = 1.0
"""For all measurements, besides the first call of each layout, which may compile it."""
_BATCHES = ((1, 1), (8, 1), (8, 5))
"""(requests, new rows of each): plain decoding of one and of many, drafts of many."""
_CONTEXTS = (30, 600)
"""The shortest and the longest request."""
_LEAST_ROUNDS = 3
_DEFAULT: LayoutName = "packed"


def fastest_layout(
    kv: KVCache,
    heads: int,
    max_context: int,
    layouts: Mapping[LayoutName, Layout] = LAYOUTS,
    seconds: float = SECONDS,
) -> LayoutName:
    """The layout that attends fastest through all layers, by the mean ratio over `_BATCHES` of its
    best time to the best of all. Its measurements read the pool and leave it as it is.

    A layout that fails on this device is left out, with a warning.
    """
    batches = [_batch(kv, heads, max_context, *shape) for shape in _BATCHES]
    best = {name: [math.inf] * len(batches) for name in layouts}
    for name in layouts:
        try:
            for batch in batches:
                _attend_s(kv, heads, batch, layouts[name])
        except Exception:
            _LOG.warning("attention %s does not run on %s", name, kv.shape.device, exc_info=True)
            del best[name]
    if not best:
        return _DEFAULT
    end_s = perf_counter() + seconds
    rounds = 0
    while rounds < _LEAST_ROUNDS or perf_counter() < end_s:
        for number, batch in enumerate(batches):
            for name, times in best.items():
                times[number] = min(times[number], _attend_s(kv, heads, batch, layouts[name]))
        rounds += 1
    fastest = [min(times) for times in zip(*best.values(), strict=True)]
    ratios = {
        name: mean(own / least for own, least in zip(times, fastest, strict=True))
        for name, times in best.items()
    }
    chosen = min(ratios, key=ratios.__getitem__)
    _LOG.info(
        "attention: %s is the fastest here (time over the fastest: %s; %d rounds)",
        chosen,
        ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()),
        rounds,
    )
    return chosen


def _attend_s(kv: KVCache, heads: int, batch: AttentionBatch, layout: Layout) -> float:
    """Of one forward's attention: the plan, then every layer."""
    rows = int(batch.row_offsets[-1])
    width = kv.shape.head_dim
    query = torch.ones(rows, heads, width, dtype=kv.shape.dtype, device=batch.device)
    attend = partial(_attend, kv, query, Scoring(1 / math.sqrt(width)))
    _wait(batch.device)
    begin = perf_counter()
    attend(layout(batch))
    _wait(batch.device)
    return perf_counter() - begin


@torch.inference_mode()
def _attend(kv: KVCache, query: torch.Tensor, scoring: Scoring, plan: AttentionPlan) -> None:
    for keys, values in zip(kv.k, kv.v, strict=True):
        plan.attend(query, keys, values, scoring)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _batch(kv: KVCache, heads: int, max_context: int, requests: int, rows: int) -> AttentionBatch:
    """Requests of evenly spread lengths, which read any rows of the pool."""
    most = max(1, min(_CONTEXTS[1], max_context - rows, kv.capacity // requests - rows))
    lengths = np.linspace(min(_CONTEXTS[0], most), most, requests, dtype=np.int64)
    counts = lengths + rows
    offsets = np.concatenate([[0], np.cumsum(counts)])
    positions = np.concatenate([np.arange(count) for count in counts])
    return AttentionBatch(
        row_offsets=np.arange(requests + 1) * rows,
        kv_offsets=offsets,
        committed=lengths,
        masks=(None,) * requests,
        kv_slots=np.arange(offsets[-1]),
        row_positions=np.concatenate([np.arange(length, length + rows) for length in lengths]),
        kv_positions=positions,
        group=heads // kv.shape.kv_heads,
        device=kv.shape.device,
    )
