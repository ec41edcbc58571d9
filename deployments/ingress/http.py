"""The HTTP interface: OpenAI's paths, and errors in OpenAI's shape."""

import logging
import re
from collections.abc import Coroutine, Mapping
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.ingress.answers import json_text
from deployments.ingress.answers.choices import Answer
from deployments.ingress.answers.delivery import (
    BackpressureWindow,
    EventStream,
    cancel_if_disconnected,
    data_events,
    named_events,
)
from deployments.ingress.answers.json_text import Body
from deployments.ingress.api import Api
from deployments.ingress.clients import Client
from deployments.ingress.errors import ApiError, ErrorAnswer
from deployments.ingress.gate import Gate, Hosts, route_path
from deployments.ingress.metrics import RequestLog
from deployments.ingress.pages import RESPONSES
from deployments.ingress.reading import HEADER, STRICT_HEADER, route_reading, shown
from deployments.ingress.requests.completions import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from deployments.ingress.responses_api.request import ResponsesRequest
from deployments.ingress.responses_api.service import ResponsesApi
from deployments.ingress.watching import CONTENT_TYPE, LiveView, Seconds
from deployments.proxy import TAKEN_OUT
from engine.errors import InvalidRequest

PATHS_WITHOUT_KEY: tuple[str, ...] = ("/health", "/version")
_POLLED = ("/metrics", "/spindle/live")
_REQUEST_ID_HEADER = "X-Request-Id"
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_LOG = logging.getLogger("spindle")
_JSON = re.compile(r"\s*application/([\w.+-]+\+)?json\s*(;|$)", re.IGNORECASE)
"""What FastAPI reads as JSON, by its `content-type`."""


def make_http(api: Api) -> FastAPI:
    responses = ResponsesApi(api)
    key = [Depends(HTTPBearer(auto_error=False))] if api.config.api_keys else []
    errors: dict[int | str, dict[str, Any]] = {
        "default": {"model": ErrorAnswer, "description": "An error"}
    }
    http = FastAPI(
        title="Spindle",
        version=api.version,
        redoc_url=None,
        dependencies=key,
        responses=errors,
        redirect_slashes=False,  # to a URL of the request's Host
    )
    http.router.route_class = route_reading(api.reader, _is_json)
    http.state.request_log = api.log
    http.add_middleware(
        Gate,
        keys=api.keys,
        hosts=Hosts(api.config.allowed_hosts, bool(api.config.api_keys)),
        max_body_bytes=api.config.limits.max_body_bytes,
        open_paths=(*PATHS_WITHOUT_KEY, *RESPONSES),
        refuse=respond_with_error,
    )
    http.add_middleware(DefectBoundary)
    for kind in (ApiError, InvalidRequest, RequestValidationError, HTTPException):
        http.add_exception_handler(kind, respond_with_error)

    @http.get("/health")
    async def health() -> Body:
        """200 when any replica would serve at once, else 503. `drafters_down`: how many drafters of
        it are lost, which its requests do without."""
        return await api.health()

    @http.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Spindle's metrics as Prometheus reads them; for operators."""
        if not request.state.client.is_operator:
            raise ApiError(403, "metrics show all tenants; name yours in `operators` of the config")
        return Response(await api.metrics_text(), media_type=CONTENT_TYPE)

    @http.get("/spindle/live")
    async def live(request: Request, seconds: Seconds = 5.0) -> LiveView:
        """What the playground shows of the config and, for operators, of the last seconds."""
        return await api.live(seconds, request.state.client)

    @http.get("/version")
    async def version() -> Body:
        """Spindle's version."""
        return {"version": api.version}

    @http.get("/v1/models")
    async def models() -> Body:
        """The one model."""
        return await api.models()

    @http.get("/v1/models/{name:path}")
    async def model(name: str) -> Body:
        """The model of this name."""
        return await api.model(name)

    @http.post("/v1/completions")
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Continues prompts."""
        return await _respond(api, body, request)

    @http.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answers a conversation."""
        return await _respond(api, body, request)

    @http.post("/v1/responses")
    async def respond(body: ResponsesRequest, request: Request) -> Response:
        """Answers a conversation, given and answered as items."""
        headers = _ignored(api, request)
        opened = await responses.open(body, request.state.client, _request_id(request))
        if body.stream:
            events = named_events(responses.events(opened))
            return EventStream(opened.answer, events, BackpressureWindow(request.scope), headers)
        response = responses.full_response(opened)
        return await _respond_whole(opened.answer, response, request, headers)

    for path, page in RESPONSES.items():
        http.routes.append(Route(path, page, methods=["GET"], name=path))
    return http


async def _respond(api: Api, body: GenerationRequest, request: Request) -> Response:
    headers = _ignored(api, request)
    answer = await api.open(body, request.state.client, _request_id(request))
    if body.stream:
        events = data_events(api.chunks(body, answer))
        return EventStream(answer, events, BackpressureWindow(request.scope), headers)
    return await _respond_whole(answer, api.full_response(body, answer), request, headers)


async def _respond_whole(
    answer: Answer,
    response: Coroutine[None, None, Body],
    request: Request,
    headers: Mapping[str, str],
) -> Response:
    try:
        full = await cancel_if_disconnected(request.receive, response)
    finally:
        answer.close()
    return await _json(full, headers)


async def _json(body: Body, headers: Mapping[str, str]) -> Response:
    return Response(await json_text.encode(body), headers=headers, media_type="application/json")


def _ignored(api: Api, request: Request) -> dict[str, str]:
    """A header that names what has no effect; raises ApiError if the client refuses that."""
    api.ignored_fields.check(request.state.ignored, request.headers.get(STRICT_HEADER) == "1")
    names = [*request.state.ignored, *request.scope.get(TAKEN_OUT, ())]
    if _REQUEST_ID_HEADER in request.headers and _request_id(request) is None:
        names.append(_REQUEST_ID_HEADER)
    return {HEADER: shown(names)} if names else {}


def _request_id(request: Request) -> str | None:
    """None if there is none, or none that a response's id can have."""
    given = request.headers.get(_REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else None


def _is_json(request: Request) -> bool:
    return _JSON.match(request.headers.get("content-type", "")) is not None


def respond_with_error(request: Request, error: Exception) -> JSONResponse:
    refusal = ApiError.of(error)
    if (
        isinstance(error, RequestValidationError)
        and request.method == "POST"
        and not _is_json(request)
    ):
        hint = "send it as JSON, with the header `content-type: application/json`"
        refusal = ApiError(400, f"body: {hint}")
    _log_refusal(request, refusal)
    headers = getattr(error, "headers", None) or refusal.headers
    return JSONResponse(refusal.body(), refusal.status, headers)


def _log_refusal(request: Request, refusal: ApiError) -> None:
    """But for probes and pages, which ask all the time whether a replica is there."""
    path = route_path(request.scope)
    expected = path in _POLLED and refusal.status == 503
    if not expected and path not in PATHS_WITHOUT_KEY:
        log: RequestLog = request.app.state.request_log
        client: Client | None = getattr(request.state, "client", None)
        log.refused(refusal, "" if client is None else client.tenant)


class DefectBoundary:
    """Answers 500 in place of an exception that nothing else handles.

    Serve would pass the exception on to its proxy, which imports the modules of its class: for
    seconds if they import torch, and all other requests wait meanwhile.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
            return
        except Exception:
            _LOG.exception("a request fails because of a defect")
        if started:
            raise RuntimeError("the response broke off; the log of the ingress has the cause")
        defect = ApiError.internal()
        _log_refusal(Request(scope), defect)
        await JSONResponse(defect.body(), defect.status)(scope, receive, send)
