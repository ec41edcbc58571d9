"""Processes: those that a benchmark starts beside itself, and its own."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """For the libraries that a process started here loads before its first line of Python. What
    else has changed meanwhile stays: Ray, where it starts, leaves its token here for others."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def end_after_ray(status: int) -> NoReturn:
    """The end of a process that has started Ray more than once.

    Ray 2.60 leaves a driver's metrics thread behind when it is shut down and started anew. Those
    threads go on exporting while the process is taken apart, through objects that are gone by then:
    a segmentation fault instead of the status, seen in CI and behind two of three runs of
    `benchmarks.serving.overhead`. Nothing closes them from Python, so the process is not taken
    apart.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
