"""The bound of stored responses; tests/deployments/ingress/test_tool_clients.py continues them."""

import pytest

from deployments.ingress.errors import ApiError
from deployments.ingress.responses_api.request import ResponsesRequest
from deployments.ingress.responses_api.stored import StoredResponses
from engine.scopes import SHARED


def test_an_id_that_is_used_twice_hides_no_bytes_from_the_bound() -> None:
    stored = StoredResponses(100_000)
    large = ResponsesRequest(model="target", input="x" * 60_000)
    small = ResponsesRequest(model="target", input="x")
    for name in ("one", "two"):
        stored.keep(large, SHARED, "same", [])
        asked = ResponsesRequest(model="target", input="More?", previous_response_id="same")
        continued = stored.continued(asked, SHARED)
        stored.keep(small, SHARED, "same", [])
        stored.keep(continued, SHARED, name, [])
    follow = ResponsesRequest(model="target", input="More?", previous_response_id="one")
    with pytest.raises(ApiError, match="was dropped"):
        stored.continued(follow, SHARED)
