"""The directory for everything that is made once and kept."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Directory for derived models, profiles and compiled loops: `$SPINDLE_CACHE`, or
    `~/.cache/spindle`."""
    configured = os.environ.get("SPINDLE_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "spindle"
