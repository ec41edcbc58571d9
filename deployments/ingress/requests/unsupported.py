"""Fields of OpenAI's API and of vLLM that would change the text and cannot be honoured: they are
refused, with the way out, unless their value has no effect."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from pydantic_core import PydanticCustomError

UNSUPPORTED = "unsupported"


class Unsupported(NamedTuple):
    problem: str
    """What the client reads, after the field's name."""
    neutral: tuple[object, ...] = ()
    """The values without effect; they are accepted."""


_GRAMMAR = "is not a field here; use response_format or structured_outputs"

SHARED: Mapping[str, Unsupported] = {
    "best_of": Unsupported("only 1 is supported; use n for several choices", (1,)),
    "suffix": Unsupported("text after the output is not supported", ("",)),
    "use_beam_search": Unsupported("beam search is not supported", (False,)),
    "length_penalty": Unsupported("belongs to beam search, which is not supported", (1,)),
    "early_stopping": Unsupported("belongs to beam search, which is not supported", (False,)),
    "logits_processors": Unsupported("code of clients is not run", ([],)),
    "logit_processors": Unsupported("code of clients is not run", ([],)),
    "vllm_xargs": Unsupported("extensions of vLLM's are not run", ({},)),
    "prompt_embeds": Unsupported("embeddings as a prompt are not supported; send text or tokens"),
    "prompt_logprobs": Unsupported("is not a field here; use echo with logprobs"),
    "allowed_token_ids": Unsupported("is not supported; use structured_outputs with choice"),
    "bad_words": Unsupported("is not supported; use logit_bias", ([],)),
    "truncate_prompt_tokens": Unsupported("is not supported; shorten the prompt"),
    "include_stop_str_in_output": Unsupported("stop strings are left out", (False,)),
    "logprob_token_ids": Unsupported("chosen tokens cannot be scored; use logprobs", ([],)),
    "thinking_token_budget": Unsupported("is not supported; use max_tokens", (-1,)),
    "repetition_detection": Unsupported("is not supported; use frequency_penalty"),
    "audio": Unsupported("only text is generated"),
    "modalities": Unsupported("only ['text'] is supported", (["text"],)),
    "web_search_options": Unsupported("there is no search"),
    "functions": Unsupported("is not a field here; use tools", ([],)),
    "function_call": Unsupported("is not a field here; use tool_choice", ("none", "auto")),
    "documents": Unsupported("put them into the messages", ([],)),
    "chat_template": Unsupported("the checkpoint's own is used; see chat_template_kwargs"),
    "add_special_tokens": Unsupported("the chat template adds them", (False,)),
    "echo": Unsupported("is for /v1/completions", (False,)),
    "prompt": Unsupported("is for /v1/completions; use messages"),
    "messages": Unsupported("is for /v1/chat/completions; use prompt"),
    "max_completion_tokens": Unsupported("is not a field here; use max_tokens"),
    "max_output_tokens": Unsupported("is not a field here; use max_tokens"),
    **dict.fromkeys(
        [f"guided_{kind}" for kind in ("json", "regex", "choice", "grammar")],
        Unsupported(_GRAMMAR),
    ),
    "guided_json_object": Unsupported(_GRAMMAR, (False,)),
}
"""By the names that OpenAI's API and vLLM use."""

MESSAGE: Mapping[str, Unsupported] = {
    "refusal": Unsupported("a refusal is no part of a prompt; send it as content"),
    "audio": Unsupported("only text is read"),
    "function_call": Unsupported("is not a field here; use tool_calls"),
    "prefix": Unsupported("is not a field here; use continue_final_message", (False,)),
}
"""In a chat's messages."""

STRUCTURED_OUTPUTS: Mapping[str, Unsupported] = {
    "structural_tag": Unsupported("is not supported; use grammar"),
    "whitespace_pattern": Unsupported("is not supported; use grammar"),
    "disable_any_whitespace": Unsupported("is not supported; use grammar", (False,)),
    "disable_additional_properties": Unsupported(
        "is not supported; set additionalProperties in the schema", (False,)
    ),
}
"""In vLLM's structured_outputs."""


def check_supported(
    given: Mapping[str, Any], unsupported: Mapping[str, Unsupported], fields: Collection[str]
) -> dict[str, Any]:
    """What is given without unsupported names of neutral value; raises a validation error of type
    `unsupported` for one of another value."""
    kept = {}
    for name, value in given.items():
        if name in fields or name not in unsupported:
            kept[name] = value
        elif value not in unsupported[name].neutral:
            problem = unsupported[name].problem
            raise PydanticCustomError(UNSUPPORTED, "{problem}", {"field": name, "problem": problem})
    return kept
