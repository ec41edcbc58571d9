"""The bound of stored responses; tests/deployments/ingress/test_tool_clients.py continues them."""

import pytest

from deployments.ingress.errors import ApiError
from deployments.ingress.responses_api.request import ResponsesRequest
from deployments.ingress.responses_api.stored import StoredResponses
from engine.scopes import SHARED


def asked(text: str, before: str | None = None) -> ResponsesRequest:
    fields = {"model": "target", "input": text, "previous_response_id": before}
    return ResponsesRequest.model_validate(fields)


def test_an_id_that_is_used_twice_hides_no_bytes_from_the_bound() -> None:
    stored = StoredResponses(100_000)
    large, small = asked("x" * 60_000), asked("x")
    for name in ("one", "two"):
        stored.keep(large, SHARED, "same", [])
        continued = stored.continued(asked("More?", "same"), SHARED)
        stored.keep(small, SHARED, "same", [])
        stored.keep(continued, SHARED, name, [])
    with pytest.raises(ApiError, match="was dropped"):
        stored.continued(asked("More?", "one"), SHARED)


def test_what_is_no_unicode_text_in_an_item_is_stored_like_any_other() -> None:
    """A field without effect made a response fail when it was whole."""
    stored = StoredResponses(100_000)
    item = {"role": "user", "content": "Hello", "color": "\ud800"}
    request = ResponsesRequest.model_validate({"model": "target", "input": [item]})
    stored.keep(request, SHARED, "one", [])
    assert stored.continued(asked("More?", "one"), SHARED).input[0] == request.input[0]
