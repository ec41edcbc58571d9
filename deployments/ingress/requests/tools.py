"""The tools that a client offers, and which of them must be called."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from deployments.ingress.requests.fields import Fields, JsonObject, Text
from deployments.ingress.requests.json_bounds import json_length
from deployments.ingress.requests.structured_outputs import schema_grammar
from engine.errors import InvalidRequest
from engine.grammar.spec import MAX_BYTES, OutputGrammar

MAX_TOOLS = 128
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
Schema = JsonObject


class Function(Fields):
    passes_unknown_on = True

    name: FunctionName
    """Letters, digits, `_`, `-` and `.`."""
    description: Text | None = None
    """When and how to call it."""
    parameters: Schema | None = None
    """The arguments' JSON schema; absent: no arguments."""
    strict: bool = False
    """Enforced for required and named calls, of any function. Calls that the model makes of its own
    accord are not checked."""


class Tool(Fields):
    passes_unknown_on = True

    type: Literal["function"]
    """Only functions are tools."""
    function: Function
    """What the model may call."""

    @property
    def for_template(self) -> dict[str, Any]:
        """As the client wrote it, which is what templates show to the model."""
        return self.model_dump(exclude_unset=True, exclude={"function": {"strict"}})


class NamedFunction(Fields):
    name: FunctionName
    """One of the tools."""


class NamedToolChoice(Fields):
    type: Literal["function"]
    """Only functions are tools."""
    function: NamedFunction
    """The one to be called."""


class AllowedTools(Fields):
    mode: Literal["auto", "required"]
    """Whether one of them must be called."""
    tools: Annotated[list[NamedToolChoice], Field(min_length=1, max_length=MAX_TOOLS)]
    """Those of the tools that may be called: the model sees no others."""


class AllowedToolsChoice(Fields):
    type: Literal["allowed_tools"]
    """Some of the tools."""
    allowed_tools: AllowedTools
    """Which."""


_Word = Literal["none", "auto", "required"]
ToolChoice = _Word | Annotated[NamedToolChoice | AllowedToolsChoice, Field(discriminator="type")]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request's fields about tools mean together."""

    tools: Sequence[Tool] = ()
    """Those that the choice allows."""
    choice: _Word | NamedToolChoice = "none"
    parallel: bool = True
    answer: Schema | None = None
    """The JSON schema of an answer without calls; None: it may be any text."""
    is_limited: bool = False
    """Whether the choice names the tools, so that no other can be called."""

    @classmethod
    def of(
        cls,
        tools: Sequence[Tool],
        choice: ToolChoice | None,
        parallel: bool,
        answer: Schema | None = None,
    ) -> "ToolUse":
        """Raises InvalidRequest if the fields contradict each other."""
        names = [tool.function.name for tool in tools]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidRequest("tools", f"two functions are called {name!r}; rename one")
        limited = False
        if isinstance(choice, AllowedToolsChoice):
            limited = True
            allowed = {one.function.name for one in choice.allowed_tools.tools}
            if unknown := allowed - set(names):
                raise InvalidRequest("tool_choice", _no_function(min(unknown)))
            tools = [tool for tool in tools if tool.function.name in allowed]
            choice = choice.allowed_tools.mode
        use = cls(tools, choice or ("auto" if tools else "none"), parallel, answer, limited)
        if use.must_call and not tools:
            raise InvalidRequest("tool_choice", "needs a function in tools")
        if use.named is not None and use.named not in names:
            raise InvalidRequest("tool_choice", _no_function(use.named))
        return use

    @property
    def named(self) -> str | None:
        """The one function that is called; None: no single one must be."""
        return self.choice.function.name if isinstance(self.choice, NamedToolChoice) else None

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.choice != "none"

    @property
    def must_call(self) -> bool:
        return self.choice == "required" or self.named is not None

    @property
    def is_enforced(self) -> bool:
        """Whether the output keeps to `call_schema`."""
        return self.must_call or (self.may_call and self.answer is not None)


def _no_function(name: str) -> str:
    return f"{name!r} is none of the functions in tools"


def calls_grammar(use: ToolUse) -> OutputGrammar:
    """The grammar of an enforced use's output. Raises InvalidRequest for schemas that are too
    large, before they are put together."""
    schemas = [use.answer, *(tool.function.parameters for tool in use.tools)]
    if json_length(schemas, MAX_BYTES) > MAX_BYTES:
        raise InvalidRequest("tools", f"is larger than {MAX_BYTES} bytes; simplify it")
    return schema_grammar(call_schema(use), "tools")


def call_schema(use: ToolUse) -> Schema:
    """The JSON schema of the output of an enforced use: the arguments of a named function, or a
    list of calls, or, if none must be called, either such a list or the answer."""
    if use.named is not None:
        return next(_arguments(tool) for tool in use.tools if tool.function.name == use.named)
    if use.must_call or use.answer is None:
        return _call_list(use)
    parts = {"calls": _call_list(use), "answer": use.answer}
    return {
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in parts],
        "$defs": {name: _moved(part, f"#/$defs/{name}") for name, part in parts.items()},
    }


def _arguments(tool: Tool) -> Schema:
    return tool.function.parameters or {"type": "object", "properties": {}}


def _call_list(use: ToolUse) -> Schema:
    schemas = {tool.function.name: _arguments(tool) for tool in use.tools}
    return {
        "type": "array",
        "minItems": 1,
        **({} if use.parallel else {"maxItems": 1}),
        "items": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "name": {"const": name},
                        "parameters": {"$ref": f"#/$defs/{name}"},
                    },
                    "required": ["name", "parameters"],
                    "additionalProperties": False,
                }
                for name in schemas
            ]
        },
        "$defs": {name: _moved(schema, f"#/$defs/{name}") for name, schema in schemas.items()},
    }


def _moved(schema: Any, place: str) -> Any:
    """The schema with its references to parts of itself as they are once it is at `place`."""
    if isinstance(schema, list):
        return [_moved(one, place) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: place + value.removeprefix("#")
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, place)
        for key, value in schema.items()
    }
