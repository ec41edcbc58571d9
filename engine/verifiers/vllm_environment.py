"""What a process that runs vLLM wants in its environment before its first line of Python."""

import importlib.metadata
import os
from pathlib import Path


def process_environment() -> dict[str, str]:
    """For the process that loads the target. On a CPU that is Intel's OpenMP, without which
    threads that share their cores cost up to ten times; where it is absent, nothing."""
    try:
        files = importlib.metadata.files("intel-openmp") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    library = next((file for file in files if file.name == "libiomp5.so"), None)
    if library is None:
        return {}
    preloaded = [str(Path(str(library.locate())).resolve()), os.environ.get("LD_PRELOAD", "")]
    return {
        "LD_PRELOAD": ":".join(path for path in preloaded if path),
        # As vLLM's own launcher of workers has them: threads spin for 5 ms, not for 200.
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
    }
