"""How two pytest processes share the tests (`make test`), and how one ends that has started Ray."""

import sys

import pytest

from benchmarks.processes import end_after_ray

DEPLOYMENTS = "tests/deployments/"
_STATUS = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One process runs all deployments, which take longest, one after another; the other one takes
    module by module."""
    if not config.getoption("loadgroup", False):  # set by xdist in its workers
        return
    for item in items:
        module = item.nodeid.partition("::")[0]
        group = DEPLOYMENTS if module.startswith(DEPLOYMENTS) else module
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: not item.nodeid.startswith(DEPLOYMENTS))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[_STATUS] = int(session.exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if "ray" not in sys.modules or _STATUS not in config.stash:
        return
    config.get_terminal_writer().flush()
    end_after_ray(config.stash[_STATUS])
