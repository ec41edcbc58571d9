"""Prepares a process for vLLM: environment variables, and a patch for numba's llvmlite."""

import importlib.metadata
import os
from importlib import import_module
from pathlib import Path
from typing import Any


def process_environment() -> dict[str, str]:
    """Environment variables for the process that loads the target, to be set before it starts.

    On a CPU they preload Intel's OpenMP, without which threads that share cores cost up to ten
    times; empty if it is not installed.
    """
    try:
        files = importlib.metadata.files("intel-openmp") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    library = next((file for file in files if file.name == "libiomp5.so"), None)
    if library is None:
        return {}
    # vLLM preloads GNU's where it is imported, and refuses to start with two OpenMP libraries.
    others = [path for path in os.environ.get("LD_PRELOAD", "").split(":") if "libgomp" not in path]
    preloaded = [str(Path(str(library.locate())).resolve()), *others]
    return {
        "LD_PRELOAD": ":".join(path for path in preloaded if path),
        # As vLLM's own worker launcher sets them: threads spin for 5 ms instead of 200.
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
    }


def patch_llvmlite() -> None:
    """Makes llvmlite's library handle refuse dunder names.

    On a CPU vLLM reads vars() of every object in every module. The handle, loaded with numba, would
    look up any name, `__dict__` included, as a C function.
    """
    handle = type(import_module("llvmlite.binding").ffi.lib)
    c_function = handle.__getattr__

    def without_dunders(library: object, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return c_function(library, name)

    handle.__getattr__ = without_dunders
