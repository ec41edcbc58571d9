"""The fields that demand a form of the output: OpenAI's `response_format`, and vLLM's
`structured_outputs`."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from deployments.ingress.requests.fields import Fields, JsonObject, Text
from deployments.ingress.requests.json_bounds import json_length
from deployments.ingress.requests.unsupported import STRUCTURED_OUTPUTS, Unsupported
from engine.errors import InvalidRequest
from engine.grammar.spec import MAX_BYTES, MAX_CHOICES, OutputGrammar


def schema_grammar(schema: Any, source: str) -> OutputGrammar:
    """Raises InvalidRequest for a schema that is too large, without writing it."""
    if json_length(schema, MAX_BYTES) > MAX_BYTES:
        raise InvalidRequest(source, f"is larger than {MAX_BYTES} bytes; simplify it")
    return OutputGrammar("json_schema", json.dumps(schema), source)


class TextFormat(Fields):
    type: Literal["text"]
    """No demand."""

    @property
    def grammar(self) -> OutputGrammar | None:
        return None


class JsonObjectFormat(Fields):
    type: Literal["json_object"]
    """Any JSON object."""

    @property
    def grammar(self) -> OutputGrammar | None:
        return OutputGrammar("json_object", source="response_format")


class NamedSchema(Fields):
    name: Text | None = None
    """Not shown to the model."""
    description: Text | None = None
    """Not shown to the model."""
    schema_: Annotated[JsonObject | bool, Field(alias="schema")] = True
    """The JSON schema that the output keeps to."""
    strict: bool = False
    """Without effect: outputs always keep to the schema."""


class JsonSchemaFormat(Fields):
    type: Literal["json_schema"]
    """JSON of a schema."""
    json_schema: NamedSchema
    """The schema and its name."""

    @cached_property
    def grammar(self) -> OutputGrammar | None:
        return schema_grammar(self.json_schema.schema_, "response_format")


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class StructuredOutputs(Fields):
    """Exactly one of its fields."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = STRUCTURED_OUTPUTS

    json_schema: Annotated[JsonObject | Text | None, Field(alias="json")] = None
    """A JSON schema, as an object or a text."""
    json_object: Literal[True] | None = None
    """Any JSON object."""
    regex: Text | None = None
    """A pattern that the whole text matches."""
    choice: Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES)] | None = None
    """The text is one of these."""
    grammar: Text | None = None
    """In EBNF (GBNF's dialect); its first rule is `root`."""

    @model_validator(mode="after")
    def _check_exactly_one(self) -> Self:
        given = [one for one in type(self).model_fields if getattr(self, one) is not None]
        if len(given) != 1:
            raise InvalidRequest(
                "structured_outputs",
                "give exactly one of json, json_object, regex, choice, grammar",
            )
        return self

    @cached_property
    def output_grammar(self) -> OutputGrammar:
        if self.json_object:
            return OutputGrammar("json_object")
        if self.regex is not None:
            return OutputGrammar("regex", self.regex)
        if self.choice is not None:
            return OutputGrammar("choice", json.dumps(self.choice))
        if self.grammar is not None:
            return OutputGrammar("grammar", self.grammar)
        if isinstance(self.json_schema, str):
            return OutputGrammar("json_schema", self.json_schema)
        return schema_grammar(self.json_schema, "structured_outputs")


def output_grammar(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None
) -> OutputGrammar | None:
    """None: the output is free. Raises InvalidRequest if both fields demand something."""
    demanded = None if response_format is None else response_format.grammar
    if structured_outputs is None:
        return demanded
    if demanded is not None:
        raise InvalidRequest("structured_outputs", "and response_format exclude each other")
    return structured_outputs.output_grammar
