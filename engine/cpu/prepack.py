"""Linear layers prepacked for a CPU: weights are stored in the layout that oneDNN's kernels read.

A stock nn.Linear stores its weight row by row, and in bfloat16 every call rearranges it for the
processor's matrix units, which takes longer than the product itself if there are few rows. Packing
is done once, in place, and frees the stock weight, so that a model takes no more memory.
"""

import platform
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

PACKED_FOR_ROWS = 16
"""The row count for which oneDNN chooses the layout; measured, the layout is equally good for 1 to
512 rows."""

_pack = torch.ops.mkldnn._reorder_linear_weight
_linear = torch.ops.mkldnn._linear_pointwise.default
_linear_with = torch.ops.mkldnn._linear_pointwise.binary


class PackedLinear(nn.Module):
    """Replaces an nn.Linear, and can fuse the operation that usually follows it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        # Not a parameter, because code that moves or saves parameters cannot handle oneDNN's
        # layouts.
        self._weight = _pack(linear.weight.detach(), PACKED_FOR_ROWS)

    @property
    def weight(self) -> Tensor:
        """A copy of the weight in the stock layout."""
        return self._weight.to_dense()

    def forward(self, rows: Tensor) -> Tensor:
        return _linear(rows, self._weight, self.bias, "none", [], "")

    def silu(self, rows: Tensor) -> Tensor:
        return _linear(rows, self._weight, self.bias, "swish", [], "")

    def plus(self, rows: Tensor, term: Tensor) -> Tensor:
        return _linear_with(rows, term, self._weight, self.bias, "add")

    def times(self, rows: Tensor, factor: Tensor) -> Tensor:
        return _linear_with(rows, factor, self._weight, self.bias, "mul")


class PackedPart(nn.Module):
    """One of several layers that were joined: called by itself, it computes all of them and returns
    its part."""

    def __init__(self, whole: PackedLinear, first: int, out_features: int) -> None:
        super().__init__()
        self.whole = whole
        self.in_features = whole.in_features
        self.out_features = out_features
        self._first = first

    def forward(self, rows: Tensor) -> Tensor:
        return self.whole(rows).narrow(-1, self._first, self.out_features)


def join(layers: Sequence[PackedLinear]) -> list[PackedPart]:
    """Joins layers with the same input, because one product for all of them takes less time than
    one for each."""
    joined = nn.Linear(
        layers[0].in_features,
        sum(layer.out_features for layer in layers),
        bias=any(layer.bias is not None for layer in layers),
        device="meta",
    )
    weights = [layer.weight for layer in layers]
    joined.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
    if joined.bias is not None:
        biases = [
            weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
            for layer, weight in zip(layers, weights, strict=True)
        ]
        joined.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    whole = PackedLinear(joined)
    firsts = accumulate((layer.out_features for layer in layers), initial=0)
    return [
        PackedPart(whole, first, layer.out_features)
        for first, layer in zip(firsts, layers, strict=False)
    ]


def prepack(model: nn.Module) -> None:
    """Packs those linear layers of the model that can be packed; the others are unchanged."""
    for name, module in list(model.named_modules()):
        if can_pack(module):
            model.set_submodule(name, PackedLinear(module))


def can_pack(module: nn.Module) -> bool:
    return (
        type(module) is nn.Linear  # a subclass may compute something else
        and module.weight.device.type == "cpu"
        and module.weight.numel() > 0
        and _runs_on_this_cpu(module.weight.dtype)
    )


def _runs_on_this_cpu(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return has_bf16_products()
    return dtype == torch.float32 and torch.backends.mkldnn.is_available()


def fast_dtype(device: torch.device | str) -> torch.dtype:
    """The faster dtype of the device: bfloat16 if it multiplies that in hardware. Otherwise
    float32: bfloat16 would take less memory, but forwards of more than a few tokens would take
    longer."""
    if torch.device(device).type == "cuda" or _has_bf16_instructions():
        return torch.bfloat16
    return torch.float32


def _has_bf16_instructions() -> bool:
    """Whether the processor itself multiplies bf16: oneDNN reports support on every processor with
    AVX-512, but emulates it on some of them."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return has_bf16_products()
    in_hardware = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return has_bf16_products() and in_hardware


def has_bf16_products() -> bool:
    """Whether oneDNN multiplies bf16 on this processor."""
    available = torch.backends.mkldnn.is_available()
    return available and torch.ops.mkldnn._is_mkldnn_bf16_supported()
