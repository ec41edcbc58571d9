"""Compiled loops are found again elsewhere, and never behind the sources' back."""

import fcntl
import inspect
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from numba.core import caching
from numba.core.caching import CacheImpl, IndexDataCacheFile, InTreeCacheLocator

ROOT = Path(__file__).resolve().parents[2]
FILES = ("cluster/__init__.py", "cluster/numba_internals.py", "cluster/cache.py")
LOOPS = """
from numba import njit
from loops.steps import step
@njit(cache=True)
def total(n):
    result = 0
    for number in range(n):
        result += step(number)
    return result
"""
STEPS = """
from numba import njit
@njit(cache=True)
def step(number):
    return {factor} * number
"""
CALL = """
import cluster
from loops.sums import total
result = total(4)
print(result, sum(total.stats.cache_misses.values()))
"""


def project(root: Path, factor: int) -> Path:
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    (root / "loops").mkdir(exist_ok=True)
    (root / "loops" / "sums.py").write_text(LOOPS)
    (root / "loops" / "steps.py").write_text(STEPS.format(factor=factor))
    return root


def begin(
    root: Path, kept: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CALL],
        cwd=root,
        env={**os.environ, "SPINDLE_CACHE": str(kept), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def call(root: Path, kept: Path) -> list[int]:
    """The sum, and how many loops had to be compiled for it."""
    printed, _ = begin(root, kept).communicate(timeout=120)
    return list(map(int, printed.split()))


def waits_for_a_lock(pid: int) -> bool:
    """Whether Linux lists the process as blocked by a lock of another one."""
    locks = Path("/proc/locks").read_text().splitlines()
    waiting = [line.split() for line in locks if "->" in line]
    return any(str(pid) in line for line in waiting)


def test_numba_still_has_the_private_parts_that_are_replaced() -> None:
    """If not: read numba/core/caching.py anew and adapt cluster/numba_internals.py."""
    assert issubclass(InTreeCacheLocator, caching._SourceFileBackedLocatorMixin)
    assert InTreeCacheLocator in CacheImpl._locator_classes
    saves = inspect.signature(inspect.unwrap(IndexDataCacheFile.save))
    assert [*saves.parameters] == ["self", "key", "data"]
    assert "self._cache_path" in inspect.getsource(IndexDataCacheFile.__init__)


def test_another_copy_of_the_sources_compiles_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert call(project(tmp_path / "one", 1), kept) == [6, 1]
    assert call(project(tmp_path / "other", 1), kept) == [6, 0]


def test_a_loop_is_compiled_anew_when_one_that_it_calls_has_changed(tmp_path: Path) -> None:
    kept, root = tmp_path / "kept", tmp_path / "project"
    assert call(project(root, 1), kept) == [6, 1]
    assert call(project(root, 2), kept) == [12, 1]
    assert call(project(root, 1), kept) == [6, 0], "both are kept"


def test_a_folder_that_takes_nothing_is_reported_in_one_line(tmp_path: Path) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    done = subprocess.run(
        [sys.executable, "-c", full + CALL],
        cwd=project(tmp_path / "project", 1),
        env={**os.environ, "SPINDLE_CACHE": str(tmp_path / "kept")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["6", "1"]
    (line,) = done.stderr.splitlines()
    assert str(tmp_path / "kept") in line
    assert "SPINDLE_CACHE" in line


def test_a_process_waits_while_another_one_writes_the_same_index(tmp_path: Path) -> None:
    kept, root = tmp_path / "kept", project(tmp_path / "project", 3)
    call(root, kept)
    (version,) = (kept / "compiled" / "loops.sums").iterdir()
    (index,) = version.glob("*.nbi")
    index.unlink()
    with (version / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = begin(root, kept)
        while not waits_for_a_lock(process.pid):
            assert process.poll() is None, "it has not waited"
            time.sleep(0.05)
        assert not index.exists()
    assert process.communicate(timeout=120)[0].split()[0] == "18"
    assert call(root, kept) == [18, 0]


def test_loops_of_other_projects_are_left_where_they_are(tmp_path: Path) -> None:
    """Although a virtual environment often lies in the project."""
    kept, root = tmp_path / "kept", project(tmp_path / "project", 2)
    installed = root / ".venv" / "site-packages"
    installed.mkdir(parents=True)
    (root / "loops").rename(installed / "loops")
    printed, _ = begin(root, kept, {"PYTHONPATH": str(installed)}).communicate(timeout=120)
    assert printed.split() == ["12", "1"]
    assert list((installed / "loops" / "__pycache__").glob("*.nbi"))
    assert not kept.exists()


def test_who_tells_numba_where_to_keep_them_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert call(project(tmp_path / "project", 1), tmp_path / "kept") == [6, 1]
    assert not (tmp_path / "kept").exists()
