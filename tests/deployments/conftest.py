"""The end of the cluster that the modules here share."""

from collections.abc import Iterator

import pytest

from tests.deployments.serving import end_cluster


@pytest.fixture(scope="package", autouse=True)
def _shared_cluster() -> Iterator[None]:
    yield
    end_cluster()
