"""Small forwards in a few fixed shapes, which CUDA graphs replay: a draft step launches some ten
kernels a layer, and on a GPU launching them takes longer than running them.

Inputs are padded to the next shape. A graph is captured when its shape first occurs, and used only
if its logits are those of the kernels launched one by one. On other devices the same fixed shapes
can run without graphs, which the tests compare with the packed forward.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.context import AttentionBatch, Scoring
from engine.attention.hook import LayerCall
from engine.cpu.decoder_loop import FloatForward
from engine.kv.cache import KVCache


class StaticPlan:
    """Attention over tables of fixed shape, every row by itself. It copies a request's KV rows once
    for each of its new rows, which few rows of small models bear.

    At most `rows` new rows over at most `context` KV rows each. The tensors stay where they are;
    `load` fills them for the next forward. Rows after the batch's repeat its last one."""

    def __init__(self, rows: int, context: int, device: torch.device) -> None:
        self._shape = rows, context
        self._slots = torch.zeros(self._shape, dtype=torch.int64, device=device)
        self._visible = torch.zeros(self._shape, dtype=torch.bool, device=device)
        self._distance = torch.zeros(self._shape, dtype=torch.int64, device=device)

    def load(self, batch: AttentionBatch) -> None:
        slots, distance = (np.zeros(self._shape, np.int64) for _ in range(2))
        visible = np.zeros(self._shape, np.bool_)
        for request in range(len(batch)):
            rows, kv = batch.rows(request), batch.kv_rows(request)
            count = kv.stop - kv.start
            slots[rows, :count] = batch.kv_slots[kv]
            visible[rows, :count] = batch.visible(request, None)
            distance[rows, :count] = batch.row_positions[rows, None] - batch.kv_positions[None, kv]
        last = int(batch.row_offsets[-1])
        tables = ((self._slots, slots), (self._visible, visible), (self._distance, distance))
        for table, values in tables:
            values[last:] = values[last - 1]
            table.copy_(torch.from_numpy(values))

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        seen, slots = self._visible[: len(query)], self._slots[: len(query)]
        if scoring.window is not None:
            seen = seen & (self._distance[: len(query)] < scoring.window)
        # Scaled before the product, whose result is rounded to the model's dtype. Query heads that
        # share a key head become rows, so that keys are not copied.
        grouped = (query * scoring.scale).unflatten(1, (keys.shape[1], -1))
        scores = torch.matmul(grouped, keys[slots].permute(0, 2, 3, 1)).float()
        shares = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(-1)
        mixed = torch.matmul(shares.to(values.dtype), values[slots].transpose(1, 2))
        return mixed.flatten(1, 2).to(query.dtype)


log = logging.getLogger(__name__)

ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (256, 512, 1024, 2048, 4096)
MOST_KV_ROWS = 2**15
"""Rows × context: the keys and values of a layer that each forward copies."""
_WARM_UP_RUNS = 3
_MOST_ERROR = 0.02
"""As a share of the logits' range: in a graph other kernels may run, which round differently."""


class StepShape(NamedTuple):
    rows: int
    context: int

    @classmethod
    def of(cls, rows: int, context: int) -> "StepShape | None":
        """The smallest shape that holds these numbers of new rows and KV rows."""
        if rows > ROWS[-1] or context > CONTEXTS[-1]:
            return None
        shape = cls(ROWS[bisect_left(ROWS, rows)], CONTEXTS[bisect_left(CONTEXTS, context)])
        return shape if shape.rows * shape.context <= MOST_KV_ROWS else None


class StepGraphs:
    """Used by one thread at a time. All graphs share one memory pool."""

    def __init__(self, compute: FloatForward, kv: KVCache) -> None:
        self._compute = compute
        self._kv = kv
        self._steps: dict[StepShape, _Step] = {}
        self._replays: dict[StepShape, Callable[[], Tensor]] = {}
        self._has_graphs = kv.shape.device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if self._has_graphs else None
        self._failed = False

    def forward(
        self,
        batch: AttentionBatch,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        slots: NDArray[np.int64],
    ) -> Tensor | None:
        """The fp32 logits of all rows; None if the batch fits no shape, or capturing failed."""
        shape = StepShape.of(len(tokens), int(batch.kv_counts().max()))
        if shape is None or self._failed:
            return None
        if shape not in self._steps:
            self._steps[shape] = _Step(self._compute, self._kv, shape)
        self._steps[shape].load(batch, tokens, positions, slots)
        if shape not in self._replays and not self._prepare(shape):
            return None
        logits = self._replays[shape]()[: len(tokens)]
        return logits.to(torch.float32, copy=True)  # the next replay overwrites it

    def _prepare(self, shape: StepShape) -> bool:
        run = self._steps[shape].run
        try:
            self._replays[shape] = captured(run, self._pool) if self._has_graphs else run
        except RuntimeError as error:
            log.warning("steps run without CUDA graphs: %s", error)
            self._failed = True
        return not self._failed


class _Step:
    """The tensors of one shape, and the forward over them."""

    def __init__(self, compute: FloatForward, kv: KVCache, shape: StepShape) -> None:
        device = kv.shape.device
        self._compute = compute
        self._kv = kv
        self._plan = StaticPlan(shape.rows, shape.context, device)
        self._inputs = torch.zeros(3, shape.rows, dtype=torch.int64, device=device)
        self._wanted = torch.arange(shape.rows, device=device)

    def load(self, batch: AttentionBatch, *inputs: NDArray[np.integer[Any]]) -> None:
        """`inputs`: tokens, positions and slots. Padding repeats the last row: it writes the same
        keys and values to the same slot."""
        rows = np.stack(inputs)
        padding = self._inputs.shape[1] - rows.shape[1]
        self._inputs.copy_(torch.from_numpy(np.pad(rows, ((0, 0), (0, padding)), "edge")))
        self._plan.load(batch)

    def run(self) -> Tensor:
        tokens, positions, slots = self._inputs

        def attend(call: LayerCall) -> Tensor:
            keys, values = self._kv.k[call.layer], self._kv.v[call.layer]
            keys.index_copy_(0, slots, call.keys)
            values.index_copy_(0, slots, call.values)
            return self._plan.attend(call.query, keys, values, call.scoring)

        return self._compute(tokens, positions, self._wanted, attend, None)


def captured(run: Callable[[], Tensor], pool: Any) -> Callable[[], Tensor]:
    """A replay of `run`, whose result lies in the same memory each time. Raises RuntimeError if it
    cannot be captured, or computes something else."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_RUNS):  # kernels are compiled and chosen before the capture
            expected = run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other models of the process may use the device meanwhile, in other threads.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        logits = run()

    def replay() -> Tensor:
        graph.replay()
        return logits

    error = (replay() - expected).abs().max() / (expected.amax() - expected.amin())
    if not float(error) <= _MOST_ERROR:
        raise RuntimeError(f"a graph's logits differ by {float(error):.1%} of their range")
    return replay
