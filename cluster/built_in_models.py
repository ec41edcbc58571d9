"""The built-in models, one target and its drafters, small enough to be part of the repository; and
the default target, a published model that `make` fetches.

Imports nothing heavy, so that a config check stays fast.
"""

from pathlib import Path

from cluster.cache import cache_dir
from cluster.checkpoint_files import QUANTIZED

TARGET = "target"
SPECIALISTS = ("code", "prose", "tasks")
DRAFTERS = ("tiny", "small", *SPECIALISTS)
MODELS = (TARGET, *DRAFTERS)

HEADS = ("smollm2-general", "smollm2-code")
"""EAGLE-3 heads of the default target; not models by themselves."""

MODELS_DIR = Path(__file__).parent / "zoo" / "models"


def model_path(name: str) -> Path:
    """The directory of a built-in model, in Hugging Face format, or of a head."""
    if name not in (*MODELS, *HEADS):
        raise ValueError(f"no model {name!r} in the zoo; it has {', '.join((*MODELS, *HEADS))}")
    return MODELS_DIR / name


def inflated_target(params: int) -> Path:
    """The target inflated to about `params` parameters; written on first use."""
    from cluster.inflate import inflate_to_cache  # torch only when it is needed

    return inflate_to_cache(model_path(TARGET), params, cache_dir())


SMOLLM2 = "SmolLM2-135M-Instruct"


def smollm2_path() -> Path:
    """The directory into which `python -m cluster.fetch` writes the model."""
    return cache_dir() / SMOLLM2


def has_smollm2() -> bool:
    return (smollm2_path() / QUANTIZED).is_file()
