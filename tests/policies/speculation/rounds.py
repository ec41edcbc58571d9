"""Small rounds for tests: trees of distinct path probabilities, and brute force over them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from policies.cost import CostModel, ForwardCost
from policies.estimates.acceptance import AcceptanceEstimates
from policies.flat_trees import flatten
from policies.protocols import Candidates, Mask, RoundContext, Speculation
from policies.request import LaneView, RequestView, Slo
from policies.tree import ROOT, DraftTree
from tests.policies.tree_lists import path_confidence


class Candidate(NamedTuple):
    """The proposals for one request: a row of Candidates."""

    request: RequestView
    tree: DraftTree
    drafting_s: float = 0.0
    lanes: Sequence[str] = ()
    sources: NDArray[np.int64] | None = None


SEEDED = settings(deadline=None, derandomize=True)
"""Settings of hypothesis: the same examples on every machine, without a deadline."""

VERIFY = ForwardCost(alpha=1e-6, gamma=4e-4, delta=8e-3)
DRAFT = ForwardCost(alpha=0.0, gamma=2e-5, delta=5e-4)


def view(
    name: str,
    *,
    tpot_s: float | None = None,
    generated: int = 1,
    first_token_s: float | None = 0.0,
    prompt_len: int = 100,
    max_tokens: int = 1000,
) -> RequestView:
    return RequestView(
        name,
        arrival_s=0.0,
        prompt_len=prompt_len,
        max_tokens=max_tokens,
        slo=Slo(tpot_s=tpot_s),
        generated=generated,
        first_token_s=first_token_s,
    )


def round_context(
    *,
    verify: CostModel = VERIFY,
    draft: CostModel | None = DRAFT,
    verify_budget: int = 10_000,
    draft_budget: int = 10_000,
    most_tokens: int = 10_000,
    prefill_tokens: int = 0,
    waiting_s: float = 0.0,
    handling_s: float = 0.0,
) -> RoundContext:
    """One costly lane, `lane`, and the free lane `lookup`."""
    lanes = [LaneView(name, name, capacity=100) for name in ("lane", "lookup")]
    free = ["lookup"] if draft else ["lane", "lookup"]
    return RoundContext(
        verify=verify,
        draft={} if draft is None else {"lane": draft},
        verify_budget=verify_budget,
        draft_budgets={} if draft is None else {"lane": draft_budget},
        most_tokens=most_tokens,
        acceptance=AcceptanceEstimates(lanes, free),
        prefill_tokens=prefill_tokens,
        waiting_s=waiting_s,
        handling_s=handling_s,
    )


def candidates(
    trees: Sequence[DraftTree], tpots: Sequence[float | None] = (), drafting_s: float = 0.0
) -> list[Candidate]:
    all_tpots = list(tpots) or [None] * len(trees)
    return [
        Candidate(view(f"r{number}", tpot_s=tpot), tree, drafting_s)
        for number, (tree, tpot) in enumerate(zip(trees, all_tpots, strict=True))
    ]


def together(chosen: Sequence[Candidate]) -> Candidates:
    """As the coordinator passes them to a policy."""
    sources = None
    if any(one.sources is not None for one in chosen):
        sources = np.concatenate([one.sources for one in chosen if one.sources is not None])
    return Candidates(
        [one.request for one in chosen],
        flatten([one.tree for one in chosen]),
        [one.drafting_s for one in chosen],
        [one.lanes for one in chosen],
        sources,
    )


def selected(
    policy: Speculation, chosen: Sequence[Candidate], context: RoundContext, now: float
) -> list[Mask]:
    """The selected nodes of each tree; as the coordinator does, the acceptance estimates are
    credited with all nodes before."""
    candidates = together(chosen)
    context.acceptance.credit(
        [one.request.name for one in chosen], candidates.trees, candidates.lanes, candidates.sources
    )
    return by_tree(policy.select(candidates, context, now), candidates.trees.starts)


def by_tree(mask: Mask, starts: NDArray[np.int64]) -> list[Mask]:
    return [mask[begin:end] for begin, end in pairwise(starts.tolist())]


@st.composite
def trees(draw: st.DrawFn, *, nodes: int = 6) -> DraftTree:
    """Confidences are real numbers drawn by a seed, so path probabilities are distinct."""
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(draw(st.integers(0, nodes)))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_tree(rng, parents)


def random_tree(rng: np.random.Generator, parents: Sequence[int]) -> DraftTree:
    """Each sibling takes a part of the probability that those before it have left."""
    confidence = []
    left: dict[int, float] = {}
    for parent in parents:
        confidence.append(left.get(parent, 1.0) * float(rng.uniform(0.05, 0.95)))
        left[parent] = left.get(parent, 1.0) - confidence[-1]
    return DraftTree.build(list(range(len(parents))), list(parents), confidence)


def random_trees(rng: np.random.Generator, count: int, nodes: int) -> list[DraftTree]:
    return [
        random_tree(rng, [int(rng.integers(ROOT, node)) for node in range(nodes)])
        for _ in range(count)
    ]


def is_whole(tree: DraftTree, mask: Mask) -> bool:
    """Every kept node's parent is kept."""
    return all(
        tree.parents[node] == ROOT or mask[tree.parents[node]] for node in np.flatnonzero(mask)
    )


def whole_subsets(tree: DraftTree) -> Iterator[Mask]:
    for bits in product([False, True], repeat=len(tree)):
        mask = np.array(bits, np.bool_)
        if is_whole(tree, mask):
            yield mask


def all_selections(trees: Sequence[DraftTree]) -> Iterator[tuple[Mask, ...]]:
    yield from product(*[list(whole_subsets(tree)) for tree in trees])


def gain(tree: DraftTree, mask: Mask) -> float:
    return float(path_confidence(tree)[mask].sum())
