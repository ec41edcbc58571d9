"""Parts of Ray and Serve that are not public, as they are in Ray 2.60. Read them again with each
new version; tests/deployments/test_ray_internals.py names what has changed.

deployments/routing.py has its own, because Serve pickles it by value and it may import nothing of
the project; actors/hosts/spawn.py asks for the folder of logs.
"""

import asyncio
from collections.abc import Mapping

from ray.serve._private.common import RequestMetadata
from ray.serve._private.http_util import ASGIReceiveProxy
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeInstanceDetails
from ray.util.metrics import Counter
from starlette.types import Receive

READ_IN = "2.60"
_RECEIVE_DELAY_S = 0.2


def serve_details() -> ServeInstanceDetails:
    """Addresses and applications; Serve has no public API for its ports inside the cluster."""
    return ServeInstanceDetails(**_get_global_client().get_serve_details())


def export_zero(counter: Counter, tags: Mapping[str, str]) -> None:
    """`inc` refuses 0, so a series would begin with its first increase."""
    counter._record(0.0, dict(tags))


def delay_receive(receive: Receive) -> None:
    """Delays the ingress's call to the proxy for client messages, which is not urgent once the body
    is here.

    The call is still needed to notice a disconnect: Serve cancels the request of a client that
    leaves, but not in every case (`EventStream` and `cancel_if_disconnected` in
    deployments/ingress/answers/delivery.py).
    """
    if not isinstance(receive, ASGIReceiveProxy):
        return
    fetch = receive._receive_asgi_messages

    async def fetch_later(request: RequestMetadata) -> bytes:
        await asyncio.sleep(_RECEIVE_DELAY_S)
        receive._receive_asgi_messages = fetch
        return await fetch(request)

    receive._receive_asgi_messages = fetch_later
