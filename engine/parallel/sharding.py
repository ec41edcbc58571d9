"""Cuts a rank's share out of a stock model's weights by the model's own tensor-parallel plan.

transformers can apply these plans itself, but only through accelerate and with every weight wrapped
in a DTensor. A plan names a style per module; the styles below cover the supported families, and a
plan with others is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.distributed.tensor_parallel import replace_layer_number_by_wildcard

from engine.errors import SpindleError, UnsupportedModel
from engine.parallel.ranks import gather_features, sum_over_ranks


class InvalidTensorParallel(SpindleError):
    """This many ranks cannot share the model."""

    field = "tensor_parallel"

    def __init__(self, problem: str) -> None:
        super().__init__(f"{self.field}: {problem}")


def check_ranks(config: PreTrainedConfig, ranks: int) -> None:
    """Raises InvalidTensorParallel unless every rank gets whole attention and key-value heads."""
    text = config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    possible = [n for n in range(1, kv_heads + 1) if heads % n == 0 and kv_heads % n == 0]
    if ranks not in possible:
        raise InvalidTensorParallel(
            f"{ranks} ranks cannot share {heads} attention heads and {kv_heads} key-value heads "
            f"evenly; possible are {', '.join(map(str, possible))}"
        )


@dataclass(frozen=True, slots=True)
class Share:
    rank: int
    ranks: int

    def of(self, whole: Tensor, dim: int) -> Tensor:
        """This rank's part of a dimension; if it is not divisible, the first ranks get one more."""
        return whole.tensor_split(self.ranks, dim)[self.rank]


def shard(model: PreTrainedModel, share: Share) -> None:
    """Cuts the model in place, so that a forward needs all ranks from then on."""
    plan: dict[str, str] = model.tp_plan
    styles = {
        name: plan[pattern]
        for name, _ in model.named_modules()
        if (pattern := replace_layer_number_by_wildcard(name)) in plan
    }
    unknown = set(styles.values()) - STYLES.keys()
    if unknown:
        raise UnsupportedModel(
            model.config.model_type,
            f"its tensor-parallel plan asks for {', '.join(sorted(unknown))}",
        )
    if not SUMMING_STYLES & set(styles.values()):
        raise UnsupportedModel(
            model.config.model_type, "transformers has no tensor-parallel plan for its layers"
        )
    for name, style in styles.items():
        model.set_submodule(name, STYLES[style](model.get_submodule(name), share))


class SummedOverRanks(nn.Module):
    """`inner` computes this rank's part of a sum."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Tensor) -> Tensor:
        return sum_over_ranks(self.inner(*inputs))


class GatheredFromRanks(nn.Module):
    """`linear` computes this rank's part of the output features."""

    def __init__(self, linear: nn.Linear, features: int) -> None:
        super().__init__()
        self.linear = linear
        self.features = features

    def forward(self, rows: Tensor) -> Tensor:
        return gather_features(self.linear(rows), self.features)


class OwnFeatures(nn.Module):
    """Cuts this rank's features out of an input that every rank has whole."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self.share = share

    def forward(self, rows: Tensor) -> Tensor:
        return self.share.of(rows, -1)


def _whole(module: nn.Module, _share: Share) -> nn.Module:
    return module


def _output_features(linear: nn.Linear, share: Share) -> nn.Linear:
    linear.weight = _parameter(share.of(linear.weight, 0))
    if linear.bias is not None:
        linear.bias = _parameter(share.of(linear.bias, 0))
    linear.out_features = len(linear.weight)
    return linear


def _gathered_output_features(linear: nn.Linear, share: Share) -> nn.Module:
    features = linear.out_features
    return GatheredFromRanks(_output_features(linear, share), features)


def _input_features(linear: nn.Linear, share: Share) -> nn.Module:
    linear.weight = _parameter(share.of(linear.weight, 1))
    if share.rank > 0:
        linear.bias = None  # the first rank adds it to the sum
    linear.in_features = linear.weight.shape[1]
    return SummedOverRanks(linear)


def _input_features_of_whole(linear: nn.Linear, share: Share) -> nn.Module:
    return nn.Sequential(OwnFeatures(share), _input_features(linear, share))


def _experts(module: nn.Module, share: Share) -> nn.Module:
    """Weights [experts, gate and up · features, hidden] and [experts, hidden, features]."""
    halves = module.gate_up_proj.chunk(2, 1)
    module.gate_up_proj = _parameter(torch.cat([share.of(half, 1) for half in halves], 1))
    module.down_proj = _parameter(share.of(module.down_proj, 2))
    return SummedOverRanks(module)


def _parameter(part: Tensor) -> nn.Parameter:
    """A copy, so that the whole weight can be freed."""
    own = part.detach().clone(memory_format=torch.contiguous_format)
    return nn.Parameter(own, requires_grad=False)


STYLES: dict[str, Callable[[nn.Module, Share], nn.Module]] = {
    "colwise": _output_features,
    "colwise_gather_output": _gathered_output_features,
    "rowwise": _input_features,
    "rowwise_split_input": _input_features_of_whole,
    "moe_tp_experts": _experts,
    # Norms within a head apply to any head; an embedding lookup costs no time worth sharing.
    "replicated_with_grad_allreduce": _whole,
    "embedding_rowwise": _whole,
}
SUMMING_STYLES = {"rowwise", "rowwise_split_input", "moe_tp_experts"}
