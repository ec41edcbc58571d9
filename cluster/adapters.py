"""LoRA adapters in PEFT's format: what a config check reads of them, without loading any."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from cluster.checkpoint_files import names_checkpoint, read_json
from cluster.checkpoints import weight_shapes

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_MOST = 64
"""Adapters, which are all kept in memory beside the target."""
_PREFIX = "base_model.model."
_SIDES = {"A.weight": 1, "B.weight": 0}
"""The axis that a matrix shares with its layer: inputs or outputs."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM has memory laid out for."""
_UNSUPPORTED = (
    *("modules_to_save", "lora_bias", "alora_invocation_tokens", "layer_replication"),
    *("use_bdlora", "use_qalora"),
)
"""Fields of PEFT's with which vLLM refuses an adapter."""
_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Those of PEFT's that leave the target's weights as they are."""


@names_checkpoint
def adapter_rank(folder: Path) -> int:
    """The largest rank of its matrices, as vLLM counts ranks. Raises ValueError, which names the
    folder, for one that cannot be served."""
    if not folder.is_absolute():
        raise ValueError(f"{folder}: write the whole path, {folder.resolve()}")
    absent = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if absent:
        raise ValueError(
            f"{folder} has no {' and no '.join(absent)}: it is no LoRA adapter that PEFT has saved "
            "as safetensors"
        )
    config = read_json(folder / CONFIG)
    kind = "DoRA" if config.get("use_dora") else config.get("peft_type")
    if kind != "LORA":
        raise ValueError(f"{folder} is {kind}; only LoRA is supported")
    used = [name for name in _UNSUPPORTED if config.get(name)]
    init = config.get("init_lora_weights")
    used += ["init_lora_weights"] if isinstance(init, str) and init.lower() not in _INITS else []
    if used:
        raise ValueError(f"{folder} has {', '.join(used)}, which vLLM does not serve")
    most = max([config["r"], *(config.get("rank_pattern") or {}).values()])
    ranks = [rank for rank in _RANKS if rank >= most]
    if not ranks:
        raise ValueError(f"{folder} has rank {most}, vLLM at most {_RANKS[-1]}")
    return ranks[0]


@names_checkpoint
def misfit(folder: Path, target: Path) -> str | None:
    """Which of its matrices has another size than the target's layer; None if all fit, or if the
    target's weights are not here or quantized."""
    layers, adapter = weight_shapes(target), weight_shapes(folder)
    found = False
    for name, shape in adapter.items():
        layer, _, side = name.removeprefix(_PREFIX).partition(".lora_")
        own = layers.get(f"{layer}.weight")
        if own is not None and side in _SIDES:
            found = True
            axis = _SIDES[side]
            if own[axis] != shape[axis]:
                return f"{name} is {shape}, for a layer of {own}"
    floats = any(name.endswith("proj.weight") for name in layers)
    return "it names none of its layers" if floats and not found else None


def _checked(folder: str) -> str:
    adapter_rank(Path(folder))
    return folder


LoraModules = Annotated[
    dict[
        Annotated[str, Field(min_length=1)],  # without a name it would be the target itself
        Annotated[str, AfterValidator(_checked)],
    ],
    Field(max_length=_MOST),
]
"""The folders of adapters by their names, as a config gives them."""
