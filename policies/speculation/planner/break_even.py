"""From what gain a drafter pays, by the costs of forwards alone, which are known before it drafts.

For one request and drafts of one token, the cheapest draft. A drafter whose mean gain is below this
may still pay for some requests, which the planner finds out while serving.
"""

from policies.cost import CostModel

HEAD_GAIN = 0.1
"""By how much a head raises the tokens per forward of lookups (lab/docs/planner.md)."""
_CONTEXT = 256
"""Tokens of the request."""


def plain_s(verify: CostModel) -> float:
    """The time of a forward without drafts."""
    return verify.predict(_CONTEXT, 1)


def verified_s(verify: CostModel) -> float:
    """The time that verifying one drafted token adds to it."""
    return max(0.0, verify.predict(_CONTEXT, 2) - plain_s(verify))


def drafted_s(step: CostModel) -> float:
    """The time of drafting one token."""
    return step.predict(_CONTEXT, 1)


def least_gain(verify: CostModel, step: CostModel) -> float:
    """By what share tokens per forward must rise, so that drafting with these steps pays: by as
    much as the round takes longer."""
    return (drafted_s(step) + verified_s(verify)) / plain_s(verify)


def longest_draft_s(verify: CostModel, gain: float) -> float:
    """The time within which a token must be drafted that raises tokens per forward by this share;
    negative where verifying it takes longer already than it saves."""
    return gain * plain_s(verify) - verified_s(verify)
