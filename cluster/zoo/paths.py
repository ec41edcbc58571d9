"""Paths of the built-in models. Imports nothing heavy, so that a config check stays fast."""

import os
from pathlib import Path

TARGET = "target"
SPECIALISTS = ("code", "prose", "tasks")
DRAFTERS = ("tiny", "small", *SPECIALISTS)
MODELS = (TARGET, *DRAFTERS)

HEADS = ("smollm2-general", "smollm2-code")
"""EAGLE-3 heads of the default target; not models by themselves."""

MODELS_DIR = Path(__file__).parent / "models"


def model_path(name: str) -> Path:
    """The directory of a built-in model, in Hugging Face format, or of a head."""
    if name not in (*MODELS, *HEADS):
        raise ValueError(f"no model {name!r} in the zoo; it has {', '.join((*MODELS, *HEADS))}")
    return MODELS_DIR / name


def cache_dir() -> Path:
    """Directory for derived models, profiles and compiled loops: `$SPINDLE_CACHE`, or
    `~/.cache/spindle`."""
    configured = os.environ.get("SPINDLE_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "spindle"


def inflated_target(params: int) -> Path:
    """The target inflated to about `params` parameters; written on first use."""
    from cluster.zoo.inflate import inflate_to_cache  # torch only when it is needed

    return inflate_to_cache(model_path(TARGET), params, cache_dir())
