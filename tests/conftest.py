"""How the tests' process ends.

Ray 2.60 leaves a driver's metrics thread behind when it is shut down and started anew, as it is
once per module here. Those threads go on exporting while the process is taken apart, through
objects that are gone by then: a segmentation fault behind a green run, seen in CI, and once here on
purpose (four starts, freed memory overwritten, the process's end drawn out). Nothing closes them
from Python, so the process ends as soon as pytest has said everything, without being taken apart.
"""

import os
import sys

import pytest

_STATUS = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[_STATUS] = int(session.exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if "ray" not in sys.modules or _STATUS not in config.stash:
        return
    config.get_terminal_writer().flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(config.stash[_STATUS])
