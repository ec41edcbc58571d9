"""The tools that a client of the Responses API offers, and which of them must be called."""

from typing import Annotated, Any, Literal

from pydantic import Field

from deployments.ingress.requests.fields import Fields, Text
from deployments.ingress.requests.tools import (
    MAX_TOOLS,
    AllowedTools,
    AllowedToolsChoice,
    FunctionName,
    NamedFunction,
    NamedToolChoice,
    Schema,
)


class FunctionTool(Fields):
    """A function, as the Responses API describes it."""

    passes_unknown_on = True

    type: Literal["function"]
    """Only functions are tools."""
    name: FunctionName
    """Letters, digits, `_`, `-` and `.`."""
    description: Text | None = None
    """When and how to call it."""
    parameters: Schema | None = None
    """The arguments' JSON schema; absent: no arguments."""
    strict: bool = False
    """Enforced for required and named calls, of any function."""

    @property
    def for_chat(self) -> dict[str, Any]:
        return {
            "type": "function",
            "function": self.model_dump(exclude_unset=True, exclude={"type"}),
        }


class NamedFunctionChoice(Fields):
    type: Literal["function"]
    """Only functions are tools."""
    name: FunctionName
    """One of the tools."""

    @property
    def for_chat(self) -> NamedToolChoice:
        return NamedToolChoice(type="function", function=NamedFunction(name=self.name))


class AllowedFunctionsChoice(Fields):
    type: Literal["allowed_tools"]
    """Some of the tools."""
    mode: Literal["auto", "required"]
    """Whether one of them must be called."""
    tools: Annotated[list[NamedFunctionChoice], Field(min_length=1, max_length=MAX_TOOLS)]
    """Those of the tools that may be called: the model sees no others."""

    @property
    def for_chat(self) -> AllowedToolsChoice:
        allowed = AllowedTools(mode=self.mode, tools=[tool.for_chat for tool in self.tools])
        return AllowedToolsChoice(type="allowed_tools", allowed_tools=allowed)


FunctionChoice = (
    Literal["none", "auto", "required"]
    | Annotated[NamedFunctionChoice | AllowedFunctionsChoice, Field(discriminator="type")]
)
