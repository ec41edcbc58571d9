"""The parts of Ray that are not public are where they were read."""

import inspect

import pytest
import ray
from ray._private import ray_constants, worker
from ray.serve._private.http_util import ASGIReceiveProxy
from ray.serve.context import _get_global_client
from ray.serve.request_router import RequestRouter
from ray.util.metrics import Counter

from benchmarks.serving.app import ray_environment
from deployments import stopping
from deployments.ray_internals import READ_IN
from deployments.routing import PrefixRouter

HOOK = f"{stopping.__name__}.{stopping.in_serve_run.__name__}"


def test_ray_has_the_version_in_which_its_internals_were_read() -> None:
    assert ray.__version__.startswith(f"{READ_IN}."), (
        "read deployments/ray_internals.py and deployments/routing.py against this version of Ray, "
        "then raise READ_IN"
    )


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (ASGIReceiveProxy, "__init__", None),
        (Counter, "_record", ["self", "value", "tags"]),
        (RequestRouter, "_fulfill_next_pending_request", ["self", "replica", "request_metadata"]),
        (RequestRouter, "_record_queue_wait_time", ["self", "pending_request"]),
        (RequestRouter, "_remove_pending_request_from_indices", ["self", "pending_request"]),
    ],
)
def test_a_part_that_is_not_public_is_as_it_was(
    owner: object, name: str, parameters: list[str] | None
) -> None:
    found = getattr(owner, name, None)
    assert found is not None, f"Ray has no {name} any more: see deployments/ray_internals.py"
    if parameters is not None:
        assert list(inspect.signature(found).parameters) == parameters, f"{name} has changed"


def test_names_that_are_looked_up_in_their_text() -> None:
    assert "ray_constants.RAY_RUNTIME_ENV_HOOK in os.environ" in inspect.getsource(worker)
    assert ray_environment()[ray_constants.RAY_RUNTIME_ENV_HOOK] == HOOK
    assert "_receive_asgi_messages" in inspect.getsource(ASGIReceiveProxy)
    assert "_pending_requests_to_fulfill" in inspect.getsource(inspect.getmodule(RequestRouter))  # type: ignore[arg-type]
    assert callable(_get_global_client)
    assert issubclass(PrefixRouter, RequestRouter)
