"""Spindle's version."""

import tomllib
from pathlib import Path


def version() -> str:
    """Read from pyproject.toml, because the project runs from its root without being installed."""
    pyproject = Path(__file__).parents[1] / "pyproject.toml"
    return str(tomllib.loads(pyproject.read_text())["project"]["version"])
