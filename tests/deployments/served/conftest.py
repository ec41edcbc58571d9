"""One application per backend for all modules here: its start takes longer than most of them."""

from collections.abc import Iterator

import pytest

from benchmarks.processes import environment
from tests.deployments.served.application import (
    APPLICATIONS,
    KEY_FROM_ENVIRONMENT,
    METRICS_PORT,
    PORT,
    URL,
)
from tests.deployments.serving import VLLM_LOADS_S, cluster, deploy, eventually, is_idle


@pytest.fixture(scope="package", params=APPLICATIONS)
def app(request: pytest.FixtureRequest) -> Iterator[str]:
    """Its URL. Modules that use it on one backend alone say so in their `pytestmark`."""
    with (
        # The ingress's: Ray's processes inherit it.
        environment({"KEY_OF_TENANT": KEY_FROM_ENVIRONMENT}),
        cluster(PORT, _metrics_export_port=METRICS_PORT),
    ):
        deploy(APPLICATIONS[request.param], within_s=VLLM_LOADS_S)
        yield URL
        eventually(is_idle, "nothing runs, and all KV is free or cached")
