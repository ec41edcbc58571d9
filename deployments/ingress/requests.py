"""The fields of a client's request: OpenAI's two completion APIs and Spindle's extensions, typed.

A field that no class here names is refused. OpenAI's fields that are not supported are accepted
with their default value only (docs/api.md has the table).
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from cluster.config.section import within
from deployments.ingress.chat_messages import Message
from deployments.ingress.fields import Fields, Text
from deployments.ingress.structured_outputs import (
    ResponseFormat,
    StructuredOutputs,
    output_grammar,
)
from deployments.ingress.tools import ToolChoice, Tools, ToolUse
from engine.errors import InvalidRequest
from engine.sampling.params import SamplingParams
from policies import ranges

MAX_STOPS = 4
MAX_PROMPTS = 2048
"""As in OpenAI's API; admission is usually narrower."""

TokenId = Annotated[int, within(ranges.COUNT)]
TokenKey = Annotated[TokenId, Field(strict=False)]
Bias = Annotated[float, within(ranges.BIAS)]
Penalty = Annotated[float, within(ranges.PENALTY)]
Milliseconds = Annotated[float, within(ranges.SLO_MS)]
Alternatives = Annotated[int, within(ranges.LOGPROBS)]
AtLeastOne = Annotated[int, within(ranges.AT_LEAST_ONE)]
StopString = Annotated[str, Field(min_length=1)]
# Without fail_fast a list of a million wrong items makes a million errors, and one is returned.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
_PROMPTS = Field(fail_fast=True, max_length=MAX_PROMPTS)
Prompt = Text | TokenIds | Annotated[list[Text], _PROMPTS] | Annotated[list[TokenIds], _PROMPTS]


class StreamOptions(Fields):
    include_usage: bool = False
    """Send one more event at the end of the stream, with the usage and without choices."""


class SloTargets(Fields):
    ttft_ms: Milliseconds | None = None
    """Time to the first token, from arrival."""
    tpot_ms: Milliseconds | None = None
    """Mean time per output token after the first."""


class SpeculationOptions(Fields):
    drafter: str | None = None
    """Only this drafter drafts; absent: the selection policy chooses."""
    max_depth: AtLeastOne | None = None
    """Maximum draft depth."""


class SharedFields(Fields):
    """The fields that both completion APIs have."""

    model: str
    n: AtLeastOne = 1
    temperature: Annotated[float, within(ranges.TEMPERATURE)] = 1.0
    top_p: Annotated[float, within(ranges.TOP_P)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Annotated[dict[TokenKey, Bias], Field(max_length=ranges.MAX_BIASES)] = {}
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] = []
    seed: Annotated[int, within(ranges.SEED)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    """Accepted for the client's own records; nothing depends on it."""

    # vLLM's extensions, by its names.
    top_k: Annotated[int, within(ranges.TOP_K)] = 0
    min_p: Annotated[float, within(ranges.MIN_P)] = 0.0
    repetition_penalty: Annotated[float, within(ranges.REPETITION_PENALTY)] = 1.0
    min_tokens: Annotated[int, within(ranges.COUNT)] = 0
    stop_token_ids: Annotated[list[TokenId], Field(max_length=ranges.MAX_STOP_TOKENS)] = []
    ignore_eos: bool = False
    structured_outputs: StructuredOutputs | None = None
    """The form of the output: JSON, a regular expression, a choice or a grammar."""
    return_token_ids: bool = False
    """Return the token ids of each choice, or of each of its chunks."""

    # Spindle's extensions.
    slo: str | SloTargets | None = None
    """The request's SLO; a string names one of the config's classes."""
    priority: Annotated[int, within(ranges.PRIORITY)] = 0
    """Requests of higher priority run first."""
    speculation: str | SpeculationOptions | None = None
    """`off`, a drafter's name, or an object with a drafter and a depth bound."""

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options", "needs stream to be true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

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
        return self.speculation or SpeculationOptions()


class CompletionRequest(SharedFields):
    """POST /v1/completions."""

    prompt: Prompt
    max_tokens: Annotated[int, within(ranges.COUNT)] = 16
    """0 returns only the prompt, and requires `echo`."""
    logprobs: Alternatives | None = None
    echo: bool = False
    """Each choice begins with its prompt, and `logprobs` covers the prompt too."""

    best_of: Literal[1] = 1
    suffix: None = None

    @model_validator(mode="after")
    def _check_zero_max_tokens(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("max_tokens", "0 needs echo to be true")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts; each gets `n` answers."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [one for one in self.prompt if isinstance(one, int)]
        return [tokens] if tokens else [one for one in self.prompt if not isinstance(one, int)]

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

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_tokens: AtLeastOne | None = None
    """The older name of `max_completion_tokens`. If both are absent: as many as fit into the
    context."""
    max_completion_tokens: AtLeastOne | None = None
    logprobs: bool = False
    top_logprobs: Alternatives | None = None
    tools: Tools = []
    """Functions that the model may call."""
    tool_choice: ToolChoice | None = None
    """`auto` (the default where there are tools), `none`, `required`, or one function."""
    response_format: ResponseFormat | None = None
    """The form of the output: text, a JSON object, or JSON by a schema."""
    parallel_tool_calls: bool = True
    """False: the answer has at most one call."""

    audio: None = None
    function_call: Literal["none", "auto"] = "none"
    functions: Annotated[list[Any], Field(max_length=0)] = []
    metadata: Annotated[dict[str, str], Field(max_length=0)] = {}
    modalities: list[Literal["text"]] = ["text"]
    prediction: None = None
    reasoning_effort: Literal["none"] = "none"
    service_tier: Literal["auto", "default"] = "auto"
    store: Literal[False] = False
    verbosity: Literal["medium"] = "medium"
    web_search_options: None = None

    @model_validator(mode="after")
    def _check_limits_and_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs", "needs logprobs to be true")
        ToolUse.of(self.tools, self.tool_choice, self.parallel_tool_calls)
        output_grammar(self.response_format, self.structured_outputs)
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise InvalidRequest("max_tokens", "differs from max_completion_tokens; give one")
        return self

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
    def tool_use(self) -> ToolUse:
        return ToolUse.of(self.tools, self.tool_choice, self.parallel_tool_calls)


GenerationRequest = CompletionRequest | ChatRequest
"""Both classes have `token_limit` (the most output tokens), `token_limit_field` (its field's name)
and `alternatives` (how many to list beside each token's log-probability; None: no
log-probabilities)."""


def echoes(request: GenerationRequest) -> bool:
    return isinstance(request, CompletionRequest) and request.echo


def sampling_params(request: GenerationRequest, max_tokens: int) -> SamplingParams:
    """All sampling parameters except the seed, which differs by choice."""
    return SamplingParams(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=request.logit_bias,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        logprobs=request.alternatives,
        prompt_logprobs=request.alternatives if echoes(request) else None,
        grammar=output_grammar(
            request.response_format if isinstance(request, ChatRequest) else None,
            request.structured_outputs,
        ),
    )


class TokenizeRequest(Fields):
    """POST /tokenize: a prompt, or messages rendered by the chat template."""

    model: str | None = None
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    tools: Tools = []
    """For messages only: functions that the template shows to the model."""
    add_special_tokens: bool = True
    """For a prompt only; a chat template adds its own."""
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _check_exactly_one_prompt(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("prompt", "give either prompt or messages")
        return self


class DetokenizeRequest(Fields):
    """POST /detokenize."""

    model: str | None = None
    tokens: TokenIds
