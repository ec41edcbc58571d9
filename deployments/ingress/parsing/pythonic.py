"""Tool calls in the form of Python calls, as Llama 3.2 and 4 write them."""

import ast
import json
from collections.abc import Collection
from typing import Any

from deployments.ingress.parsing.formats import Malformed, listed_calls, literal, quoted, space
from deployments.ingress.parsing.parser import Deltas, Reader


def pythonic(out: Deltas, names: Collection[str]) -> Reader[str]:
    """[f(a=1, b="x"), g()], and no other text before it. A list of anything but tools is
    content."""

    def call(character: str) -> Reader[str]:
        name, character = yield from _name(character)
        if character != "(" or name not in names:
            raise Malformed
        arguments = yield from _arguments()
        out.call(name)
        out.arguments(arguments)
        return (yield)

    return (yield from listed_calls(out, call))


def _name(character: str) -> Reader[tuple[str, str]]:
    name = ""
    while character and (character.isalnum() or character in "_.-"):
        name += character
        character = yield
    return name, character


def _arguments() -> Reader[str]:
    """Reads keyword arguments up to the closing parenthesis and returns them as JSON."""
    values: dict[str, Any] = {}
    character = yield from space((yield))
    while character != ")":
        name, character = yield from _name(character)
        character = yield from literal((yield from space(character)), "=")
        source, character = yield from _source(character)
        values[name] = _evaluate(source)
        if character == ",":
            character = yield from space((yield))
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise Malformed from None


def _source(character: str) -> Reader[tuple[str, str]]:
    """One expression, and the comma or parenthesis after it."""
    read: list[str] = []
    depth = 0
    while depth or character not in (",", ")"):
        if not character:
            raise Malformed
        if character in "\"'":
            character = yield from quoted(character, read.append)
            continue
        read.append(character)
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            raise Malformed
        character = yield
    return "".join(read), character


def _evaluate(source: str) -> Any:
    try:
        return _json_value(ast.parse(source.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Malformed from None


def _json_value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.Name(id="true" | "false" | "null" as name):
            return json.loads(name)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_json_value(one) for one in elements]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _json_value(one) for key, one in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    raise Malformed


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise Malformed
