"""How a client sees who drafted for its request, in all and by round (docs/api.md, "Traces")."""

from collections.abc import Sequence
from typing import Any

from deployments.ingress.tokenizer import Tokens
from deployments.messages import Committed, SpeculationFields
from policies.tree import ROOT


def trace_body(
    commit: Committed, texts: Sequence[str], attempt: int, tokens: Tokens
) -> dict[str, Any] | None:
    """The trace of a commit's tokens, as far as they have `texts`; None if none was requested."""
    trace = commit["trace"]
    if trace is None:
        return None
    # Tokens that an earlier attempt has delivered have been left out of the commit.
    delivered = commit["first_index"] - trace["first_index"]
    places = range(delivered, delivered + len(texts))
    return {
        "attempt": attempt,
        "round": trace["round"],
        "drafted": trace["drafted"],
        "verified": trace["verified"],
        "accepted": trace["accepted"],
        "draft_s": trace["draft_s"],
        "verify_s": trace["verify_s"],
        "tokens": [
            {"id": token, "text": text, "node": place if place < trace["accepted"] else None}
            for token, text, place in zip(commit["token_ids"], texts, places, strict=False)
        ],
        "nodes": [
            {
                "id": node["token"],
                "text": tokens.spelling(node["token"])[0],
                "parent": None if node["parent"] == ROOT else node["parent"],
                "confidence": node["confidence"],
                "drafters": node["drafters"],
                "accepted": place < trace["accepted"],
            }
            for place, node in enumerate(trace["nodes"])
        ],
    }


def decision(speculation: SpeculationFields, drafted: bool) -> str:
    """Who drafted and why, for the client."""
    if not speculation["enabled"]:
        return "no drafts: the request asks for none"
    if speculation["drafter"] is not None:
        chosen = f"drafter {speculation['drafter']}: the request asks for it"
        return chosen if drafted else f"{chosen}; it had nothing to propose"
    if not drafted:
        return "no drafts: lookups found none, and none by a model was expected to gain"
    return "drafters and depths chosen round by round, by what was expected to gain"
