"""How Spindle is reached: the Serve application."""

import tomllib
from pathlib import Path

import cluster  # noqa: F401  # sets numba's cache directory before any compiled loop is declared


def version() -> str:
    """Spindle's, from pyproject.toml, because the project runs without being installed."""
    pyproject = Path(__file__).parents[1] / "pyproject.toml"
    return str(tomllib.loads(pyproject.read_text())["project"]["version"])
