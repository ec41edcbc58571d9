"""What a replica logs at its start: from what gain each drafter pays, by the costs that were
measured there."""

from collections.abc import Sequence

from actors.coordinator.estimates import Costs
from policies.cost import CostModel
from policies.request import LaneView
from policies.speculation.planner.break_even import (
    HEAD_GAIN,
    drafted_s,
    least_gain,
    longest_draft_s,
    plain_s,
    verified_s,
)


def break_even_lines(costs: Costs, lanes: Sequence[LaneView]) -> list[str]:
    """One for each drafter that is a model; where all are lookups, one that says whether a head
    beside them would pay."""
    models = {lane.drafter: costs.draft[lane.name] for lane in lanes if lane.name in costs.draft}
    if models:
        return [_of_model(name, costs.verify, step) for name, step in models.items()]
    lookups = ", ".join(lane.drafter for lane in lanes)
    return [f"only lookups draft ({lookups}): {_of_head(costs.verify)}"] if lookups else []


def _of_model(name: str, verify: CostModel, step: CostModel) -> str:
    return (
        f"drafter {name}: a token takes {_ms(drafted_s(step))} to draft and "
        f"{_ms(verified_s(verify))} to verify, a forward {_ms(plain_s(verify))}; at one client it "
        f"pays where it raises tokens per forward by more than {least_gain(verify, step):.0%}, and "
        "the default policy drafts with it only there"
    )


def _of_head(verify: CostModel) -> str:
    times = f"a forward takes {_ms(plain_s(verify))}, a token to verify {_ms(verified_s(verify))}"
    gain = f"which adds some {HEAD_GAIN:.0%} to tokens per forward"
    longest_s = longest_draft_s(verify, HEAD_GAIN)
    if longest_s <= 0.0:
        return f"{times}, so a head, {gain}, gains hardly anything at one client (docs/drafters.md)"
    return (
        f"{times}, so a head, {gain}, pays at one client if it drafts a token in under "
        f"{_ms(longest_s)} (docs/drafters.md)"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
