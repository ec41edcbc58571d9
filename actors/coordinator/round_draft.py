"""What one round drafts for one request: built by drafting.py, read by verifying.py."""

from collections.abc import Sequence
from typing import NamedTuple

from policies.flat_trees import NO_TREES, FlatTrees, Ints, TreeRef

Proposal = tuple[str, FlatTrees, int]
"""A lane, the trees that one of its draft calls returned, and the number of the request's tree
among them."""


class MergedTree(NamedTuple):
    """All proposals for one request as one draft tree with calibrated confidences."""

    ref: TreeRef = (NO_TREES, 0)
    nodes: int = 0
    depth: int = 0
    """The deepest level."""
    sources: Ints | None = None
    """For each node, bit i is set where the i-th proposal has it; None where at most one lane has
    proposed."""


NO_TREE = MergedTree()


class RoundDraft(NamedTuple):
    """The draft of one request in one round; the default decodes plainly."""

    tree: MergedTree = NO_TREE
    proposals: Sequence[Proposal] = ()
    """The trees before they were merged, from which the calibrations learn."""
    proposers: Sequence[str] = ()
    """The lane of each proposal."""
    lane: str | None = None
    """The selected lane; None where only lanes that always draft were called, or none was."""
    caught_up: int = 0
    """Committed tokens that the selected lane lacked when the request switched to it."""
    tried: bool = False
    """Whether any drafter was called, even if it proposed nothing."""
    seconds: float = 0.0
    """Drafting time; lookups are not counted."""


NO_DRAFT = RoundDraft()
