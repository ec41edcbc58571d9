"""One call of xgrammar's compiler, for the processes that use the result and for the one that tries
it first (engine/grammar/trial_process.py)."""

from collections.abc import Sequence
from typing import NamedTuple

import xgrammar

from engine.grammar.json_rewrite import followable
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
