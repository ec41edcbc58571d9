"""Recorded outputs of models, cut at every place: calls, content and reasoning are the same."""

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.ingress.parsing.formats import call_list, hermes, llama3_json, named_call, thinking
from deployments.ingress.parsing.parser import (
    CallArguments,
    CallStart,
    Content,
    Delta,
    Format,
    FormatParser,
    Reasoning,
)

NAMES = ("get_weather", "search", "now")
FORMATS: dict[str, Format] = {
    "hermes": hermes,
    "llama3_json": partial(llama3_json, names=NAMES),
    "call_list": partial(call_list, names=NAMES),
}
PARIS = ("get_weather", '{"city": "Paris", "days": 3}')
CALLS: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    # Qwen2.5 and Qwen3, Hermes 2 Pro
    (
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n'
        "</tool_call>",
        "",
        [PARIS],
    ),
    (
        "hermes",
        "Let me see.\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n'
        '</tool_call>\n<tool_call>\n{"name": "search", "arguments": {"text": "a \\"}\\" \\u00e9 '
        '</tool_call>"}}\n</tool_call>\n',
        "Let me see.",
        [PARIS, ("search", '{"text": "a \\"}\\" \\u00e9 </tool_call>"}')],
    ),
    # The other order, arguments as a string, none at all
    (
        "hermes",
        '<tool_call>{"arguments": {"city": "Paris", "days": 3}, "name": "get_weather"}</tool_call>',
        "",
        [PARIS],
    ),
    (
        "hermes",
        '<tool_call>{"name": "search", "arguments": "{\\"text\\": \\"a\\"}"}</tool_call>'
        '<tool_call>{"name": "now"}</tool_call> Both at once.',
        "Both at once.",
        [("search", '{"text": "a"}'), ("now", "{}")],
    ),
    # A superfluous brace, as small models write it, and no end
    (
        "hermes",
        '<tool_call>\n{"name": "now", "arguments": {}}}\n</tool_call>\n<tool_call>\n'
        '{"name": "search", "arguments": {"text": "unfin',
        "",
        [("now", "{}"), ("search", '{"text": "unfin')],
    ),
    # Llama 3.1 and 3.2
    (
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}',
        "",
        [PARIS],
    ),
    (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}; {"name": '
        '"get_weather", "parameters": {"city": "Paris", "days": 3}}',
        "",
        [("now", "{}"), PARIS],
    ),
    (
        "call_list",
        '[{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}, {"name": "now",'
        ' "parameters": {}}]',
        "",
        [PARIS, ("now", "{}")],
    ),
]  # fmt: skip
NO_CALLS = [
    ("hermes", " No call,\n but 1 < 2 <tool and\n\n"),
    ("hermes", "It writes <tool_call> for one."),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>[1]</tool_call> <tool_call>\n"),
    ("llama3_json", '{"name": "Bob", "parameters": {"age": 3}}'),
    ("llama3_json", '{"answer": [1, {"name": "search"}]} and more; {"name": "now"}'),
    ("llama3_json", "  <b>Bold</b>"),
    ("llama3_json", '{"name": "get_weather"'),
    ("call_list", '[{"name": "Bob", "age": 3}]'),
]


def parse(parser: FormatParser, pieces: Sequence[str]) -> list[Delta]:
    return [*(delta for piece in pieces for delta in parser.push(piece)), *parser.finish()]


def summary(deltas: Sequence[Delta]) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content, and each call's name and arguments."""
    starts = [one for one in deltas if isinstance(one, CallStart)]
    assert [one.index for one in starts] == list(range(len(starts)))
    assert len({one.id for one in starts}) == len(starts)
    arguments = ["" for _ in starts]
    for one in deltas:
        if isinstance(one, CallArguments):
            arguments[one.index] += one.text
    return (
        "".join(one.text for one in deltas if isinstance(one, Reasoning)),
        "".join(one.text for one in deltas if isinstance(one, Content)),
        [(start.name, text) for start, text in zip(starts, arguments, strict=True)],
    )


def cuts(text: str) -> list[list[str]]:
    """The text whole, by characters, and cut at each single place."""
    return [[text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CALLS)
def test_calls_however_the_text_is_cut(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    for pieces in cuts(text):
        found = parse(FormatParser([FORMATS[name]]), pieces)
        assert summary(found) == ("", content, calls), pieces


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_is_content_unchanged(name: str, text: str) -> None:
    for pieces in cuts(text):
        found = parse(FormatParser([FORMATS[name]]), pieces)
        assert summary(found) == ("", text, []), pieces


@pytest.mark.parametrize("name", FORMATS)
@given(text=st.text(st.sampled_from("<tool_call>{}[]\"':,;= \nnowsearch()\\"), max_size=60))
def test_no_text_is_lost_or_breaks_a_parser(name: str, text: str) -> None:
    whole = summary(parse(FormatParser([FORMATS[name]]), [text]))
    assert summary(parse(FormatParser([FORMATS[name]]), list(text))) == whole
    if not whole[2]:
        assert whole[1] == text


def test_arguments_are_passed_on_as_they_arrive() -> None:
    text = CALLS[0][1]
    parser = FormatParser([hermes])
    sent = ""
    for at, character in enumerate(text):
        for delta in parser.push(character):
            if isinstance(delta, CallArguments):
                assert delta.text == character
                sent += delta.text
        opened = text.index('{"city')
        assert sent == text[opened : at + 1][: len(PARIS[1])] if at >= opened else not sent
    assert sent == PARIS[1]


def test_a_named_call_is_all_of_the_text() -> None:
    for pieces in cuts(PARIS[1]):
        found = parse(FormatParser([partial(named_call, name="get_weather")]), pieces)
        assert summary(found) == ("", "", [PARIS])
    assert parse(FormatParser([partial(named_call, name="get_weather")]), []) == []


def test_without_parallel_calls_only_the_first_is_kept() -> None:
    text = CALLS[1][1]
    found = parse(FormatParser([hermes], parallel=False), [text])
    assert summary(found) == ("", "Let me see.", [PARIS])


@pytest.mark.parametrize(
    ("opened", "text", "reasoning", "content"),
    [
        (False, "<think>\nHm, 1 < 2.\n\nYes.\n</think>\n\nYes. ", "Hm, 1 < 2.\n\nYes.", "Yes. "),
        (True, "Hm.</think>Yes.", "Hm.", "Yes."),
        (True, "\n<think>Hm.</think>Yes.", "Hm.", "Yes."),
        (True, "Hm, unfinished", "Hm, unfinished", ""),
        (False, " <thin air> </think>", "", " <thin air> </think>"),
        (False, "<think></think>Yes.", "", "Yes."),
    ],
)
def test_reasoning_comes_before_the_content(
    opened: bool, text: str, reasoning: str, content: str
) -> None:
    for pieces in cuts(text):
        found = parse(FormatParser([partial(thinking, opened=opened), hermes]), pieces)
        assert summary(found) == (reasoning, content, []), pieces


def test_calls_after_reasoning_but_not_in_it() -> None:
    call = CALLS[0][1]
    text = f"<think>\nI write {call} soon.\n</think>\n\n{call}"
    for pieces in cuts(text):
        found = parse(FormatParser([partial(thinking, opened=False), hermes]), pieces)
        assert summary(found) == (f"I write {call} soon.", "", [PARIS]), pieces
