"""One Ray cluster for all modules here that need one."""

from collections.abc import Iterator

import pytest

from tests.actors.hosts.cluster import cluster


@pytest.fixture(scope="package")
def ray_cluster() -> Iterator[None]:
    with cluster():
        yield
