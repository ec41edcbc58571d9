"""The environment of processes that a benchmark starts, and how its own process exits."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for processes started in the block, whose libraries read them
    before the first line of Python runs. Other variables that change meanwhile are kept: Ray puts
    its authentication token into the environment."""
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
    """Exits a process that has started Ray more than once, without interpreter shutdown.

    Ray 2.60 leaves a driver's metrics thread running when it is shut down and started again. Those
    threads keep exporting during interpreter shutdown, through objects that no longer exist: the
    process ends with a segmentation fault instead of its status. They cannot be stopped from
    Python.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
