"""The directory for everything that is made once and kept: how files are written into it, and the
digests of what they were made from.

Imports nothing but the standard library, as it is imported before all else.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """Directory for derived models, profiles and compiled loops: `$SPINDLE_CACHE`, or
    `~/.cache/spindle`."""
    configured = os.environ.get("SPINDLE_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "spindle"


def check_room(folder: Path, needed: int) -> None:
    """Raises OSError if the folder, in the cache, has room for fewer bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"{folder} has {free / 1e6:.0f} MB left, and {needed / 1e6:.0f} MB are needed: free "
            "them, or name another folder in SPINDLE_CACHE"
        )


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A file to write beside `path`, in whose place it is put at the end; removed after an error.
    Readers see the whole new file, the old one, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix, delete=False
    ) as opened:
        partial = Path(opened.name)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def digest(file: Path) -> str:
    """A digest of the file's path, inode, size and times, which change with its content."""
    at = file.stat()
    state = (str(file.resolve()), at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
    return hashlib.blake2b(repr(state).encode(), digest_size=20).hexdigest()
