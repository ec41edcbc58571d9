"""What whole answers look like, for the OpenAPI document (deployments/ingress/openapi.py).
Bodies are built elsewhere and not validated again; a test compares them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, with_config
from typing_extensions import TypedDict  # which pydantic needs below Python 3.12


class AnswerPart(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


@with_config(use_attribute_docstrings=True)
class CachedTokens(TypedDict):
    cached_tokens: int
    """Those found in the prefix cache."""


@with_config(use_attribute_docstrings=True)
class Usage(TypedDict):
    """As in OpenAI's API."""

    prompt_tokens: int
    """Tokens of all prompts, each prompt counted once."""
    completion_tokens: int
    """Tokens of all choices."""
    total_tokens: int
    """Both."""
    prompt_tokens_details: CachedTokens
    """Part of the prompt's tokens."""


class ChoiceStatistics(AnswerPart):
    """How a choice was made."""

    seed: int
    """With which this choice can be had again."""
    rounds: int
    """Verifications."""
    drafted: int
    """Draft tokens in them."""
    accepted: int
    """Those that the target agreed with."""
    rounds_by_lane: dict[str, int]
    """By which drafters."""
    decision: str
    """Who chose them, and why, or why nothing was drafted."""
    queue_s: float
    """From its arrival at a replica until it ran."""
    ttft_s: float
    """To the first token."""
    tpot_s: float | None
    """Per token after it."""
    replica: str | None
    """The one that served it last."""
    attempts: int
    """How many replicas were tried."""


class PromptToken(AnswerPart):
    logprob: float
    """Under the model's own distribution."""
    rank: int
    """1 for the most probable."""
    decoded_token: str
    """Its text."""


class CompletionLogprobs(AnswerPart):
    tokens: list[str]
    """Each token's text."""
    token_logprobs: list[float | None]
    """Null for the first token of an echoed prompt."""
    top_logprobs: list[dict[str, float] | None]
    """The token and its alternatives, by their texts."""
    text_offset: list[int]
    """Where each token begins in the text."""


class AnswerChoice(AnswerPart):
    """What choices of both completion APIs have."""

    index: int
    """Its number: `n` choices of each prompt, prompt by prompt."""
    stop_reason: str | int | None
    """The stop string or requested stop token that has ended it."""
    token_ids: list[int] = []
    """The output's tokens, with `return_token_ids`."""
    spindle: ChoiceStatistics
    """How it was made."""


class CompletionChoice(AnswerChoice):
    text: str
    """The output, after the prompt with `echo`."""
    logprobs: CompletionLogprobs | None
    """With `logprobs`."""
    finish_reason: Literal["stop", "length"]
    """Why it ended."""
    prompt_logprobs: list[dict[str, PromptToken] | None] = []
    """One for each token of the prompt, with `prompt_logprobs`; null for the first."""


class GeneratedAnswer(AnswerPart):
    """What answers of both completion APIs have."""

    id: str
    """Contains the request's id."""
    created: int
    """Seconds since 1970."""
    model: str
    """The served model's name."""
    usage: Usage
    """Tokens of the whole request."""


class CompletionAnswer(GeneratedAnswer):
    object: Literal["text_completion"]
    """The kind of this answer."""
    choices: list[CompletionChoice]
    """In the order of their index."""


class TokenLogprob(AnswerPart):
    token: str
    """Its text."""
    logprob: float
    """Under the model's own distribution."""
    bytes: list[int] | None
    """The text's bytes; null if they are not known."""


class ListedToken(TokenLogprob):
    top_logprobs: list[TokenLogprob]
    """The most probable alternatives."""


class ChatLogprobs(AnswerPart):
    content: list[ListedToken]
    """One entry for each output token."""
    refusal: None
    """Always null."""


class CalledFunction(AnswerPart):
    name: str
    """One of the tools."""
    arguments: str
    """JSON."""


class FunctionCall(AnswerPart):
    id: str
    """Named by the tool message that answers it."""
    type: Literal["function"]
    """Only functions are called."""
    function: CalledFunction
    """What is called."""


class AnswerMessage(AnswerPart):
    role: Literal["assistant"]
    """The author."""
    content: str | None
    """The text; null if there are only calls."""
    refusal: None
    """Always null."""
    reasoning: str = ""
    """With `target.reasoning_parser`."""
    tool_calls: list[FunctionCall] = []
    """In the order in which the model has written them."""


class ChatChoice(AnswerChoice):
    message: AnswerMessage
    """The model's answer."""
    logprobs: ChatLogprobs | None
    """With `logprobs`."""
    finish_reason: Literal["stop", "length", "tool_calls"]
    """Why it ended."""


class ChatAnswer(GeneratedAnswer):
    object: Literal["chat.completion"]
    """The kind of this answer."""
    choices: list[ChatChoice]
    """In the order of their index."""
    prompt_logprobs: list[dict[str, PromptToken] | None] = []
    """One for each token of the prompt, with `prompt_logprobs`; null for the first."""


class ResponseAnswer(AnswerPart):
    """With what it repeats of the request, as in OpenAI's API."""

    model_config = ConfigDict(extra="allow")

    id: str
    """Contains the request's id."""
    object: Literal["response"]
    """The kind of this answer."""
    created_at: int
    """Seconds since 1970."""
    status: Literal["completed", "incomplete", "failed"]
    """`incomplete` at `max_output_tokens`."""
    model: str
    """The served model's name."""
    output: list[dict[str, Any]]
    """Items: messages, function calls, reasoning."""
    usage: dict[str, Any]
    """Tokens of input and output."""
    spindle: ChoiceStatistics
    """How it was made."""


class TokenizeAnswer(AnswerPart):
    count: int
    """How many tokens there are."""
    max_model_len: int
    """The model's context."""
    tokens: list[int]
    """Their ids."""
    token_strs: list[str] = []
    """Their entries in the vocabulary, with `return_token_strs`."""


class DetokenizeAnswer(AnswerPart):
    prompt: str
    """The tokens' text."""


class ModelAnswer(AnswerPart):
    id: str
    """The served model's name."""
    object: Literal["model"]
    """The kind of this answer."""
    created: int
    """When the ingress started, in seconds since 1970."""
    owned_by: str
    """Always `spindle`."""
    max_model_len: int
    """The most tokens of prompt and output together."""


class ModelsAnswer(AnswerPart):
    object: Literal["list"]
    """The kind of this answer."""
    data: list[ModelAnswer]
    """The one model."""


class LoadAnswer(AnswerPart):
    server_load: int
    """Choices that are being served."""


class HealthAnswer(AnswerPart):
    status: Literal["ok"]
    """Any replica would serve at once."""
    drafters_down: int
    """Drafters that are lost or still load; nothing waits for them."""


class VersionAnswer(AnswerPart):
    version: str
    """Spindle's."""


class ErrorDetail(AnswerPart):
    message: str
    """Names the field, its limit and the way out."""
    type: str
    """As in OpenAI's API."""
    param: str | None
    """The field."""
    code: str | None
    """Such as `context_length_exceeded`."""
    status: int
    """The HTTP status."""


class ErrorAnswer(AnswerPart):
    error: ErrorDetail
    """What is wrong."""
