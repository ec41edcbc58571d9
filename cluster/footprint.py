"""The resources of each process of a replica (GPUs, CPUs, threads, memory), computed from the
config and the checkpoints' headers. Nothing is loaded."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.adapters import adapter_rank
from cluster.checkpoint_files import quantization, weight_files
from cluster.checkpoints import (
    architecture,
    eagle3_shape,
    weights_of_target,
)
from cluster.config import AppConfig, DrafterConfig, TargetConfig
from cluster.config.drafter_kinds import drafter_kind
from cluster.config.learning import QUEUED_TOKENS
from cluster.placement import OWN_CPUS, REPLICA, Placement
from cluster.quantized_targets import needs_bfloat16
from cluster.sources import parameters_of, quantized_bytes

RUNTIME_BYTES = 600_000_000
"""Memory of a process with Ray, torch and transformers before it loads a model (measured: 420 MB),
and of what stays of loading (150 MB)."""
_BYTES = {"bfloat16": 2, "float32": 4}
_QUANTIZED_BITS = {"int8": 8.5, "int4": 5.0}
_KV_BYTES = 2
"""One key or value beside quantized weights."""


@dataclass(frozen=True, slots=True)
class Footprint:
    process: str
    bundle: int
    gpus: float
    cpus: float
    threads: int
    weights_bytes: int
    """0 if the checkpoint has no safetensors."""
    kv_bytes: int
    lessons_bytes: int = 0
    """The bytes of what a head is to learn from, never on a GPU."""

    @property
    def gpu_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes if self.gpus else 0

    @property
    def host_bytes(self) -> int:
        """Memory on the node, including weights and KV unless the process has a GPU."""
        models = 0 if self.gpus else self.weights_bytes + self.kv_bytes
        return RUNTIME_BYTES + self.lessons_bytes + models


def footprints(config: AppConfig, placement: Placement) -> list[Footprint]:
    """The processes of one replica; inline models count as part of the replica's own process."""
    inline = list(_inline(config))
    gpus = placement.replica_options["num_gpus"]
    weights = sum(weights for weights, _ in inline)
    kv = sum(kv for _, kv in inline)
    lessons = QUEUED_TOKENS * _lesson_bytes(config.learner, config.target) if config.learner else 0
    own = Footprint("replica", REPLICA, gpus, OWN_CPUS, config.threads, weights, kv, lessons)
    return [own, *_target(config.target, placement), *_lanes(config, placement)]


def trainer(config: AppConfig) -> Footprint | None:
    """The memory of the one trainer, which is in no replica's bundle: the head in float32, what
    changes in it four times more (average, served version, momentum, gradient), and three packed
    versions. What a step computes is not counted."""
    drafter = config.learner
    if drafter is None or drafter.learn is None:
        return None
    learn, path = drafter.learn, drafter.header_path()
    assert path is not None
    outputs = eagle3_shape(path, config.target.architecture().num_hidden_layers).draft_vocab_size
    head = architecture(path)
    weights = _head_parameters(drafter, config.target)
    learned = max(0, weights - (head.vocab_size + outputs) * head.hidden_size)
    own = (weights + 4 * learned) * _BYTES["float32"] + 3 * learned * _BYTES["bfloat16"]
    tokens = learn.memory_tokens + 2 * QUEUED_TOKENS  # and those of a report
    lessons = tokens * _lesson_bytes(drafter, config.target)
    return Footprint("trainer", -1, learn.gpus, learn.cpus, learn.threads, own, 0, lessons)


def _lesson_bytes(drafter: DrafterConfig, target: TargetConfig) -> int:
    """The bytes of one token's features."""
    path = drafter.header_path()
    assert path is not None
    shape = eagle3_shape(path, target.architecture().num_hidden_layers)
    return len(shape.aux_layers) * shape.target_hidden_size * _width(target)


def _inline(config: AppConfig) -> Iterator[tuple[int, int]]:
    if config.target.placement == "inline":
        yield _target_bytes(config.target)
    for drafter in config.drafters:
        if drafter.placement == "inline":
            yield _drafter_bytes(drafter, config.target)


