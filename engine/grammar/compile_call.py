"""One call of xgrammar's compiler, for the processes that use the result and for the one that tries
it first (engine/grammar/trial_process.py)."""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import xgrammar

from engine.grammar.schema_words import asserted, subschemas
from engine.grammar.size import can_be_shared
from engine.grammar.spec import OutputGrammar

MAX_WHITESPACE = 16
"""Between two elements of JSON, so that a model cannot go on with spaces for ever."""


class Vocabulary(NamedTuple):
    of_tokens: list[bytes]
    """The tokens' texts by their ids; empty for special tokens."""
    add_prefix_space: bool
    size: int
    """The model's, which may be larger than the tokenizer's."""


def make_compiler(vocabulary: Vocabulary) -> xgrammar.GrammarCompiler:
    info = xgrammar.TokenizerInfo(
        vocabulary.of_tokens,
        xgrammar.VocabType.RAW,
        vocab_size=vocabulary.size,
        stop_token_ids=[],
        add_prefix_space=vocabulary.add_prefix_space,
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def compile_with(
    compiler: xgrammar.GrammarCompiler, grammar: OutputGrammar
) -> xgrammar.CompiledGrammar:
    """Raises what xgrammar raises, RuntimeError mostly."""
    match grammar.kind:
        case "json_object" | "json_schema":
            return compiler.compile_json_schema(
                followable(grammar.schema), max_whitespace_cnt=MAX_WHITESPACE
            )
        case "regex":
            return compiler.compile_regex(grammar.text)
        case "choice":
            return compiler.compile_grammar(_choice_rule(grammar.choices))
        case "grammar":
            return compiler.compile_grammar(grammar.text)


def _choice_rule(choices: Sequence[str]) -> str:
    """Written with escapes only, so that no text is read as part of the grammar."""
    quoted = ('"' + "".join(f"\\U{ord(sign):08x}" for sign in choice) + '"' for choice in choices)
    return "root ::= " + " | ".join(quoted)


# xgrammar allows raw control characters in strings with a bounded length, days that no month has,
# and IPv4 numbers with leading zeros. As patterns, all of these are followed. Outputs are then a
# part of what the schema allows: no 29 February, no escapes in strings of bounded length.
_CHARACTER = r"[^\x00-\x1f\x22\x5c\x7f]"
_DATE = (
    "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_ZONE = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
_PATTERNS = {
    "date": _DATE,
    "time": _CLOCK + _ZONE,
    "date-time": f"{_DATE}T{_CLOCK}{_ZONE}",
    "ipv4": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
}


def followable(schema_text: str) -> str:
    """The schema (which `check_schema` has passed) with patterns in place of the keywords
    that xgrammar does not follow exactly."""
    schema: Any = json.loads(schema_text)
    for _, one in subschemas(schema):
        if isinstance(one, dict):
            if "minLength" in one or "maxLength" in one:
                least, most = one.pop("minLength", 0), one.pop("maxLength", "")
                one["pattern"] = f"^{_CHARACTER}{{{least},{most}}}$"
            elif one.get("format") in _PATTERNS:
                one["pattern"] = f"^{_PATTERNS[one.pop('format')]}$"
    _share_patterns(schema)
    return json.dumps(schema)


def _share_patterns(schema: Any) -> None:
    """Puts a reference in the place of each schema of texts with a pattern that occurs again: each
    bounded length of 40 takes a quarter of a second to compile for 49,152 tokens."""
    alike: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path, one in subschemas(schema):
        if isinstance(one, dict) and "pattern" in one and can_be_shared(path, one):
            alike[json.dumps(asserted(one), sort_keys=True)].append(one)
    for number, (shared, places) in enumerate(alike.items()):
        if len(places) > 1:
            name = f"spindle_shared_{number}"
            for place in places:
                place.clear()
                place["$ref"] = f"#/$defs/{name}"
            schema.setdefault("$defs", {})[name] = json.loads(shared)
