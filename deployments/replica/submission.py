"""Submits an ingress's request to the coordinator, and turns errors into refusals."""

import logging
from typing import TYPE_CHECKING

from actors.coordinator.stream import Overloaded, Stream
from deployments import messages
from deployments.messages import Refused, StreamRequest
from engine.errors import InvalidRequest, SpindleError

if TYPE_CHECKING:  # takes a second to import, which building the application need not wait
    from actors.coordinator.loop import Coordinator

_LOG = logging.getLogger(__name__)


def submit(coordinator: "Coordinator", request: StreamRequest) -> Stream:
    """The coordinator's exceptions pass through."""
    speculation = request["speculation"]
    return coordinator.submit(
        # With the attempt's number, because an earlier attempt may not have left yet.
        f"{request['name']}#{request['attempt']}",
        request["prompt_ids"],
        request["params"],
        slo=request["slo"],
        priority=request["priority"],
        tenant=request["tenant"],
        scope=request["scope"],
        output=request["output_ids"],
        attempt=request["attempt"],
        speculate=speculation["enabled"],
        drafter=speculation["drafter"],
        max_depth=speculation["max_depth"],
        traced=request["trace"],
    )


def refusal(error: SpindleError, request: StreamRequest) -> Refused:
    if isinstance(error, Overloaded):
        return messages.refused(429, error)
    if not isinstance(error, InvalidRequest):
        _LOG.warning("request %s is not served: %s", request["name"], error)
        return messages.cannot_serve()
    return messages.refused(400, error)
