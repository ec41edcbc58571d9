"""The base class of everything that clients send, and the types of single fields."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from cluster.config.section import within
from deployments.ingress.requests.json_bounds import json_length, shallow
from deployments.ingress.requests.unsupported import UNSUPPORTED, Unsupported, check_supported
from policies import ranges

MAX_STOPS = 4
MAX_SALT = 256
"""Characters of a `cache_salt`."""
MAX_STOP_CHARACTERS = 1024
"""The longest stop string: so much text may be held back, and is searched again with each token."""
MAX_METADATA = 65_536
"""Bytes as JSON: a response repeats it in several events."""
MAX_PROMPTS = 2048
"""As in OpenAI's API; admission is usually narrower."""
MAX_MESSAGES = 8192
"""The most messages of a conversation, and items of one list: the event loop handles each."""


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is no Unicode text: {error.reason}") from None
    return text


def _few_biases(given: object) -> object:
    """Counted before each of them is checked, because each may be an error."""
    if isinstance(given, dict) and len(given) > ranges.MAX_BIASES:
        length = {"max_length": ranges.MAX_BIASES, "actual_length": len(given)}
        raise PydanticKnownError("too_long", {"field_type": "Dictionary", **length})
    return given


def _short(metadata: dict[str, Any]) -> dict[str, Any]:
    if json_length(metadata, MAX_METADATA) > MAX_METADATA:
        raise ValueError(f"is larger than {MAX_METADATA} bytes; shorten it")
    return metadata


Text = Annotated[str, AfterValidator(_encodable)]
JsonObject = Annotated[dict[str, Any], AfterValidator(shallow)]
JsonList = Annotated[list[Any], AfterValidator(shallow)]
Metadata = Annotated[JsonObject, AfterValidator(_short)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]
TokenId = Annotated[int, within(ranges.COUNT)]
TokenKey = Annotated[TokenId, Field(strict=False)]
Bias = Annotated[float, within(ranges.BIAS)]
Biases = Annotated[
    dict[TokenKey, Bias], Field(max_length=ranges.MAX_BIASES), BeforeValidator(_few_biases)
]
Penalty = Annotated[float, within(ranges.PENALTY)]
Milliseconds = Annotated[float, within(ranges.SLO_MS)]
Alternatives = Annotated[int, within(ranges.LOGPROBS)]
AtLeastOne = Annotated[int, within(ranges.AT_LEAST_ONE)]
StopString = Annotated[
    str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS), AfterValidator(_encodable)
]
# Without fail_fast a list of a million wrong items makes a million errors, and one is returned.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
_PROMPTS = Field(fail_fast=True, max_length=MAX_PROMPTS)
Prompt = Text | TokenIds | Annotated[list[Text], _PROMPTS] | Annotated[list[TokenIds], _PROMPTS]


class Fields(BaseModel):
    """Unknown fields are kept, so that they can be named to the client
    (deployments/ingress/reading.py)."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    unsupported: ClassVar[Mapping[str, Unsupported]] = {}
    """Names that are refused although they are no fields here, as they would change the text."""

    passes_unknown_on: ClassVar[bool] = False
    """Unknown fields have an effect: a chat template sees them."""

    @model_validator(mode="before")
    @classmethod
    def _check_given(cls, given: object) -> object:
        """A null counts as absent, as in OpenAI's API. An unsupported field is a
        validation error."""
        if not isinstance(given, dict):
            return given
        known = {
            name: value
            for name, value in given.items()
            if value is not None or (name not in cls.model_fields and name not in cls.unsupported)
        }
        return check_supported(known, cls.unsupported, cls.model_fields)

    @model_validator(mode="after")
    def _check_unknown(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if isinstance(value, dict | list):
                try:
                    shallow(value)
                except ValueError as error:
                    problem = {"field": name, "problem": str(error)}
                    raise PydanticCustomError(UNSUPPORTED, "{problem}", problem) from None
        return self

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Known fields whose values ask for something that does not happen."""
        return ()


class StreamOptions(Fields):
    include_usage: bool = False
    """Send one more event at the end of the stream, with the usage and without choices."""
    include_obfuscation: bool = False
    """Without effect: events are not padded."""

    @property
    def without_effect(self) -> tuple[str, ...]:
        return ("include_obfuscation",) if self.include_obfuscation else ()


class SloTargets(Fields):
    model_config = ConfigDict(extra="forbid")

    ttft_ms: Milliseconds | None = None
    """Time to the first token, from arrival."""
    tpot_ms: Milliseconds | None = None
    """Mean time per output token after the first."""


class SpeculationOptions(Fields):
    model_config = ConfigDict(extra="forbid")

    off: bool = False
    """No speculation: the target decodes alone."""
    drafter: str | None = None
    """Only this drafter drafts; absent: the selection policy chooses."""
    max_depth: AtLeastOne | None = None
    """Maximum draft depth."""


class SpindleOptions(Fields):
    model_config = ConfigDict(extra="forbid")

    trace: bool = False
    """Say with each event of the stream how its tokens came about: which drafter has proposed each,
    with which confidence, and what else was drafted."""
