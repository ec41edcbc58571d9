"""Digests of whole files, each of which is read once for as long as it is unaltered.

A digest is remembered by the file's change time, which the system sets at every change and nobody
but the administrator can set back, unlike the time of modification.
"""

import hashlib
import time
from pathlib import Path

from cluster.cache import cache_dir
from cluster.files import written_whole

_BYTES = 20
_SETTLED_NS = 2_000_000_000
"""A file that was changed less than this ago is read again the next time: two changes within one
tick of the clock have the same time."""


def digest(file: Path) -> str:
    """Of the file's whole content; equal on all nodes. Takes a second for each gigabyte the first
    time. Raises ValueError for a file that is altered meanwhile."""
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
