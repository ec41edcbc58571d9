"""The coordinator's side of the draft protocol, reduced to what drafter tests need."""

from collections.abc import Sequence

from engine.protocol import Draft, Drafter, DraftOrder, Prefix, Start
from engine.sampling.params import SamplingParams
from engine.scopes import SHARED, Scope
from engine.soft_state import CommittedTokens
from policies.tree import DraftTree


class Stream:
    """One request's committed tokens; each order carries those the drafter has not seen."""

    def __init__(
        self,
        name: str,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        seed: int = 0,
        scope: Scope = SHARED,
    ) -> None:
        self.name = name
        self.params = params or SamplingParams()
        self.seed = seed
        self.scope = scope
        self.prompt_len = len(prompt)
        self.committed = CommittedTokens()
        self.committed.extend(prompt)
        self.seen = 0
        self.round = 0

    def prefix(self) -> Prefix:
        start = None
        if self.seen == 0:
            start = Start(self.params, self.seed, self.prompt_len, self.scope)
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
