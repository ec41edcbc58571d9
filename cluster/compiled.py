"""Where numba keeps compiled loops: under what the sources say, not where and since when they lie.

By default it keeps them beside each source file, for that path and time. But Ray unpacks a working
directory anew for each cluster, where each process would then compile for a minute. And numba looks
at no other file than the function's own, so it would run yesterday's code where a loop that it
calls lies in another file and has changed.

Several processes may compile at once. Numba's index of a function's versions is read, added to and
written back; two that do so at the same moment would give two versions one file, and who asks for
one could get the other. So there is a lock around that.
"""

import ast
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any, Self

import llvmlite
import numba
from numba.core.caching import CacheImpl, IndexDataCacheFile, InTreeCacheLocator

from cluster.zoo.paths import cache_dir

_ROOT = Path(__file__).resolve().parents[1]
_VERSIONS = 8
"""Of one module's loops that are kept; the least recently used ones go."""


class BySource(InTreeCacheLocator):
    """For functions of this project; others are numba's own affair."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        super().__init__(py_func, py_file)
        self._digest = _digest(Path(py_file).resolve())
        self._cache_path = str(_kept_in() / py_func.__module__ / self._digest)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Self | None:
        # By its module: a virtual environment may lie in the project's directory.
        if Path(py_file).resolve() != _file(py_func.__module__):
            return None
        return super().from_function(py_func, py_file)

    def ensure_cache_path(self) -> None:
        super().ensure_cache_path()
        kept = Path(self._cache_path)
        os.utime(kept)
        versions = sorted(kept.parent.iterdir(), key=_used_s)
        for version in versions[:-_VERSIONS]:
            shutil.rmtree(version, ignore_errors=True)

    def get_source_stamp(self) -> str:
        return self._digest


def keep_by_source() -> None:
    """Before any loop is declared; who has told numba where to keep them is obeyed."""
    if not numba.config.CACHE_LOCATOR_CLASSES and not numba.config.CACHE_DIR:
        ours = f"{BySource.__module__}.{BySource.__qualname__}"
        theirs = [locator.__name__ for locator in CacheImpl._locator_classes]
        numba.config.CACHE_LOCATOR_CLASSES = ",".join([ours, *theirs])
        IndexDataCacheFile.save = _one_at_a_time(IndexDataCacheFile.save)


def _one_at_a_time(save: Callable[..., None]) -> Callable[..., None]:
    @wraps(save)
    def saved(self: Any, key: object, data: object) -> None:
        if not Path(self._cache_path).is_relative_to(_kept_in()):
            save(self, key, data)
            return
        with Path(self._cache_path, ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            save(self, key, data)

    return saved


@cache
def _digest(source: Path) -> str:
    """Of all that a loop in this file can be made of."""
    made_of = {source}
    unread = [source]
    while unread:
        found = _imported(unread.pop()) - made_of
        made_of |= found
        unread += found
    said = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for file in sorted(made_of):
        said.update(f"\n{file.relative_to(_ROOT)}\n".encode() + file.read_bytes())
    return said.hexdigest()[:32]


@cache
def _imported(source: Path) -> set[Path]:
    """The project's files that this one imports."""
    files = map(_file, _names(ast.parse(source.read_bytes())))
    return {file for file in files if file.is_file()}


def _file(module: str) -> Path:
    """Where it lies if it is one of the project's."""
    return (_ROOT / module.replace(".", "/")).with_suffix(".py")


def _kept_in() -> Path:
    return cache_dir() / "compiled"


def _names(tree: ast.Module) -> Iterator[str]:
    """Of modules, and of what may be one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _used_s(kept: Path) -> float:
    try:
        return kept.stat().st_mtime
    except FileNotFoundError:  # another process has thrown it away
        return 0.0
