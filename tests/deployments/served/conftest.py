"""One application per backend for all modules here: its start takes longer than most of them."""

from collections.abc import Iterator

import pytest

from tests.deployments.served.application import APPLICATIONS, application_on
from tests.deployments.serving import VLLM_LOADS_S, application, eventually, is_idle


@pytest.fixture(scope="package", params=APPLICATIONS)
def app(request: pytest.FixtureRequest) -> Iterator[str]:
    """Its URL. Modules that use it on one backend alone say so in their `pytestmark`."""
    with application(application_on(request.param), within_s=VLLM_LOADS_S) as url:
        yield url
        eventually(is_idle, "nothing runs, and all KV is free or cached")
