"""Values for the fields of hostile requests: extreme, of wrong types, and allowed but rare."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from cluster.built_in_models import TARGET

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, TOKENIZE, DETOKENIZE = "/v1/responses", "/tokenize", "/detokenize"

_TEXT = st.text(max_size=30) | st.sampled_from(
    ["", "\x00", "\ud800", "\U0001f642" * 300, "x" * 20_000, "<|end|>", "{{ 1 / 0 }}", "\r\n\r\n"]
)
_NUMBERS = st.sampled_from(
    [
        *(0, 1, -1, -2, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**53 + 1, 2**63, 2**64, 10**400),
        *(0.5, -0.0, 1e-320, 1e-300, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
    ]
)


def _nested(levels: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT | _NUMBERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=8,
)
_DEEP = [_nested(levels, kind) for levels in (64, 200, 300, 600) for kind in (list, dict)]
ANY: st.SearchStrategy[Any] = (
    _JSON
    | _NUMBERS
    | st.sampled_from(_DEEP)
    | st.sampled_from([[], {}, [[]], [None], {"": None}, [[[[[[]]]]]], [5] * 3000])
)

_SCHEMAS = st.sampled_from(
    [
        {},
        {"type": "object"},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "maxLength": 10**6},
        {"type": "integer", "minimum": 5, "maximum": 1},
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/missing"},
        {"enum": []},
        {"enum": [1, "a", None, {}]},
        {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(60)}},
        {"anyOf": [{"type": "object", "required": ["a"]}, False]},
        {"type": ["string", "nothing"]},
        {"not": {}},
    ]
) | st.dictionaries(
    st.sampled_from(["type", "properties", "items", "enum", "const", "anyOf", "$ref", "required"]),
    _JSON,
    max_size=3,
)
_PATTERNS = st.sampled_from(
    ["", "a", "(", "[z-a]", "a{400}", "a{99999}", "(a*)*", "(?<=x)y", "\\", ".*" * 50, "(" * 500]
)
_GRAMMARS = st.sampled_from(
    [
        'root ::= "a"',
        'root ::= root "a"',
        "root ::= missing",
        'start ::= "a"',
        'root ::= "a" root | ""',
        'root ::= "' + "x" * 5000 + '"',
        "root ::= [^a]{1,400}",
        "::=",
    ]
)
_FORMS = st.one_of(
    st.builds(lambda schema: {"json": schema}, _SCHEMAS),
    st.builds(lambda pattern: {"regex": pattern}, _PATTERNS | _TEXT),
    st.builds(lambda text: {"grammar": text}, _GRAMMARS | _TEXT),
    st.builds(lambda texts: {"choice": texts}, st.lists(_TEXT, max_size=5)),
    st.just({"json_object": True}),
    st.just({"json_object": True, "regex": "a"}),
)
_FORMATS = st.one_of(
    st.builds(
        lambda schema: {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        _SCHEMAS,
    ),
    st.sampled_from([{"type": "json_object"}, {"type": "text"}, {"type": "xml"}, {"type": None}]),
)
_TOOLS = st.lists(
    st.builds(
        lambda name, schema: {"type": "function", "function": {"name": name, "parameters": schema}},
        st.sampled_from(["f", "g", "", "a b", "x" * 200]),
        _SCHEMAS,
    ),
    max_size=3,
)
_MESSAGES = st.lists(
    st.builds(
        lambda role, content, others: {"role": role, "content": content, **others},
        st.sampled_from(["user", "system", "assistant", "tool", "developer", "root", ""]),
        _TEXT | ANY | st.just([{"type": "text", "text": "x"}, {"type": "image_url"}]),
        st.dictionaries(
            st.sampled_from(["name", "tool_calls", "tool_call_id", "reasoning", "color"]),
            ANY,
            max_size=1,
        ),
    ),
    max_size=4,
)
_TOKENS = st.lists(st.integers(0, 2047) | st.sampled_from([-1, 2048, 2**31, 2**63]), max_size=20)
_FLOATS = st.floats(0, 2) | _NUMBERS
_COUNTS = st.integers(0, 30) | _NUMBERS
_SAMPLING: Mapping[str, st.SearchStrategy[Any]] = {
    "model": _TEXT,
    "n": st.integers(1, 4) | _NUMBERS,
    "temperature": _FLOATS,
    "top_p": _FLOATS,
    "top_k": _COUNTS,
    "min_p": _FLOATS,
    "presence_penalty": _FLOATS,
    "frequency_penalty": _FLOATS,
    "repetition_penalty": _FLOATS,
    "logit_bias": st.dictionaries(
        st.integers(-1, 2100).map(str) | _TEXT, st.floats(-100, 100) | _NUMBERS, max_size=5
    ),
    "stop": st.lists(_TEXT, max_size=5) | _TEXT,
    "stop_token_ids": _TOKENS | st.just(list(range(2048))),
    "allowed_token_ids": _TOKENS,
    "bad_words": st.lists(_TEXT, max_size=4),
    "min_tokens": _COUNTS,
    "max_tokens": _COUNTS,
    "ignore_eos": st.booleans(),
    "seed": st.integers(0, 2**64 - 1) | _NUMBERS,
    "stream": st.booleans(),
    "stream_options": st.sampled_from([{"include_usage": True}, {"continuous_usage_stats": True}]),
    "logprobs": st.booleans() | st.integers(0, 21),
    "echo": st.booleans(),
    "truncate_prompt_tokens": _COUNTS,
    "truncation_side": st.sampled_from(["left", "right", "middle"]),
    "prompt_logprobs": st.integers(0, 21) | _NUMBERS,
    "spindle": st.sampled_from([{"trace": True}, {"trace": 1}, {"traces": True}]),
    "structured_outputs": _FORMS,
    "response_format": _FORMATS,
    "return_token_ids": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "request_id": _TEXT,
    "unknown": ANY,
    "slo": st.sampled_from([{"tpot_ms": 1e-3}, {"ttft_ms": 1, "tpot_ms": 8.64e7}, "fast", {}]),
    "priority": st.integers(-1, 1) | _NUMBERS,
    "speculation": st.sampled_from(
        [
            "off",
            "tiny",
            "ngram",
            "nothing",
            {"off": True},
            {"max_depth": 2**63},
            {"max_depth": 1},
            {"max_depth": 2**31 - 1},
        ]
    ),
}
_CONVERSATION: Mapping[str, st.SearchStrategy[Any]] = {
    "messages": _MESSAGES,
    "tools": _TOOLS,
    "tool_choice": st.sampled_from(
        ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}]
    ),
    "parallel_tool_calls": st.booleans(),
    "max_completion_tokens": _COUNTS,
    "top_logprobs": st.integers(0, 21),
    "chat_template_kwargs": st.dictionaries(_TEXT, ANY, max_size=2),
    "add_generation_prompt": st.booleans(),
    "continue_final_message": st.booleans(),
}
FIELDS: Mapping[str, Mapping[str, st.SearchStrategy[Any]]] = {
    COMPLETIONS: {
        **_SAMPLING,
        "prompt": _TEXT | _TOKENS | st.lists(_TEXT | _TOKENS, max_size=4),
        "add_special_tokens": st.booleans(),
    },
    CHAT: {**_SAMPLING, **_CONVERSATION},
    RESPONSES: {
        **_SAMPLING,
        "input": _TEXT | _MESSAGES | st.lists(ANY, max_size=3),
        "instructions": _TEXT,
        "max_output_tokens": _COUNTS,
        "text": st.builds(
            lambda form, schema: {"format": {**form, "name": "a", "schema": schema}},
            _FORMATS,
            _SCHEMAS,
        ),
        "tools": st.builds(
            lambda tools: [{**t["function"], "type": t["type"]} for t in tools], _TOOLS
        ),
        "tool_choice": _CONVERSATION["tool_choice"],
        "include": st.just(["message.output_text.logprobs"]),
        "top_logprobs": st.integers(0, 21),
        "previous_response_id": _TEXT,
        "metadata": st.dictionaries(_TEXT, ANY, max_size=2),
    },
    TOKENIZE: {
        "prompt": _TEXT,
        "messages": _MESSAGES,
        "tools": _TOOLS,
        "chat_template_kwargs": st.dictionaries(_TEXT, ANY, max_size=2),
        "add_generation_prompt": st.booleans(),
        "continue_final_message": st.booleans(),
        "add_special_tokens": st.booleans(),
        "return_token_strs": st.booleans(),
    },
    DETOKENIZE: {"tokens": _TOKENS},
}
"""By path and name."""
BASE: Mapping[str, Mapping[str, Any]] = {
    COMPLETIONS: {"model": TARGET, "prompt": "1, 2, 3,", "max_tokens": 4},
    CHAT: {"model": TARGET, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    RESPONSES: {"model": TARGET, "input": "Hi", "max_output_tokens": 4},
    TOKENIZE: {"prompt": "1, 2, 3,"},
    DETOKENIZE: {"tokens": [5, 6, 7]},
}
"""Requests that are answered with 200, by path."""
