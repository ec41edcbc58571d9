"""How the tests' process ends: Ray is started once per module here (`end_after_ray` says the rest),
so as soon as pytest has said everything.
"""

import sys

import pytest

from benchmarks.processes import end_after_ray

_STATUS = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[_STATUS] = int(session.exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if "ray" not in sys.modules or _STATUS not in config.stash:
        return
    config.get_terminal_writer().flush()
    end_after_ray(config.stash[_STATUS])
