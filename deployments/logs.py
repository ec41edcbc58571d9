"""What the processes of ingress and replicas write: Spindle's logs into Serve's log file of the
process, what happens in a replica besides its rounds, and start-up messages for the terminal of
`make serve`.

Serve's files, one for each replica, have only what is logged below the logger `ray.serve`. Ray
forwards every process's standard output to the terminal.
"""

import asyncio
import logging

from ray import serve

from actors.coordinator.events import (
    Event,
    LaneDown,
    LaneUp,
    Left,
    VerifierDown,
    VerifierUp,
)
from cluster.config import AppConfig
from deployments.ray_internals import serve_details

_LOG = logging.getLogger(__name__)
_SERVE = "ray.serve"
_OURS = ("actors", "cluster", "deployments", "engine", "policies", "spindle")


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger(_SERVE).handle(record)


def forward_to_serve() -> None:
    """Called once in each process of ingress and replicas."""
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.handlers = [_Forward()]
        logger.propagate = False
        logger.setLevel(logging.INFO)


def log_event(event: Event) -> None:
    """Logs requests that leave and hosts that are lost."""
    match event:
        case LaneDown():
            _LOG.warning("drafter %s is lost: %s", event.lane, event.error)
        case LaneUp():
            _LOG.info("drafter %s is back after %.1f s", event.lane, event.seconds)
        case VerifierDown():
            _LOG.warning("the verifier is lost: %s", event.error)
        case VerifierUp():
            _LOG.info("the verifier is back after %.1f s", event.seconds)
        case Left() if not event.internal:
            statistics = event.statistics
            _LOG.info(
                "request %s left: %s, %d tokens in %d rounds, %d of %d draft tokens accepted",
                event.view.name,
                event.finish or ("failed" if event.failed else "cancelled"),
                event.view.generated,
                statistics.rounds,
                statistics.accepted,
                statistics.drafted,
            )


_POLL_S = 0.5
_ANY_ADDRESS = ("0.0.0.0", "::")
"""Addresses that a server can listen on but a client cannot call."""
_CURL = """\
curl {url}/v1/chat/completions -H 'Content-Type: application/json' \
-d '{{"model": "{model}", "messages": [{{"role": "user", "content": "{question}"}}]{options}}}'"""
_QUESTION = "What is gravity?"
_OPTIONS = ', "temperature": 0, "max_tokens": 64'
"""Further request fields for the example, so that the answer is the same each time."""


def print_line(line: str) -> None:
    print(line, flush=True)


async def announce(config: AppConfig) -> None:
    """Prints the application's addresses once Serve reports it as running."""
    app = serve.get_replica_context().app_name
    details = await asyncio.to_thread(serve_details)
    while details.applications[app].status != "RUNNING":
        await asyncio.sleep(_POLL_S)
        details = await asyncio.to_thread(serve_details)
    http, grpc = details.http_options, config.grpc
    url = f"http://{_callable(http.host)}:{http.port}"
    print_line(f"Spindle is ready: OpenAI's API at {url}/v1, its documentation at {url}/docs")
    print_line(f"Open {url}/ in a browser to see it draft")
    if grpc is not None:
        print_line(f"gRPC at {_callable(grpc.host or http.host)}:{grpc.port}")
    print_line(f"Handles: serve.get_app_handle({app!r})")
    example = {"url": url, "model": config.served_name, "question": _QUESTION}
    print_line(f"Try: {_CURL.format(**example, options=_OPTIONS)}")
    plain = _CURL.format(**example, options=_OPTIONS + ', "speculation": "off"')
    print_line(f"The same without speculation, to compare: {plain}")


def _callable(host: str) -> str:
    return "localhost" if host in _ANY_ADDRESS else host
