"""Responses that later requests continue by `previous_response_id`: in the ingress's memory,
bounded, and each found only by its own client."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from deployments.ingress.errors import ApiError, quoted
from deployments.ingress.requests.json_bounds import json_length
from deployments.ingress.responses_api.items import Item
from deployments.ingress.responses_api.request import ResponsesRequest
from engine.scopes import Holdings, Scope

_BYTES_PER_ITEM = 2_000
"""What an item takes beside its text."""
_ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])
_NONE = "responses are not stored here; send the items of the conversation so far in input"
_GONE = "is none of yours, or was dropped; send the items of the conversation so far in input"


class _Stored(NamedTuple):
    items: tuple[Item, ...]
    """The conversation, the response included."""
    size: int


class StoredResponses:
    def __init__(self, max_bytes: int) -> None:
        """0: nothing is stored."""
        self._left = self._max_bytes = max_bytes
        self._stored: dict[str, OrderedDict[tuple[Scope, str], _Stored]] = {}
        """By tenant, the least recently used first."""
        self._holdings = Holdings()

    def continued(self, request: ResponsesRequest, scope: Scope) -> ResponsesRequest:
        """The same request with the whole conversation as its input. Raises ApiError."""
        name = request.previous_response_id
        if name is None:
            return request
        if not self._max_bytes:
            raise ApiError(400, f"previous_response_id: {_NONE}", "previous_response_id")
        before = self._find(scope, name)
        if before is None:
            problem = f"previous_response_id: {quoted(name)} {_GONE}"
            raise ApiError(404, problem, "previous_response_id", "previous_response_not_found")
        return request.after(before.items)

    def stores(self, request: ResponsesRequest) -> bool:
        """Unless the client says otherwise, as at OpenAI."""
        return self._max_bytes > 0 and (request.store or "store" not in request.model_fields_set)

    def keep(
        self, request: ResponsesRequest, scope: Scope, name: str, output: Sequence[Any]
    ) -> None:
        """`request`: as `continued` returns it."""
        items = (*request.input, *_ITEMS.validate_python(output))
        before = self._find(scope, request.previous_response_id or "")
        size, known = (before.size, len(before.items)) if before else (0, 0)
        if before and items[:known] != before.items:  # its id has been used again meanwhile
            size, known = 0, 0
        size += sum(self._size(one) for one in items[known:])
        self._drop(scope.tenant, (scope, name))
        if size > self._max_bytes:
            return
        while size > self._left:
            tenant = self._holdings.gives_room(self._stored)
            self._drop(tenant, next(iter(self._stored[tenant])))
        self._stored.setdefault(scope.tenant, OrderedDict())[scope, name] = _Stored(items, size)
        self._holdings.add(scope.tenant, size)
        self._left -= size

    def _size(self, item: Item) -> int:
        return _BYTES_PER_ITEM + json_length(item.model_dump(), self._max_bytes)

    def _find(self, scope: Scope, name: str) -> _Stored | None:
        own = self._stored.get(scope.tenant, OrderedDict())
        if (scope, name) in own:
            own.move_to_end((scope, name))
            self._holdings.use(scope.tenant)
        return own.get((scope, name))

    def _drop(self, tenant: str, key: tuple[Scope, str]) -> None:
        own = self._stored.get(tenant, OrderedDict())
        if key in own:
            size = own.pop(key).size
            self._left += size
            self._holdings.add(tenant, -size)
            if not own:
                del self._stored[tenant]
