"""Outputs that a grammar allows, drawn at random: what a model without any sense would write."""

import numpy as np

from engine.grammar.compiler import Compiled
from engine.grammar.matcher import OutputMatcher
from engine.sampling.params import SamplingParams

STOP = 4
"""The zoo's token that ends an output."""
VOCAB = 2048
_PARAMS = SamplingParams(stop_token_ids=(STOP,))


def random_output(
    compiled: Compiled, rng: np.random.Generator, longest: int = 300
) -> list[int] | None:
    """The tokens without the stop token; None if no end was reached."""
    matcher = OutputMatcher(compiled, _PARAMS, VOCAB)
    output: list[int] = []
    while len(output) < longest:
        allowed = tokens_of(matcher.allowed())
        if STOP in allowed and (len(allowed) == 1 or rng.random() < 0.5):
            return output
        output.append(int(rng.choice(allowed[allowed != STOP])))
        matcher.follow(output)
    return None


def tokens_of(words: np.ndarray | None) -> np.ndarray:
    """The ids of the tokens whose bits are set."""
    assert words is not None
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
