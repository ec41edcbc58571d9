"""The fields that all requests for outputs have: OpenAI's, vLLM's and Spindle's extensions."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from cluster.config.section import within
from deployments.ingress.requests.fields import (
    MAX_SALT,
    MAX_STOPS,
    AtLeastOne,
    Biases,
    Fields,
    Metadata,
    Penalty,
    SloTargets,
    SpeculationOptions,
    SpindleOptions,
    StopString,
    StreamOptions,
    Text,
    TokenId,
)
from deployments.ingress.requests.structured_outputs import StructuredOutputs
from deployments.ingress.requests.unsupported import SHARED, Unsupported
from engine.errors import InvalidRequest
from policies import ranges

_SERVICE_TIERS = ("auto", "default")


class SharedFields(Fields):
    """What may be said of any output, by OpenAI's, vLLM's or our own names."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = SHARED

    model: str
    """The served model's name (`GET /v1/models`)."""
    n: AtLeastOne = 1
    """Answers per prompt; all are admitted, or none."""
    temperature: Annotated[float, within(ranges.TEMPERATURE)] = 1.0
    """0: greedy."""
    top_p: Annotated[float, within(ranges.TOP_P)] = 1.0
    """Only the most probable tokens with this total probability."""
    presence_penalty: Penalty = 0.0
    """Lowers the logits of tokens that the output has."""
    frequency_penalty: Penalty = 0.0
    """Lowers the logits of tokens by how often the output has them."""
    logit_bias: Biases = {}
    """Added to the logits of tokens, by their ids."""
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] = []
    """Strings before which the output ends."""
    seed: Annotated[int, within(ranges.REQUEST_SEED)] | None = None
    """The output is a function of prompt, seed and fields. Absent or -1: drawn, and returned with
    each choice."""
    stream: bool = False
    """Answer with server-sent events."""
    stream_options: StreamOptions | None = None
    """What the events of a stream have."""
    user: Text | None = None
    """For your own records, as are `metadata`, `safety_identifier` and `prompt_cache_key`."""
    metadata: Metadata | None = None
    """Without effect on the output."""
    safety_identifier: Text | None = None
    """Without effect."""
    prompt_cache_key: Text | None = None
    """Without effect: the prefix cache finds prompts with the same beginning by itself."""
    store: bool | None = None
    """False: the answer is not kept for later requests to draft from, nor learned from. Nothing can
    be fetched later: true has no effect."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT)] | None = None
    """Only requests of the same client with the same salt reuse what this one leaves: prefix cache
    and past outputs."""
    service_tier: str = "auto"
    """There is one tier: other names have no effect."""

    # vLLM's extensions, by its names.
    top_k: Annotated[int, within(ranges.TOP_K)] = 0
    """Only so many most probable tokens; 0 or -1: all."""
    min_p: Annotated[float, within(ranges.MIN_P)] = 0.0
    """Only tokens with this share of the most probable one's probability."""
    repetition_penalty: Annotated[float, within(ranges.REPETITION_PENALTY)] = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output."""
    min_tokens: Annotated[int, within(ranges.COUNT)] = 0
    """Before so many tokens the output does not end."""
    stop_token_ids: Annotated[list[TokenId], Field(max_length=ranges.MAX_STOP_TOKENS)] = []
    """Tokens that end the output, beside the model's own."""
    ignore_eos: bool = False
    """Do not end at the model's own stop tokens."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    structured_outputs: StructuredOutputs | None = None
    """The form of the output: JSON, a regular expression, a choice or a grammar."""
    return_token_ids: bool = False
    """Return the token ids of each choice, or of each of its chunks."""

    # Spindle's extensions.
    slo: str | SloTargets | None = None
    """The request's SLO; a string names one of the config's classes."""
    priority: Annotated[int, within(ranges.PRIORITY)] = 0
    """Requests with a lower value run earlier, as in vLLM."""
    speculation: str | SpeculationOptions | None = None
    """`off`, a drafter's name, or an object with a drafter and a depth bound."""
    spindle: SpindleOptions = SpindleOptions()
    """What the response reports on how it was made, beside its statistics."""

    @model_validator(mode="after")
    def _check_shared(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options", "needs stream to be true")
        if self.spindle.trace and not self.stream:
            raise InvalidRequest("spindle", "trace needs stream to be true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def may_teach(self) -> bool:
        """A salt says that nothing is left for other requests, as `store: false` does."""
        return self.cache_salt is None and self.store is not False

    @property
    def keeps_output(self) -> bool:
        """Whether the response has the whole output at its end."""
        return not self.stream

    @property
    def given_seed(self) -> int | None:
        return None if self.seed == -1 else self.seed

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def speculation_options(self) -> SpeculationOptions | None:
        """None: no speculation."""
        if self.speculation == "off":
            return None
        if isinstance(self.speculation, str):
            return SpeculationOptions(drafter=self.speculation)
        options = self.speculation or SpeculationOptions()
        return None if options.off else options

    @property
    def without_effect(self) -> tuple[str, ...]:
        tier = self.service_tier not in _SERVICE_TIERS
        return (*(["store"] if self.store else []), *(["service_tier"] if tier else []))
