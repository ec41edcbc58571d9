"""How two pytest processes share the tests (`make test`), and how one ends that has started Ray."""

import sys

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from benchmarks.processes import end_after_ray

DEPLOYMENTS = "tests/deployments/"
TOGETHER = (DEPLOYMENTS, "tests/actors/hosts/")
"""Folders whose modules share one Ray cluster."""
_STATUS = pytest.StashKey[int]()


class ClustersTogether(LoadScopeScheduling):
    """Each folder of TOGETHER runs in one process, one module after another: they share a cluster,
    and no two applications want the same port. Everything else is spread module by module."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return next((folder for folder in TOGETHER if module.startswith(folder)), module)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer | None) -> LoadScopeScheduling:
    return ClustersTogether(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # of xdist
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
