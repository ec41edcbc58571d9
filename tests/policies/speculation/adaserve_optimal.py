"""AdaServe's Algorithm 1, as printed: the optimal trees if all path probabilities are known.

The test oracle for Algorithm 2; O(nodes²).
"""

from collections.abc import Sequence

import numpy as np

from policies.protocols import Mask
from policies.tree import DraftTree
from tests.policies.tree_lists import path_confidence


def optimal_trees(
    trees: Sequence[DraftTree], needs: Sequence[float], budget: int
) -> list[Mask] | None:
    """The nodes of each tree to verify, or None where the printed algorithm returns INVALID.

    `trees` are T_inf. Roots are debited from the budget, and loops run while any of it is left: the
    printed `B ≥ 0` would spend one token too many.
    """
    probability = [path_confidence(tree) for tree in trees]
    chosen = [np.zeros(len(tree), np.bool_) for tree in trees]
    budget -= len(trees)
    for request, needed in enumerate(needs):
        gained = 1.0
        while gained < needed:
            top = _get_top([request], probability, chosen)
            if budget <= 0 or top is None:
                return None
            chosen[request][top[1]] = True
            gained += float(probability[request][top[1]])
            budget -= 1
    while budget > 0:
        top = _get_top(range(len(trees)), probability, chosen)
        if top is None:
            break
        chosen[top[0]][top[1]] = True
        budget -= 1
    return chosen


def _get_top(
    requests: Sequence[int], probability: Sequence[np.ndarray], chosen: Sequence[Mask]
) -> tuple[int, int] | None:
    """GetTop: the most probable node not yet added; among equals the first."""
    best: tuple[int, int] | None = None
    most = -1.0
    for request in requests:
        for node, added in enumerate(chosen[request]):
            if not added and probability[request][node] > most:
                best, most = (request, node), float(probability[request][node])
    return best
