"""The built-in models: one target and its drafters, small enough to be part of the repository."""

from cluster.zoo.paths import (
    DRAFTERS,
    MODELS,
    SPECIALISTS,
    TARGET,
    inflated_target,
    model_path,
)

__all__ = [
    "DRAFTERS",
    "MODELS",
    "SPECIALISTS",
    "TARGET",
    "inflated_target",
    "model_path",
]
