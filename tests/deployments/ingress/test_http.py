"""What leaves the HTTP interface when something raises that nothing handles."""

import pytest
from starlette.types import Message, Receive, Scope, Send

from deployments.ingress.http import DefectBoundary

START: Message = {"type": "http.response.start", "status": 200, "headers": []}


class Defect(Exception):
    """Its module is one that Serve's proxy would import to read it."""


async def answer(started: bool) -> list[Message]:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        if started:
            await send(START)
        raise Defect

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []
    scope: Scope = {"type": "http", "method": "GET", "path": "/health", "headers": []}
    await DefectBoundary(app)(scope, receive, send)
    return sent


async def test_a_defect_is_answered_and_goes_no_further() -> None:
    sent = await answer(started=False)
    assert sent[0]["status"] == 500


async def test_a_response_that_has_begun_breaks_off_with_a_plain_error() -> None:
    with pytest.raises(RuntimeError) as raised:
        await answer(started=True)
    assert type(raised.value) is RuntimeError, "which every process knows"
