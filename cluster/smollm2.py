"""Name and path of the default target, a published model that `make` fetches. Imports nothing
heavy, so that a config check stays fast."""

from pathlib import Path

from cluster.cache import cache_dir

SMOLLM2 = "SmolLM2-135M-Instruct"


def smollm2_path() -> Path:
    """The directory into which `python -m cluster.fetch` writes the model."""
    return cache_dir() / SMOLLM2


def has_smollm2() -> bool:
    return (smollm2_path() / "config.json").is_file()
