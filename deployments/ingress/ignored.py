"""Names the parts of requests that have no effect, so that nothing is ignored silently."""

import logging
import re
from collections.abc import Iterator, Sequence

from deployments.ingress.errors import ApiError
from deployments.ingress.requests.completions import ChatRequest
from deployments.ingress.requests.fields import Fields, TemplateFields
from deployments.ingress.responses_api.request import ResponsesRequest
from deployments.ingress.tokenizer import Tokens

HEADER = "x-spindle-ignored"
"""Of a response: the fields of its request that have no effect."""
STRICT_HEADER = "x-spindle-strict"
"""Of a request: with `1`, fields without effect are refused."""

_LOG = logging.getLogger(__name__)
_MAX_LOGGED = 256
_MAX_NAMES = 16
_MAX_NAME = 64


def ignored_fields(request: Fields, tokens: Tokens) -> list[str]:
    """The names of fields without effect; those of inner objects have their path, without the
    indexes of lists."""
    names = dict.fromkeys(_walk(request, ""))
    if isinstance(request, TemplateFields):
        used = tokens.used_variables(request.chat_template_kwargs)
        unused = [name for name in request.chat_template_kwargs if name not in used]
        names |= dict.fromkeys(f"chat_template_kwargs.{name}" for name in unused)
    if isinstance(request, ChatRequest | ResponsesRequest):
        use = request.tool_use
        if use.may_call and not use.is_enforced and not tokens.shows_tools:
            names["tools"] = None
    return list(names)


def _walk(fields: Fields, path: str) -> Iterator[str]:
    unknown = () if fields.passes_unknown_on else fields.model_extra or ()
    for name in (*unknown, *fields.without_effect):
        yield path + name
    for name in type(fields).model_fields:
        value = getattr(fields, name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Fields):
                yield from _walk(inner, f"{path}{name}.")


def shown(names: Sequence[str]) -> str:
    """The names as one header's value: short, in printable ASCII, commas only between names."""
    listed = [re.sub(r"[^!-+\--~]", "?", name)[:_MAX_NAME] for name in names[:_MAX_NAMES]]
    more = len(names) - len(listed)
    return ", ".join([*listed, *([f"and {more} more"] if more else [])])


class IgnoredFields:
    """What happens to requests that have fields without effect."""

    def __init__(self, strict: bool) -> None:
        """`strict`: refuse every such request."""
        self._strict = strict
        self._logged: set[str] = set()

    def check(self, names: Sequence[str], strict: bool = False) -> None:
        """`names`: of a request's fields without effect. Logs each once; raises ApiError 400
        instead if `strict`."""
        if names and (strict or self._strict):
            name = shown(names[:1])
            problem = "has no effect here; leave it out, or switch strict fields off"
            raise ApiError(400, f"{name}: {problem}", names[0].partition(".")[0][:_MAX_NAME])
        for name in map(shown, ([name] for name in names[:_MAX_NAMES])):
            if name not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add(name)
                _LOG.warning("a field of requests has no effect: %s", name)
