"""How two pytest processes share the tests (`make test`), how async tests run, and how a process
ends that has started Ray."""

import asyncio
import inspect
import sys
from collections.abc import Iterator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from benchmarks.processes import end_after_ray
from cluster.plan.simulator.clock import VirtualTimeLoop

DEPLOYMENTS = "tests/deployments/"
TOGETHER = (DEPLOYMENTS, "tests/actors/hosts/")
"""Folders whose modules share one Ray cluster."""
APART = "tests/deployments/ingress/"
"""Needs none."""
PAPERS = "tests/lab/papers/"
"""One module takes most of its time, and its tests share nothing."""
FRESH, OWN = "tests/deployments/test_metrics.py", "tests/deployments/test_faults.py"
"""The first and the last of the deployments: one needs a fresh cluster, one brings its own."""
_STATUS = pytest.StashKey[int]()


class ClustersTogether(LoadScopeScheduling):
    """Each folder of TOGETHER runs in one process, one module after another: they share a cluster,
    and no two applications want the same port. Everything else is spread module by module, the
    papers' tests one by one."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(PAPERS):
            return nodeid
        return _folder(nodeid) or nodeid.partition("::")[0]


def _folder(nodeid: str) -> str | None:
    if nodeid.startswith(APART):
        return None
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer | None) -> LoadScopeScheduling:
    return ClustersTogether(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deployments take longest, so they come first."""

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        deployed = _folder(item.nodeid) == DEPLOYMENTS
        return not deployed, item.nodeid.startswith(OWN), not item.nodeid.startswith(FRESH)

    if hasattr(config, "workerinput"):  # of xdist
        items.sort(key=place)


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """For async tests that need the real clock, threads or sockets."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs async tests: on their fixture `loop`, or else in virtual time."""
    test, fixtures = pyfuncitem.obj, pyfuncitem.funcargs
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: fixtures[name] for name in inspect.signature(test).parameters}
    real = fixtures.get("loop")
    if isinstance(real, asyncio.Runner):
        real.run(test(**arguments))
    else:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(**arguments))
    return True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[_STATUS] = int(session.exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if "ray" not in sys.modules or _STATUS not in config.stash:
        return
    config.get_terminal_writer().flush()
    end_after_ray(config.stash[_STATUS])
