"""What one round drafts for one request: built by drafting.py, read by verifying.py. And its trace,
for clients that want to see how a round has produced its tokens (docs/api.md, "Traces")."""

from collections.abc import Sequence
from typing import NamedTuple

from engine.protocol import Commit, RoundTrace
from policies.flat_trees import NO_TREES, FlatTrees, Ints, TreeRef
from policies.tree import ROOT, DraftTree

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


MOST_NODES = 64
"""A trace has so many nodes, unless more are accepted."""


def round_trace(
    commit: Commit,
    draft: RoundDraft,
    drafters: Sequence[str],
    tree: DraftTree,
    sources: Ints | None,
    accepted: Sequence[int],
    number: int,
    verify_s: float,
) -> RoundTrace:
    """`drafters`: by proposal of the draft. `tree`: what was verified, of which `accepted` are the
    nodes that were accepted, from the root downwards. `sources`: MergedTree.sources of the tree."""
    on_path = set(accepted)
    others = [node for node in range(len(tree)) if node not in on_path]
    shown = [*accepted, *others[: max(0, MOST_NODES - len(accepted))]]
    # A parent is accepted or stands before its child, so every parent is shown.
    place = {ROOT: ROOT, **{node: index for index, node in enumerate(shown)}}
    return {
        "round": number,
        "first_index": commit.first_index,
        "drafted": draft.tree.nodes,
        "verified": len(tree),
        "accepted": min(len(accepted), len(commit.token_ids)),
        "nodes": [
            {
                "token": int(tree.tokens[node]),
                "parent": place[int(tree.parents[node])],
                "confidence": round(float(tree.confidence[node]), 4),
                "drafters": _proposed(drafters, None if sources is None else int(sources[node])),
            }
            for node in shown
        ],
        "draft_s": draft.seconds,
        "verify_s": verify_s,
    }


def _proposed(drafters: Sequence[str], source: int | None) -> list[str]:
    """Those whose bits the node's source has; all of them if nothing was merged."""
    found = [name for bit, name in enumerate(drafters) if source is None or source >> bit & 1]
    return list(dict.fromkeys(found))
