"""How a round has produced its tokens, for clients that want to see it (docs/api.md, "Traces")."""

from collections.abc import Sequence

from actors.coordinator.round_draft import RoundDraft
from engine.protocol import Commit, RoundTrace
from policies.flat_trees import Ints
from policies.tree import ROOT, DraftTree

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
