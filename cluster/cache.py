"""The directory for everything that is made once and kept: how files are written into it, and the
digests of what they were made from.

Imports nothing but the standard library, as it is imported before all else.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """Directory for derived models, profiles and compiled loops: `$SPINDLE_CACHE`, or
    `~/.cache/spindle`."""
    configured = os.environ.get("SPINDLE_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "spindle"


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


_BYTES = 20
_SETTLED_NS = 2_000_000_000
"""A file that was changed less than this ago is read again the next time: two changes within one
tick of the clock have the same time."""


def digest(file: Path) -> str:
    """The digest of the file's whole content; equal on all nodes. Takes a second for each gigabyte
    the first time. Raises ValueError for a file that is altered meanwhile."""
    state = _state(file)
    remembered = cache_dir() / "digests" / _hex(repr(state).encode())
    if remembered.is_file():
        return remembered.read_text()
    with file.open("rb") as content:
        found = hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=_BYTES))
    if _state(file) != state:
        raise ValueError(f"{file} was altered while it was read; start again")
    if time.time_ns() - file.stat().st_ctime_ns > _SETTLED_NS:
        with written_whole(remembered) as partial:
            partial.write_text(found.hexdigest())
    return found.hexdigest()


def _state(file: Path) -> tuple[str | int, ...]:
    at = file.stat()
    times = (at.st_mtime_ns, at.st_ctime_ns)
    return (str(file.resolve()), at.st_dev, at.st_ino, at.st_size, *times)


def _hex(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_BYTES).hexdigest()
