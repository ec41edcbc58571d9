"""The tokens that a grammar allows, from the definition: all output is read again for each one."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cluster.built_in_models import TARGET, model_path
from engine.grammar.compiler import Compiled, Grammars
from engine.grammar.spec import OutputGrammar
from engine.sampling.params import SamplingParams

VOCAB = 2048
Allowed = Callable[[Sequence[int]], NDArray[np.bool_]]
"""By the output so far, for each token of the zoo's vocabulary."""


@cache
def grammars() -> Grammars:
    """Shared by all hosts of a test process; a host of its own has its own."""
    return Grammars(model_path(TARGET), VOCAB)


@cache
def _compiled(grammar: OutputGrammar) -> Compiled:
    return grammars().compile(grammar).result()


def allowed_by(params: SamplingParams) -> Allowed:
    """`params` must have a grammar and name every stop token."""
    assert params.grammar is not None
    compiled, stops = _compiled(params.grammar), list(params.stop_token_ids)

    def allowed(output: Sequence[int]) -> NDArray[np.bool_]:
        matcher = compiled.matcher.deep_copy()
        for token in output:
            assert matcher.consume_token(token), f"{token} in {output} is not of the grammar"
        words = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        text = np.unpackbits(words, bitorder="little")[:VOCAB].astype(bool)
        both = text.copy()
        both[stops] = matcher.is_accepting()
        held = params.ignore_eos or len(output) < params.min_tokens
        return text if held and text.any() else both

    return allowed
