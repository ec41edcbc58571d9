"""The coordinator's side of the draft protocol, reduced to what drafter tests need, and what a
drafter's tree must be."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.protocol import Draft, Drafter, DraftOrder, Prefix, Start
from engine.sampling.params import SamplingParams
from engine.scopes import SHARED, Scope
from engine.soft_state import CommittedTokens
from policies.tree import ROOT, DraftTree
from tests import reference


class Stream:
    """One request's committed tokens; each order carries those the drafter has not seen."""

    def __init__(
        self,
        name: str,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        seed: int = 0,
        scope: Scope = SHARED,
        remember: bool = True,
    ) -> None:
        self.name = name
        self.params = params or SamplingParams()
        self.seed = seed
        self.scope = scope
        self.remember = remember
        self.prompt_len = len(prompt)
        self.committed = CommittedTokens()
        self.committed.extend(prompt)
        self.seen = 0
        self.round = 0

    def prefix(self) -> Prefix:
        start = None
        if self.seen == 0:
            start = Start(self.params, self.seed, self.prompt_len, self.scope, self.remember)
        self.round += 1
        return Prefix(
            request=self.name,
            attempt=0,
            round=self.round,
            base=self.seen,
            base_hash=self.committed.hashes[self.seen],
            delta=tuple(self.committed.ids[self.seen :]),
            start=start,
        )

    def order(self, depth: int, width: int = 1) -> DraftOrder:
        order = DraftOrder(self.prefix(), depth, width)
        self.seen = len(self.committed)
        return order

    def draft(self, drafter: Drafter, depth: int, width: int = 1) -> DraftTree:
        (answer,) = drafter.draft([self.order(depth, width)])
        assert isinstance(answer, Draft)
        assert (answer.request, answer.attempt, answer.round) == (self.name, 0, self.round)
        return answer.tree


def token_paths(tree: DraftTree) -> list[list[int]]:
    """The tokens from the root to each node, in the tree's order."""
    return [tree.tokens[tree.path(node)].tolist() for node in range(len(tree))]


def assert_equal(tree: DraftTree, expected: DraftTree, tolerance: float = 1e-4) -> None:
    assert token_paths(tree) == token_paths(expected)
    assert tree.parents.tolist() == expected.parents.tolist()
    assert tree.depth.tolist() == expected.depth.tolist()
    np.testing.assert_allclose(tree.confidence, expected.confidence, atol=tolerance)


def beam_search(
    logits_after: Callable[[list[int]], NDArray[np.float64]], stream: Stream, depth: int, width: int
) -> DraftTree:
    """The definition, one path at a time: of all children of a level the `width` best."""
    tokens: list[int] = []
    parents: list[int] = []
    confidence: list[float] = []
    frontier: list[tuple[int, list[int], float]] = [(ROOT, [], 1.0)]
    for _ in range(depth):
        children = []
        for node, path, path_confidence in frontier:
            before = stream.committed.ids + path
            scores = reference.perturbed(
                logits_after(before), before, stream.prompt_len, stream.params, stream.seed
            )
            raw = reference.softmax(scores * (stream.params.temperature or 1.0))
            for token in np.argsort(-scores)[:width].tolist():
                if raw[token] > 0:
                    children.append((path_confidence * raw[token], node, path, token, raw[token]))
        children.sort(key=lambda child: -child[0])
        frontier = []
        for path_confidence, node, path, token, raw_confidence in children[:width]:
            frontier.append((len(tokens), [*path, token], path_confidence))
            tokens.append(token)
            parents.append(node)
            confidence.append(raw_confidence)
    return DraftTree.build(tokens, parents, confidence)
