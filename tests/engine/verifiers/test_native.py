"""What only the native verifier supports: draft trees.

The protocol that every backend keeps is tested in test_contract.py.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model import PackedModel
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from policies.tree import ROOT, DraftTree
from tests import prompt_logprobs, reference
from tests.checkpoints import eager_llama, llama
from tests.engine.verifiers.orders import order, verdict

VOCAB = 11
"""Small, so that random trees often contain the target's tokens."""
SHAPE = {"vocab": VOCAB, "context": 1280}


@pytest.fixture(scope="module")
def verifier() -> NativeVerifier:
    return NativeVerifier(PackedModel(llama(**SHAPE), kv_tokens=2048))


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    for node in range(draw(st.integers(0, 14))):
        # Siblings have different tokens, so a node has at most VOCAB children.
        candidates = [one for one in range(ROOT, node) if parents.count(one) < VOCAB]
        parent = draw(st.sampled_from(candidates))
        taken = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        tokens.append(draw(st.sampled_from(sorted(set(range(VOCAB)) - taken))))
        parents.append(parent)
    return DraftTree.build(tokens, parents, [0.5] * len(tokens))


def brute_force(tree: DraftTree, output: Sequence[int]) -> int:
    """Tree acceptance by its definition (AdaServe): the length of the longest prefix of the
    target's output that is a node's path."""
    paths = [tree.tokens[tree.path(node)].tolist() for node in range(len(tree))]
    lengths = range(len(output) + 1)
    return max((n for n in lengths if n == 0 or list(output[:n]) in paths), default=0)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    tree=trees(),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    params=st.sampled_from(
        [
            SamplingParams(temperature=0, max_tokens=16),
            SamplingParams(temperature=1, max_tokens=16),
            SamplingParams(temperature=0.7, frequency_penalty=1.5, max_tokens=16),
        ]
    ),
)
def test_a_tree_is_accepted_as_far_as_a_path_equals_the_targets_tokens(
    tree: DraftTree,
    prompt: list[int],
    params: SamplingParams,
    verifier: NativeVerifier,
) -> None:
    expected = reference.generate(eager_llama(**SHAPE), prompt, params, seed=7)
    verifier.forget(["tree"])
    answer = verdict(verifier, order("tree", prompt, tree, params=params))
    accepted = brute_force(tree, expected)
    assert tree.tokens[list(answer.accepted)].tolist() == expected[:accepted]
    assert list(answer.tokens) == expected[: accepted + 1]
    # The KV rows that it keeps serve the next order.
    committed = [*prompt, *answer.tokens]
    following = order("tree", committed, base=len(committed), prompt_len=len(prompt))
    assert verdict(verifier, following).tokens == (expected[accepted + 1],)


def test_logprobs_equal_the_stock_models_along_the_accepted_path(verifier: NativeVerifier) -> None:
    params = SamplingParams(temperature=0, logprobs=2, max_tokens=4)
    prompt = [5, 3, 8]
    expected = reference.generate(eager_llama(**SHAPE), prompt, params, seed=7)
    wrong = (expected[0] + 1) % VOCAB
    tree = DraftTree.build([wrong, expected[0], expected[1]], [ROOT, ROOT, 1], [0.1, 0.9, 0.9])
    verifier.forget(["logprobs"])
    answer = verdict(verifier, order("logprobs", prompt, tree, params=params))
    assert answer.tokens == tuple(expected[:3])
    whole = [*prompt, *expected[:3]]
    prompt_logprobs.check(eager_llama(**SHAPE), whole, 2, answer.logprobs, first=len(prompt))
