"""The fields of a client's request: OpenAI's two completion APIs, vLLM's and Spindle's extensions,
typed. docs/api.md has the table."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import Field, model_validator

from cluster.config.section import within
from deployments.ingress.errors import ApiError
from deployments.ingress.requests.chat_messages import Messages
from deployments.ingress.requests.fields import (
    MAX_SALT,
    MAX_STOPS,
    Alternatives,
    AtLeastOne,
    Biases,
    Fields,
    JsonObject,
    Metadata,
    Penalty,
    Prompt,
    SloTargets,
    SpeculationOptions,
    SpindleOptions,
    StopString,
    StreamOptions,
    Text,
    TokenId,
)
from deployments.ingress.requests.structured_outputs import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    StructuredOutputs,
    output_grammar,
)
from deployments.ingress.requests.tools import ToolChoice, Tools, ToolUse, calls_grammar
from deployments.ingress.requests.unsupported import SHARED, Unsupported
from engine.errors import InvalidRequest
from engine.grammar.spec import OutputGrammar
from policies import ranges

_SERVICE_TIERS = ("auto", "default")


class SharedFields(Fields):
    """The fields that both completion APIs have."""

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
    store: bool = False
    """Nothing is stored: true has no effect."""
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
    def given_seed(self) -> int | None:
        return None if self.seed == -1 else self.seed

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

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


class CompletionRequest(SharedFields):
    """POST /v1/completions."""

    prompt: Prompt
    """Text, token ids, or a list of either."""
    max_tokens: Annotated[int, within(ranges.COUNT)] = 16
    """The most output tokens; what the context has no room for is left out. 0 returns only the
    prompt, and requires `echo`."""
    logprobs: Alternatives | None = None
    """How many alternatives to list beside each token's log-probability."""
    response_format: ResponseFormat | None = None
    """The form of the output: text, a JSON object, or JSON by a schema."""
    echo: bool = False
    """Each choice begins with its prompt, and `logprobs` covers the prompt too."""
    add_special_tokens: bool = True
    """Encode a prompt's text with the special tokens that the tokenizer adds."""

    @model_validator(mode="after")
    def _check_zero_max_tokens_and_form(self) -> Self:
        output_grammar(self.response_format, self.structured_outputs)
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("max_tokens", "0 needs echo to be true")
        return self

    @property
    def grammar(self) -> OutputGrammar | None:
        """What the output keeps to."""
        return output_grammar(self.response_format, self.structured_outputs)

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts; each gets `n` answers."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        # A list is of one kind, and may be long.
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast("Sequence[str | list[int]]", self.prompt)

    @property
    def token_limit(self) -> int:
        return self.max_tokens

    @property
    def token_limit_field(self) -> str:
        return "max_tokens"

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class ChatRequest(SharedFields):
    """POST /v1/chat/completions."""

    messages: Messages
    """The conversation so far; it goes through the checkpoint's chat template."""
    max_tokens: AtLeastOne | None = None
    """The older name of `max_completion_tokens`. If both are absent: as many as fit into the
    context."""
    max_completion_tokens: AtLeastOne | None = None
    """The most output tokens; what the context has no room for is left out."""
    logprobs: bool = False
    """Return the log-probability of each output token."""
    top_logprobs: Alternatives | None = None
    """How many alternatives to list beside each."""
    add_generation_prompt: bool | None = None
    """Begin the model's answer after the messages; by default unless the final one is continued."""
    continue_final_message: bool = False
    """The model continues the last message instead of answering it."""
    chat_template_kwargs: JsonObject = {}
    """Variables for the checkpoint's chat template; those that it does not use have no effect."""
    tools: Tools = []
    """Functions that the model may call."""
    tool_choice: ToolChoice | None = None
    """`auto` (the default where there are tools), `none`, `required`, or one function."""
    response_format: ResponseFormat | None = None
    """The form of the output: text, a JSON object, or JSON by a schema."""
    parallel_tool_calls: bool = True
    """False: the answer has at most one call."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message", "excludes add_generation_prompt; give only one of them"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs", "needs logprobs to be true")
        if self.tool_use.may_call and self.structured_outputs is not None:
            raise InvalidRequest(
                "structured_outputs", "and tools exclude each other; use response_format"
            )
        # Also that the forms do not exclude each other, and are not too large.
        output_grammar(self.response_format, self.structured_outputs)
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise InvalidRequest("max_tokens", "differs from max_completion_tokens; give one")
        return self

    @property
    def generation_prompt(self) -> bool:
        given = self.add_generation_prompt
        return not self.continue_final_message if given is None else given

    @property
    def token_limit(self) -> int | None:
        """None: as many as fit into the context."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def token_limit_field(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def without_effect(self) -> tuple[str, ...]:
        strict = any(tool.function.strict for tool in self.tools)
        unchecked = strict and not self.tool_use.is_enforced
        return (*super().without_effect, *(["tools.function.strict"] if unchecked else []))

    @cached_property
    def tool_use(self) -> ToolUse:
        match self.response_format:
            case JsonObjectFormat():
                answer: Any = {"type": "object", "additionalProperties": True}
            case JsonSchemaFormat(json_schema=named):
                answer = named.schema_
            case _:
                answer = None
        return ToolUse.of(self.tools, self.tool_choice, self.parallel_tool_calls, answer)

    @cached_property
    def grammar(self) -> OutputGrammar | None:
        """What the output keeps to."""
        if self.tool_use.is_enforced:
            return calls_grammar(self.tool_use)
        return output_grammar(self.response_format, self.structured_outputs)


GenerationRequest = CompletionRequest | ChatRequest
"""Both classes have `token_limit` (the most output tokens), `token_limit_field` (its field's name)
and `alternatives` (how many to list beside each token's log-probability; None: no
log-probabilities)."""


def echoes(request: GenerationRequest) -> bool:
    return isinstance(request, CompletionRequest) and request.echo


def kind_of(fields: Mapping[str, Any]) -> type[GenerationRequest]:
    """A request with `messages` is a chat, any other a completion."""
    if not isinstance(fields, Mapping):
        raise ApiError(400, "the request must be a mapping of fields, such as model and prompt")
    return ChatRequest if "messages" in fields else CompletionRequest
