"""One packed forward: the new tokens of many requests through a stock Hugging Face causal LM.

Linear layers process one flat list of rows without padding; in attention, each request's rows see
only that request's own KV. On a CPU, quantized weights are computed in compiled loops
(engine/cpu/quantized_forward.py); floats by the model's own modules, whose linear layers are
prepacked, in forwards that are padded to a few row counts (engine/cpu/row_counts.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from cluster.checkpoint_files import Quantize
from engine.attention.context import AttentionBatch, Layout
from engine.attention.flex import FusedPlan
from engine.attention.hook import Handler, attention_handled_by
from engine.attention.packed import PackedPlan, PoolAttention
from engine.checkpoint import load_stock
from engine.cpu.decoder_loop import FloatForward, fused_forward
from engine.cpu.prepack import prepack
from engine.cpu.quantized_forward import QuantizedForward
from engine.cpu.quantized_loading import quantized_linears
from engine.cpu.quantized_weights import QuantizedLinear
from engine.cpu.row_counts import has_slow_row_counts, with_few_row_counts
from engine.cpu.threads import use_free_processors
from engine.errors import OutOfBlocks, UnsupportedModel
from engine.families import check_logits, prepare, stock_logits
from engine.hidden_states import HiddenStates, taken_from_modules
from engine.kv.cache import KVCache, KVShape
from engine.step_graphs import StepGraphs

Forward = Callable[[Tensor, Tensor, Tensor, PoolAttention, HiddenStates | None], Tensor]
"""tokens [rows], positions [rows], wanted [n] → logits of the wanted rows."""

BLOCK_SIZE = 16
CPU_DTYPES = (torch.float32, torch.bfloat16)
PROBE_PROMPTS = (range(0, 5), range(5, 8))


@dataclass(frozen=True, slots=True)
class Segment:
    """One request's part of a forward."""

    request: str
    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    """Absolute position of each row: committed length + depth."""
    mask: NDArray[np.bool_] | None
    """[rows, earlier uncommitted rows + rows]: which uncommitted rows each row attends to,
    including itself. None: causal. Committed rows are always visible."""
    logits: NDArray[np.int32]
    """Indices of the rows whose logits are returned."""


