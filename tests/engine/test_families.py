"""A model that cannot be served without loss is refused at load, with its type and the reason."""

from pathlib import Path

import pytest
import torch
import transformers as hf
from transformers import AutoModelForCausalLM, PreTrainedConfig

from engine.errors import UnsupportedModel
from engine.families import check_config, prepare
from engine.model import PackedModel
from tests.engine.families import SUPPORTED, build

_SMALL = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2}
_LLAMA = {**_SMALL, "num_attention_heads": 4, "intermediate_size": 32}
_ROPE = {"rope_theta": 10_000.0, "factor": 2.0}

IGNORES = "ignores registered attention"
REFUSED: dict[str, tuple[PreTrainedConfig, str]] = {
    "gptj": (hf.GPTJConfig(vocab_size=97, n_embd=32, n_layer=2, n_head=4, rotary_dim=4), IGNORES),
    "mpt": (hf.MptConfig(vocab_size=97, d_model=32, n_layers=2, n_heads=4), IGNORES),
    "mamba": (hf.MambaConfig(**_SMALL), "linear_attention"),
    "rwkv": (hf.RwkvConfig(**_SMALL), "recurrent state"),
    "qwen3_next": (hf.Qwen3NextConfig(**_LLAMA, num_key_value_heads=2), "linear_attention"),
    "gemma2": (
        hf.Gemma2Config(
            **_LLAMA, num_key_value_heads=2, head_dim=8, attn_logit_softcapping=2.0
        ),
        "a cap of its scores; serve it with backend: vllm",
    ),
    "gpt_oss": (
        hf.GptOssConfig(
            **_LLAMA, num_key_value_heads=2, head_dim=8, num_local_experts=4,
            num_experts_per_tok=2, layer_types=["sliding_attention", "full_attention"],
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        ),
        "sinks; serve it with backend: vllm",
    ),
    "bart": (hf.BartConfig(vocab_size=97, d_model=32, is_encoder_decoder=True), "encoder-decoder"),
    "llama": (
        hf.LlamaConfig(**_LLAMA, rope_parameters={"rope_type": "dynamic", **_ROPE}),
        "rope type 'dynamic'",
    ),
    "phi3": (
        hf.Phi3Config(
            **_LLAMA, num_key_value_heads=4, pad_token_id=None,
            rope_parameters={
                "rope_type": "longrope", "rope_theta": 10_000.0,
                "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
            },
        ),
        "rope type 'longrope'",
    ),
    "deepseek_v3": (
        hf.DeepseekV3Config(
            **_LLAMA, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
            qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=4, n_group=1, topk_group=1,
            num_experts_per_tok=2, moe_intermediate_size=16,
        ),
        "shape of their keys and values",
    ),
}  # fmt: skip


def _build_and_prepare(config: PreTrainedConfig) -> None:
    check_config(config)
    prepare(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("family", REFUSED)
def test_an_unsupported_family_is_refused_with_its_type_and_the_reason(family: str) -> None:
    config, reason = REFUSED[family]
    with pytest.raises(UnsupportedModel, match=reason) as refusal:
        _build_and_prepare(config)
    assert refusal.value.model_type == family


def test_batch_dependent_rope_in_one_layer_type_is_refused() -> None:
    config = SUPPORTED["gemma3"].__class__(**SUPPORTED["gemma3"].to_dict())
    config.rope_parameters["full_attention"] = {"rope_type": "dynamic", **_ROPE}
    with pytest.raises(UnsupportedModel, match="dynamic"):
        check_config(config)


def test_a_window_that_never_reaches_attention_is_refused() -> None:
    """As in a family that applies its window only in masks, which packed attention never gets."""
    model = build(SUPPORTED["llama"])
    model.config.sliding_window = 8
    with pytest.raises(UnsupportedModel, match="window of None, its config for 8"):
        prepare(model)


def test_an_unsupported_family_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    config, _ = REFUSED["qwen3_next"]
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="qwen3_next"):
        PackedModel.load(tmp_path, dtype=torch.float32, device="cpu", kv_tokens=64)


def test_a_model_without_a_causal_head_is_refused(tmp_path: Path) -> None:
    hf.ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="no causal LM of this type"):
        PackedModel.load(tmp_path, dtype=torch.float32, device="cpu", kv_tokens=64)