def _target(target: TargetConfig, placement: Placement) -> Iterator[Footprint]:
    if placement.target is not None:
        weights, kv = _target_bytes(target)
        yield Footprint(
            "verifier",
            placement.target,
            target.gpus * target.tensor_parallel,
            target.cpus,
            target.threads * target.tensor_parallel,
            weights,
            kv,
        )


def _lanes(config: AppConfig, placement: Placement) -> Iterator[Footprint]:
    for drafter in config.drafters:
        weights, kv = _drafter_bytes(drafter, config.target)
        own = (drafter.gpus, drafter.cpus, drafter.threads, weights, kv)
        for lane in drafter.lanes:
            if lane in placement.lanes:
                yield Footprint(lane, placement.lanes[lane], *own)


def _target_bytes(target: TargetConfig) -> tuple[int, int]:
    """Bytes of weights and KV of all ranks together."""
    width, shape = _width(target), target.architecture()
    weights = _target_parameters(target)
    kv = target.kv_tokens * shape.kv_values() * _kv_width(target)
    folder = target.header_path()
    if not target.runs_quantized:
        stored = [file.stat().st_size for file in weight_files(folder)]
        whole = sum(stored) if quantization(folder) and stored else weights * width
        return whole + _adapter_parameters(target) * width, kv
    if target.own_quantize != "auto":
        return _rounded_bytes(weights, target.own_quantize), kv
    tiles = quantized_bytes(target.model) or 0
    return tiles + shape.vocab_size * shape.hidden_size * _BYTES["float32"], kv


def _adapter_parameters(target: TargetConfig) -> int:
    """vLLM keeps a place of the largest rank for each, and one more."""
    ranks = [adapter_rank(Path(folder)) for folder in target.lora_modules.values()]
    return (len(ranks) + 1) * target.architecture().adapter_parameters(max(ranks)) if ranks else 0


def _target_parameters(target: TargetConfig) -> int:
    return target.inflate_to or parameters_of(target.model) or 0


def _kv_width(target: TargetConfig) -> int:
    """Bytes per value."""
    return _KV_BYTES if target.runs_quantized else _width(target)


def _rounded_bytes(weights: int, quantize: str) -> int:
    """What rounded weights take: they are loaded as floats first."""
    return int(weights * (_BYTES["float32"] + _QUANTIZED_BITS[quantize] / 8))


def _drafter_bytes(drafter: DrafterConfig, target: TargetConfig) -> tuple[int, int]:
    if drafter_kind(drafter.kind).copies_target:
        kv = drafter.kv_capacity(target) * target.architecture().kv_values()
        if drafter.gpus:  # in bfloat16 but for the linear layers, which are rounded one by one
            return _target_parameters(target) * _BYTES["bfloat16"], kv * _BYTES["bfloat16"]
        return _rounded_bytes(_target_parameters(target), drafter.quantize), kv * _KV_BYTES
    width, path = _width(drafter), drafter.header_path()
    if drafter.model is None or path is None:
        return 0, 0
    kv = drafter.kv_capacity(target) * architecture(path).kv_values()
    if drafter_kind(drafter.kind).reads_features:
        return _head_parameters(drafter, target) * width, kv * width
    return (parameters_of(drafter.model) or 0) * width, kv * width


def _head_parameters(drafter: DrafterConfig, target: TargetConfig) -> int:
    path = drafter.header_path()
    assert drafter.model is not None
    assert path is not None
    shape = eagle3_shape(path, target.architecture().num_hidden_layers)
    own = parameters_of(drafter.model) or 0
    return own + weights_of_target(path, shape.draft_vocab_size)


def _width(model: TargetConfig | DrafterConfig) -> int:
    """Bytes per value; for `auto` on a CPU, where the dtype is not known yet, that of float32."""
    if model.dtype == "auto":
        quantized = isinstance(model, TargetConfig) and needs_bfloat16(model.header_path())
        return _BYTES["bfloat16" if model.gpus or quantized else "float32"]
    return _BYTES[model.dtype]
