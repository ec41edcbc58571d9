"""Makes numba's cache of compiled loops depend on the contents of source files, not on their paths
and times.

By default numba caches beside each source file, for its path and modification time. But a user may
not write there, as in the image, and every process would then compile for a minute. And numba
checks only the function's own file, so it would run outdated code if a loop called by the function
is in another file that has changed.

Several processes may compile at once. Numba reads, extends and rewrites an index of a function's
versions; if two processes did so at the same time, two versions could get the same file, and a
process could load the wrong one. A lock prevents that.

This is the only module that uses private parts of numba, as of version 0.65.0.
"""

import ast
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any, Self

import llvmlite
import numba
from numba.core.caching import CacheImpl, IndexDataCacheFile, InTreeCacheLocator

from cluster.cache import cache_dir

_LOG = logging.getLogger(__name__)
_ROOT = Path(__file__).resolve().parents[1]
_VERSIONS = 8
"""Source versions kept per module; the least recently used are deleted."""


class SourceCacheLocator(InTreeCacheLocator):
    """Locates the cache of functions in this project; others use numba's own locators."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        super().__init__(py_func, py_file)
        self._digest = _digest(Path(py_file).resolve())
        self._cache_path = str(_cache_folder() / py_func.__module__ / self._digest)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Self | None:
        # By module name, because a virtual environment may be inside the project's directory.
        if Path(py_file).resolve() != _file(py_func.__module__):
            return None
        return super().from_function(py_func, py_file)

    def ensure_cache_path(self) -> None:
        super().ensure_cache_path()
        folder = Path(self._cache_path)
        os.utime(folder)
        versions = sorted(folder.parent.iterdir(), key=_last_used_s)
        for version in versions[:-_VERSIONS]:
            shutil.rmtree(version, ignore_errors=True)

    def get_source_stamp(self) -> str:
        return self._digest


def use_source_cache() -> None:
    """Installs the locator; must run before any loop is declared. If numba's cache is configured by
    other means, it does nothing."""
    if not numba.config.CACHE_LOCATOR_CLASSES and not numba.config.CACHE_DIR:
        own = f"{SourceCacheLocator.__module__}.{SourceCacheLocator.__qualname__}"
        numbas = [locator.__name__ for locator in CacheImpl._locator_classes]
        numba.config.CACHE_LOCATOR_CLASSES = ",".join([own, *numbas])
        IndexDataCacheFile.save = _one_at_a_time(IndexDataCacheFile.save)


def _one_at_a_time(save: Callable[..., None]) -> Callable[..., None]:
    @wraps(save)
    def saved(self: Any, key: object, data: object) -> None:
        if not Path(self._cache_path).is_relative_to(_cache_folder()):
            save(self, key, data)
            return
        try:
            with Path(self._cache_path, ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                save(self, key, data)
        except OSError as error:
            _report(error.strerror)

    return saved


@cache
def _report(problem: str) -> None:
    _LOG.warning(
        "loops are compiled anew at each start, for a minute, as %s cannot keep them: %s. Free "
        "200 MB there, or name another folder in SPINDLE_CACHE",
        _cache_folder(),
        problem,
    )


@cache
def _digest(source: Path) -> str:
    """Hash of the source file and all project files that it imports, directly or indirectly, and of
    the versions of numba and LLVM."""
    made_of = {source}
    unread = [source]
    while unread:
        found = _imported(unread.pop()) - made_of
        made_of |= found
        unread += found
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for file in sorted(made_of):
        digest.update(f"\n{file.relative_to(_ROOT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:32]


@cache
def _imported(source: Path) -> set[Path]:
    """The project's files that this file imports."""
    files = map(_file, _names(ast.parse(source.read_bytes())))
    return {file for file in files if file.is_file()}


def _file(module: str) -> Path:
    """The file that a module of this project would have."""
    return (_ROOT / module.replace(".", "/")).with_suffix(".py")


def _cache_folder() -> Path:
    return cache_dir() / "compiled"


def _names(tree: ast.Module) -> Iterator[str]:
    """Names of all imported modules, and of imported names that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _last_used_s(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:  # another process has deleted it
        return 0.0
