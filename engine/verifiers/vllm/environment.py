"""What a process that runs vLLM wants before it does: in its environment, and where numba is."""

import importlib.metadata
import os
from importlib import import_module
from pathlib import Path
from typing import Any


def process_environment() -> dict[str, str]:
    """For the process that loads the target, before its first line of Python. On a CPU that is
    Intel's OpenMP, without which threads that share their cores cost up to ten times; where it is
    absent, nothing."""
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


def mend_llvmlite() -> None:
    """On a CPU vLLM reads vars() of whatever it finds in any module. llvmlite's handle of its
    library, loaded with numba, takes every name for a C function's, and `__dict__` for another.
    """
    handle = type(import_module("llvmlite.binding").ffi.lib)
    function_of = handle.__getattr__

    def named(library: object, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return function_of(library, name)

    handle.__getattr__ = named
