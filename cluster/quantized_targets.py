"""Quantized checkpoints as targets on vLLM: the dtype beside their weights, and which run on a CPU.

What vLLM 0.32's kernels for x86 run is the table in docs/vllm.md.
"""

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cluster.checkpoint_files import names_checkpoint, quantization_settings

_INT4, _INT8 = "integers of 4 bits", "integers of 8 bits with inputs of 8 bits"
_FP8, _FP8_BLOCKS = "FP8", "FP8 in blocks"
_NEEDED: Mapping[str, tuple[str, str]] = {
    _INT4: ("avx512f", "AVX-512"),
    _INT8: ("avx2", "AVX2"),
    _FP8: ("avx2", "AVX2"),
    _FP8_BLOCKS: ("amx_tile", "AMX"),
}
"""The flag and the name of what a processor must have for each form of weights."""


@cache
def processor_flags() -> frozenset[str]:
    """This machine's; empty where it is no x86."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


@names_checkpoint
def needs_bfloat16(folder: Path) -> bool:
    """Whether vLLM's kernels for these weights refuse float32."""
    settings = quantization_settings(folder)
    return settings is not None and _form(settings) != _INT8


@names_checkpoint
def cpu_problem(folder: Path, flags: Collection[str] = ()) -> str | None:
    """What keeps vLLM on a CPU from running the checkpoint's quantized weights. `flags`: the
    processor's; none: any processor."""
    settings = quantization_settings(folder)
    if settings is None:
        return None
    form = _form(settings)
    if form not in _NEEDED:
        return (
            f"vLLM has no kernel for a CPU for quantized weights of this form ({form}); set "
            "target.gpus, or choose AWQ, GPTQ without desc_act, or compressed-tensors with W4A16 "
            "or W8A8"
        )
    flag, name = _NEEDED[form]
    if flags and flag not in flags:
        return (
            f"this processor lacks {name}, which vLLM's kernels for {form} need; set target.gpus, "
            "or choose compressed-tensors with W8A8, or the model that it was made from"
        )
    return None


@names_checkpoint
def weight_bits(folder: Path) -> int | None:
    """Bits of a quantized weight; of a form that is not known 8. None: they are plain numbers."""
    settings = quantization_settings(folder)
    if settings is None:
        return None
    groups = (settings.get("config_groups") or {}).values()
    bits: int = max(
        (group["weights"]["num_bits"] for group in groups),
        default=settings.get("bits", settings.get("w_bit", 8)),
    )
    return bits


def _form(settings: Mapping[str, Any]) -> str:
    """One of _NEEDED, or a description of what is none."""
    method = settings.get("quant_method")
    match method:
        case "awq" | "gptq":
            bits = settings.get("bits", settings.get("w_bit", 4))
            if settings.get("desc_act") and settings.get("group_size", -1) != -1:
                return f"{method} with desc_act and groups"
            return _INT4 if bits == 4 else f"{method} with {bits} bits"
        case "fp8":
            return _FP8_BLOCKS if settings.get("weight_block_size") else _FP8
        case "compressed-tensors":
            forms = {_form_of_group(group) for group in settings["config_groups"].values()}
            return forms.pop() if len(forms) == 1 else " and ".join(sorted(forms))
    return str(method)


def _form_of_group(group: Mapping[str, Any]) -> str:
    weights, inputs = group["weights"], group.get("input_activations")
    bits, kind = weights["num_bits"], weights.get("type", "int")
    input_bits = inputs["num_bits"] if inputs else 16
    match kind, bits, input_bits:
        case "int", 4, 16 if weights.get("actorder") in (None, False, "weight", "static"):
            return _INT4
        case "int", 8, 8:
            return _INT8
        case "float", 8, 8:
            return _FP8_BLOCKS if weights.get("strategy") == "block" else _FP8
    return f"{kind} W{bits}A{input_bits}"
