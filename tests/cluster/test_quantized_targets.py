"""What vLLM on a CPU does with quantized checkpoints, as their config.json describes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.quantized_targets import cpu_problem, needs_bfloat16, weight_bits

AVX2, AVX512, AMX = {"avx2"}, {"avx2", "avx512f"}, {"avx2", "avx512f", "amx_tile"}


def tensors(bits: int, inputs: int | None = None, **more: Any) -> dict[str, Any]:
    """Tensors in the format of compressed-tensors."""
    group = {
        "weights": {"num_bits": bits, "type": "int", **more},
        "input_activations": None if inputs is None else {"num_bits": inputs},
    }
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


FP8_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
RUN_ON: list[tuple[dict[str, Any], tuple[set[str], ...]]] = [
    ({"quant_method": "awq", "bits": 4}, (AVX512, AMX)),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, (AVX512, AMX)),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, ()),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, ()),
    (tensors(4), (AVX512, AMX)),
    (tensors(4, actorder="group"), ()),
    (tensors(8, 8), (AVX2, AVX512, AMX)),
    (tensors(8), ()),
    (tensors(8, 8, type="float", strategy="channel"), (AVX2, AVX512, AMX)),
    (tensors(8, 8, type="float", strategy="block"), (AMX,)),
    ({"quant_method": "fp8"}, (AVX2, AVX512, AMX)),
    (FP8_BLOCKS, (AMX,)),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ()),
]


def checkpoint(folder: Path, settings: dict[str, Any] | None) -> Path:
    config = {} if settings is None else {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("settings", "processors"), RUN_ON)
def test_formats_run_where_there_are_kernels(
    settings: dict[str, Any], processors: tuple[set[str], ...], tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path, settings)
    for flags in (AVX2, AVX512, AMX):
        problem = cpu_problem(folder, flags)
        assert (problem is None) == (flags in processors), problem
        assert problem is None or "set target.gpus" in problem
    assert (cpu_problem(folder) is None) == bool(processors), "some processor runs it"


def test_only_integers_of_8_bits_run_in_float32(tmp_path: Path) -> None:
    assert [one for one, _ in RUN_ON if not needs_bfloat16(checkpoint(tmp_path, one))] == [
        tensors(8, 8)
    ]
    plain = checkpoint(tmp_path, None)
    assert (cpu_problem(plain, AVX2), needs_bfloat16(plain)) == (None, False)


@pytest.mark.parametrize(
    ("settings", "bits"),
    [
        (None, None),
        ({"quant_method": "gptq", "bits": 4}, 4),
        ({"quant_method": "awq", "w_bit": 4}, 4),
        (tensors(4), 4),
        (tensors(8, 8, type="float"), 8),
        (FP8_BLOCKS, 8),
    ],
)
def test_bits_of_a_weight(
    settings: dict[str, Any] | None, bits: int | None, tmp_path: Path
) -> None:
    assert weight_bits(checkpoint(tmp_path, settings)) == bits
