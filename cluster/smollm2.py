"""The default target, a published model that `make` fetches: its name in a config, and its place.
Imports nothing heavy, so that a config check stays cheap."""

from pathlib import Path

from cluster.zoo.paths import cache_dir

SMOLLM2 = "SmolLM2-135M-Instruct"


def smollm2_path() -> Path:
    """Where `python -m cluster.fetch` writes it."""
    return cache_dir() / SMOLLM2


def has_smollm2() -> bool:
    return (smollm2_path() / "config.json").is_file()
