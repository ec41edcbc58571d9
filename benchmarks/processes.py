"""Processes that a benchmark starts beside itself."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """For the libraries that a process started here loads before its first line of Python."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
