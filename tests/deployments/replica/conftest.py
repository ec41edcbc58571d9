"""One application for all modules here that need one."""

from collections.abc import Iterator

import pytest

from tests.deployments.replica.served import REPLICA_ARGS
from tests.deployments.serving import application


@pytest.fixture(scope="package")
def app() -> Iterator[None]:
    with application(REPLICA_ARGS):
        yield