class PackedModel:
    """A stock causal LM with Spindle's KV pool. Used by one thread at a time."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        kv_tokens: int,
        static_steps: bool = False,
        quantized: Mapping[str, QuantizedLinear] | None = None,
    ) -> None:
        """`static_steps`: small forwards run in a few fixed shapes, on a GPU as CUDA graphs.
        `quantized`: the linear layers, whose own weights are dropped.

        Raises UnsupportedModel, naming the model type and the reason, if the model could not be
        served losslessly."""
        if model.device.type == "cpu" and model.dtype not in CPU_DTYPES:
            raise UnsupportedModel(
                model.config.model_type,
                f"on a CPU it runs in float32 or bfloat16, not in {model.dtype}",
            )
        self.hf_model = model.eval()
        self.device: torch.device = model.device
        shape = prepare(model)
        self._group = shape.heads // shape.kv_heads
        kv_dtype = model.dtype if quantized is None else torch.float16
        self.kv = KVCache(
            KVShape(shape.layers, shape.kv_heads, shape.head_dim, kv_dtype, self.device),
            blocks=-(-kv_tokens // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
        )
        self.plan: Layout = PackedPlan if self.device.type == "cpu" else FusedPlan
        """Replaced only by layouts that are compared with it (lab/papers/layouts.py)."""
        # Read for uncommitted rows only: a committed row's position is its index.
        self._slot_positions = np.zeros(self.kv.capacity, np.int64)
        stock = self._stock_probe()
        self.weights = _named(quantized or {})
        """How they are quantized; empty: floats."""
        self._compute: Forward
        self._graphs: StepGraphs | None = None
        if quantized is not None:
            self._compute = _quantized(model, quantized)
        else:
            self._compute = floats = _float_forward(model)
            self._graphs = StepGraphs(floats, self.kv) if static_steps else None
        self._check_against(stock)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        kv_tokens: int,
        quantize: Quantize = "none",
    ) -> Self:
        """`quantize`: only for a CPU, in float32."""
        model = load_stock(path, dtype).to(device)
        return cls(
            model,
            kv_tokens=kv_tokens,
            quantized=quantized_linears(model, Path(path), quantize),
        )

    @property
    def vocab_size(self) -> int:
        return self.hf_model.config.get_text_config(decoder=True).vocab_size

    @property
    def max_context(self) -> int:
        return self.hf_model.config.get_text_config(decoder=True).max_position_embeddings

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The checkpoint's own end-of-sequence tokens."""
        stops = self.hf_model.generation_config.eos_token_id
        if stops is None:
            return ()
        return (stops,) if isinstance(stops, int) else tuple(stops)

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment], states: HiddenStates | None = None) -> Tensor:
        """The fp32 logits of the rows in `Segment.logits`, in order: [rows, vocabulary]. Fills
        `states` with those of all segments' rows, one segment after the other.

        All new rows become uncommitted rows of their requests in the KV pool; the caller commits
        some of them. If it raises OutOfBlocks, nothing has changed.
        """
        if not segments:
            return torch.empty(0, self.vocab_size, device=self.device)
        if self.device.type == "cpu":
            use_free_processors()
        new_slots = self._reserve(segments)
        slots = np.concatenate(new_slots)
        counts = [len(segment.tokens) for segment in segments]
        starts = np.cumsum([0, *counts[:-1]])
        wanted = np.concatenate(
            [start + segment.logits for start, segment in zip(starts, segments, strict=True)]
        )
        tokens = np.concatenate([segment.tokens for segment in segments])
        positions = np.concatenate([segment.positions for segment in segments])
        batch = self._batch(segments, new_slots)
        if self._graphs is not None and states is None:
            of_all_rows = self._graphs.forward(batch, tokens, positions, slots)
            if of_all_rows is not None:
                return of_all_rows[self._tensor(wanted)]
        attend = PoolAttention(self.kv, self.plan(batch), slots, self._tensor(slots))
        logits = self._compute(
            self._tensor(tokens), self._tensor(positions), self._tensor(wanted), attend, states
        )
        return logits.float()

    def _reserve(self, segments: Sequence[Segment]) -> list[NDArray[np.int64]]:
        """The KV slots for each segment's new rows; reserves all of them, or none."""
        slots: list[NDArray[np.int64]] = []
        try:
            for segment in segments:
                slots.append(self.kv.reserve(segment.request, len(segment.tokens)))
        except OutOfBlocks:
            for segment in segments[: len(slots)]:
                self.kv.unreserve(segment.request, len(segment.tokens))
            raise
        return slots

    def _batch(
        self, segments: Sequence[Segment], new_slots: Sequence[NDArray[np.int64]]
    ) -> AttentionBatch:
        for segment, slots in zip(segments, new_slots, strict=True):
            self._slot_positions[slots] = segment.positions
        requests = [segment.request for segment in segments]
        slots_of = [self.kv.slots(request) for request in requests]
        committed = np.array([self.kv.length(request) for request in requests], np.int64)
        kv_counts = np.array([len(slots) for slots in slots_of], np.int64)
        kv_offsets = np.concatenate([[0], np.cumsum(kv_counts)])
        kv_slots = np.concatenate(slots_of)
        positions = [segment.positions for segment in segments]
        index = np.arange(len(kv_slots)) - np.repeat(kv_offsets[:-1], kv_counts)
        in_tail = index >= np.repeat(committed, kv_counts)
        return AttentionBatch(
            row_offsets=np.cumsum([0, *(len(segment.tokens) for segment in segments)]),
            kv_offsets=kv_offsets,
            committed=committed,
            masks=tuple(segment.mask for segment in segments),
            kv_slots=kv_slots,
            row_positions=np.concatenate(positions, dtype=np.int64),
            kv_positions=np.where(in_tail, self._slot_positions[kv_slots], index),
            group=self._group,
            device=self.device,
        )

    def _tensor(self, array: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(array).to(self.device, torch.int64)

    def _stock_probe(self) -> Tensor:
        """The unmodified model's logits after each probe prompt."""
        prompts = [torch.arange(prompt.start, prompt.stop) for prompt in PROBE_PROMPTS]
        return torch.stack(
            [
                stock_logits(self.hf_model, (prompt % self.vocab_size).to(self.device))
                for prompt in prompts
            ]
        )

    def _check_against(self, stock: Tensor) -> None:
        """Checks that two requests in one packed forward have the same logits as each alone in the
        unmodified model."""
        segments = [
            Segment(
                request=f"probe-{number}",
                tokens=np.array(prompt, np.int32) % self.vocab_size,
                positions=np.arange(len(prompt), dtype=np.int32),
                mask=None,
                logits=np.array([len(prompt) - 1], np.int32),
            )
            for number, prompt in enumerate(PROBE_PROMPTS)
        ]
        for segment in segments:
            self.kv.open(segment.request, [])
        packed = self.forward(segments)
        for segment in segments:
            self.kv.release(segment.request)
        check_logits(self.hf_model, packed, stock, "packed", rounded=bool(self.weights))


def _float_forward(model: PreTrainedModel) -> FloatForward:
    prepack(model)
    compute: FloatForward = fused_forward(model) or partial(stock_forward, model)
    if model.device.type == "cpu":
        compute = with_few_row_counts(compute, has_slow_row_counts(model.device, model.dtype))
    return compute


def _quantized(model: PreTrainedModel, linears: Mapping[str, QuantizedLinear]) -> QuantizedForward:
    compute = QuantizedForward(model, linears)
    embeddings = model.get_input_embeddings().weight
    for name in linears:
        linear = model.get_submodule(name)
        if linear.weight is not embeddings:
            linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # so that the file of floats is mapped no longer
    return compute


def _named(linears: Mapping[str, QuantizedLinear]) -> str:
    """For profiles: what affects the speed of quantized layers."""
    kinds = sorted({linear.kind for linear in linears.values()})
    return ", ".join(
        f"{kind.bits} bits in groups of {kind.group}{'' if kind.half else ' with long scales'}"
        for kind in kinds
    )


def stock_forward(
    model: PreTrainedModel,
    tokens: Tensor,
    positions: Tensor,
    wanted: Tensor,
    attend: Handler,
    states: HiddenStates | None,
) -> Tensor:
    """Runs the model's own forward over one flat list of rows."""
    with attention_handled_by(attend), taken_from_modules(model, states):
        output = model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=wanted,
        )
    return output.logits[0]
