"""The forms in which models write tool calls and reasoning, and readers of their parts.

What does not turn out to be a call is content, unchanged; a call whose arguments are malformed
reaches the client as the model wrote it. Arguments are passed on as they arrive.
"""

import json
from collections.abc import Callable, Collection

from deployments.ingress.parsing.parser import Deltas, Reader

Sink = Callable[[str], None]


class Malformed(Exception):
    """The text is not what the format prescribes, or ends too early."""


def ignore(text: str) -> None:
    pass


def rest(sink: Sink) -> Reader[str]:
    while character := (yield):
        sink(character)
    return ""


def until(tag: str, sink: Sink, held: str = "") -> Reader[bool]:
    """Passes on what comes before the tag; false if the text ends without it. `held` was read
    before."""
    while held != tag:
        while not tag.startswith(held):
            sink(held[0])
            held = held[1:]
        character = yield
        if not character:
            for one in held:
                sink(one)
            return False
        held += character
    return True


def space(character: str) -> Reader[str]:
    """Returns the first character that is no white space."""
    while character.isspace():
        character = yield
    return character


def literal(character: str, expected: str) -> Reader[str]:
    """Returns the character after the expected text."""
    for one in expected:
        if character != one:
            raise Malformed
        character = yield
    return character


def value_of(character: str, sink: Sink) -> Reader[str]:
    """Passes on one JSON value and returns the character after it."""
    if character == '"':
        return (yield from quoted(character, sink))
    if character not in ("{", "["):
        while character and character not in ",}]" and not character.isspace():
            sink(character)
            character = yield
        return character
    depth = 0
    while character:
        if character == '"':
            character = yield from quoted(character, sink)
            continue
        sink(character)
        depth += (character in "{[") - (character in "}]")
        character = yield
        if depth == 0:
            return character
    raise Malformed


def string(character: str) -> Reader[tuple[str, str]]:
    """The value of a JSON string, and the character after it."""
    if character != '"':
        raise Malformed
    read: list[str] = []
    character = yield from quoted(character, read.append)
    try:
        return json.loads("".join(read), strict=False), character
    except ValueError:
        raise Malformed from None


def quoted(quote: str, sink: Sink) -> Reader[str]:
    """Passes on a string up to its closing quote, with both quotes, and returns the character
    after it."""
    sink(quote)
    while (character := (yield)) != quote:
        sink(character)
        if character == "\\":
            sink((yield))
        elif not character:
            raise Malformed
    sink(quote)
    return (yield)


def content(out: Deltas) -> Reader[str]:
    """No calls."""
    yield from rest(out.content)
    return ""


def thinking(out: Deltas, opened: bool) -> Reader[str]:
    """Reasoning between <think> and </think>, at the beginning. `opened`: the prompt, or the
    model's habit, begins it already."""
    start = ""
    while start.lstrip() != "<think>":
        character = yield
        start += character
        if not character or not "<think>".startswith(start.lstrip()):
            if not opened:
                return start
            break
    else:
        start = ""
    yield from until("</think>", out.reasoning, start)
    return ""


def hermes(out: Deltas, names: Collection[str] | None = None) -> Reader[str]:
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, among other text. `names`: calls of
    other functions are content."""
    unused = ""
    while (yield from until("<tool_call>", out.content, unused)):
        out.record("<tool_call>")
        try:
            after = yield from _call((yield from space((yield))), out, names)
        except Malformed:
            read = out.recorded()
            if read:
                out.content(read[:-1])
                unused = read[-1]
                continue
            after = ""
        yield from until("</tool_call>", ignore, after)
        unused = ""
    return ""


def llama3_json(out: Deltas, names: Collection[str]) -> Reader[str]:
    """{"name": ..., "parameters": {...}}, several of them separated by semicolons, and no other
    text before them. An object that names no tool is content."""
    out.record()
    try:
        character = yield from space((yield))
        if character == "<":
            character = yield from literal(character, "<|python_tag|>")
        while True:
            character = yield from _call(character, out, names)
            out.record(character)
            character = yield from space(character)
            character = yield from space((yield from literal(character, ";")))
    except Malformed:
        out.content(out.recorded())
    yield from rest(out.content)
    return ""


def call_list(out: Deltas, names: Collection[str]) -> Reader[str]:
    """[{"name": ..., "parameters": {...}}, ...]: what the schema of required calls enforces. A list
    whose first object names no tool is an answer."""
    out.record()
    try:
        character = yield from space((yield))
        expected = "["
        while character != "]" or not out.calls:
            character = yield from space((yield from literal(character, expected)))
            character = yield from _call(character, out, names)
            out.record(character)
            character = yield from space(character)
            expected = ","
        out.record()
    except Malformed:
        out.content(out.recorded())
    yield from rest(out.content)
    return ""


def named_call(out: Deltas, name: str) -> Reader[str]:
    """The arguments of one call whose function is known: what the function's schema enforces."""
    first = yield
    if first:
        out.call(name)
        out.arguments(first)
        yield from rest(out.arguments)
    return ""


def _call(character: str, out: Deltas, names: Collection[str] | None = None) -> Reader[str]:
    """Reads a JSON object with `name` and `arguments` (or `parameters`), in either order, and
    returns the character after it. `names`: the names that are calls; None: all."""
    name = ""
    early: list[str] = []
    """Arguments that come before the name."""
    given = False
    character = yield from space((yield from literal(character, "{")))
    while character != "}":
        key, character = yield from string(character)
        character = yield from space((yield from literal((yield from space(character)), ":")))
        if key == "name" and not name:
            name, character = yield from string(character)
            if not name or (names is not None and name not in names):
                raise Malformed
            if given:
                out.call(name)
                out.arguments("".join(early))
        elif key in ("arguments", "parameters") and not given:
            given = True
            if name:
                out.call(name)
            character = yield from _arguments(character, out.arguments if name else early.append)
        else:
            character = yield from value_of(character, ignore)
        character = yield from space(character)
        if character == ",":
            character = yield from space((yield))
        elif character != "}":
            raise Malformed
    if not name:
        raise Malformed
    if not given:
        out.call(name)
        out.arguments("{}")
    return (yield)


def _arguments(character: str, sink: Sink) -> Reader[str]:
    """Passes on a JSON value, or the text of a string: some models write arguments as one."""
    if character != '"':
        return (yield from value_of(character, sink))
    text, character = yield from string(character)
    sink(text)
    return character
