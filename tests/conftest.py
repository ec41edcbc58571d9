"""How tests are shared between two pytest processes (`-n 2 --dist loadgroup`, as in `make test`),
and how a process ends that has started Ray."""

import sys

import pytest

from benchmarks.processes import end_after_ray

ON_RAY = (
    "tests/deployments/",
    "tests/actors/hosts/test_fleet.py",
    "tests/cluster/test_fake_nodes.py",
    "tests/test_examples.py",
)
"""What starts clusters: one process runs all of it, so that there is one cluster at a time."""
_STATUS = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests on Ray come first, since they take longest; the other process takes module by
    module."""
    if config.getoption("dist", "no") != "loadgroup":
        return
    for item in items:
        module = item.nodeid.partition("::")[0]
        group = "ray" if module.startswith(ON_RAY) else module.replace("/", ".")
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: not item.nodeid.startswith(ON_RAY))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[_STATUS] = int(session.exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if "ray" not in sys.modules or _STATUS not in config.stash:
        return
    config.get_terminal_writer().flush()
    end_after_ray(config.stash[_STATUS])
