"""Readers of single parts of a text: up to a tag, a JSON value, a quoted string."""

import json
from collections.abc import Callable

from deployments.ingress.parsing.parser import Reader

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
    """Returns the character behind the expected text."""
    for one in expected:
        if character != one:
            raise Malformed
        character = yield
    return character


def value_of(character: str, sink: Sink) -> Reader[str]:
    """Passes on one JSON value and returns the character behind it."""
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
    """The value of a JSON string, and the character behind it."""
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
    behind it."""
    sink(quote)
    while (character := (yield)) != quote:
        sink(character)
        if character == "\\":
            sink((yield))
        elif not character:
            raise Malformed
    sink(quote)
    return (yield)
