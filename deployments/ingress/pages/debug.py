"""`/debug/trace`: what the replicas do for some seconds, for those whom the config allows it."""

import asyncio
from itertools import chain
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from ray.serve.handle import DeploymentHandle

from deployments.ingress.admission.clients import Client
from deployments.ingress.api import Api
from deployments.ingress.errors import ApiError
from deployments.messages import TraceQuery
from deployments.replica.timeline import TraceEvent

LONGEST_S = 60.0
_SLACK_S = 10.0
"""How long a replica may take to answer, beyond the time that it records."""
Seconds = Annotated[float, Query(gt=0, le=LONGEST_S)]


def add_debug(http: FastAPI, api: Api) -> None:
    @http.get("/debug/trace")
    async def trace(request: Request, seconds: Seconds = 10.0) -> Response:
        """What all replicas do for so many seconds, in Chrome's trace format, for Perfetto."""
        client: Client = request.state.client
        if not client.is_operator:
            raise ApiError(403, "this client may not ask for traces (operators in the config)")
        await api.ready()
        calls = [
            _of_replica(api.replicas, {"replica": name, "seconds": seconds, "process": number})
            for number, name in enumerate(sorted(api.replica_names))
        ]
        events = chain(*await asyncio.gather(*calls))
        return JSONResponse({"displayTimeUnit": "ms", "traceEvents": list(events)})


async def _of_replica(replicas: DeploymentHandle, query: TraceQuery) -> list[TraceEvent]:
    """Nothing of a replica that is lost meanwhile, or does not answer."""
    try:
        async with asyncio.timeout(query["seconds"] + _SLACK_S):
            events: list[TraceEvent] = await replicas.trace.remote(query)
    except Exception:
        return []
    return events
