"""Prepacked layers and the fused loop compute what the stock model computes, or are not used."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, PreTrainedModel

from engine.cpu.decoder_loop import fused_forward
from engine.cpu.prepack import PackedLinear, can_pack, prepack
from engine.model import PackedModel, Segment
from tests.engine.families import SUPPORTED, build

FUSED = ("llama", "mistral", "qwen2", "qwen3")
PROMPTS = ([3], [1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7], [27, 18, 28, 18, 28, 45, 90])
SHAPES = ((1, 1), (1, 7), (7, 1), (3, 5), (97, 32), (256, 192))
"""(features out, features in)"""
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-8}
"""Absolute and relative. For bfloat16 that is twice the error of rounding once."""


def linear(out: int, features: int, dtype: torch.dtype, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(features, out, bias=bias).to(dtype)


def exactly(layer: nn.Linear, rows: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.double()
    return functional.linear(rows.double(), layer.weight.double(), bias)


def assert_rounded(values: Tensor, exact: Tensor) -> None:
    tolerance = TOLERANCE[values.dtype]
    torch.testing.assert_close(values.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_packed_layer_equals_its_layer(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for bias in (False, True):
        layer = linear(*shape, dtype, bias=bias)
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            assert not can_pack(layer)  # on this processor; it stays as it is
            continue
        packed = PackedLinear(layer)
        for count in (0, 1, 5, 16, 80):
            rows = torch.randn(count, shape[1]).to(dtype)
            other = torch.randn(count, shape[0]).to(dtype)
            exact = exactly(layer, rows)
            assert_rounded(packed(rows), exact)
            assert_rounded(packed.silu(rows), functional.silu(exact))
            assert_rounded(packed.plus(rows, other), exact + other.double())
            assert_rounded(packed.times(rows, other), exact * other.double())


class Doubled(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return 2 * super().forward(rows)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(4, 4, device="meta"),
        linear(4, 4, torch.float16),
        Doubled(4, 4),
    ],
    ids=["device", "half", "subclass"],
)
def test_what_cannot_be_packed_stays_as_it_is(layer: nn.Module) -> None:
    assert not can_pack(layer)
    model = nn.Sequential(linear(4, 4, torch.float32), layer)
    prepack(model)
    assert isinstance(model[0], PackedLinear)
    assert model[1] is layer


def forward_all(model: PackedModel) -> Tensor:
    """The logits after each prompt, from one forward over all of them."""
    segments = [
        Segment(
            str(number),
            np.array(prompt, np.int32),
            np.arange(len(prompt), dtype=np.int32),
            None,
            np.array([len(prompt) - 1], np.int32),
        )
        for number, prompt in enumerate(PROMPTS)
    ]
    for segment in segments:
        model.kv.open(segment.request, [])
    logits = model.forward(segments)
    for segment in segments:
        model.kv.release(segment.request)
    return logits


def stock_all(model: PreTrainedModel) -> Tensor:
    """What the untouched model says after each prompt."""
    model.set_attn_implementation("eager")
    return torch.stack([model(torch.tensor([p])).logits[0, -1].float() for p in PROMPTS])


@pytest.mark.parametrize("family", FUSED)
@torch.inference_mode()
def test_bfloat16_is_no_worse_than_stock(family: str) -> None:
    """Both round, at other places: the loop at fewer. Measured against the same weights in fp32,
    over the root mean square of logits."""
    small = build(SUPPORTED[family])
    for name, weight in small.named_parameters():
        if "norm" not in name:
            weight.mul_(0.5)  # tamer than what finds errors in fp32
    rounded = small.bfloat16()
    exact = stock_all(deepcopy(rounded).float())
    stock = stock_all(deepcopy(rounded))
    packed = forward_all(PackedModel(rounded, kv_tokens=64))

    def error(logits: Tensor) -> float:
        return float((logits - exact).square().mean().sqrt() / exact.square().mean().sqrt())

    assert error(packed) < 1.2 * error(stock) < 0.05


@torch.inference_mode()
def test_biases_everywhere_and_scaled_positions() -> None:
    config = LlamaConfig(
        **SUPPORTED["llama"].to_diff_dict()
        | {
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0},
        }
    )
    model = build(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.normal_()
    expected = stock_all(deepcopy(model))
    packed = PackedModel(model, kv_tokens=64)
    assert fused_forward(packed.hf_model) is not None
    torch.testing.assert_close(forward_all(packed), expected, atol=1e-4, rtol=0)
