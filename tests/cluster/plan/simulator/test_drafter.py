"""The simulated drafter: the protocol of real drafters, the cost model's time, drawn acceptance."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from cluster.plan.simulator import clock
from cluster.plan.simulator.acceptance import Acceptance, DrafterModel, synthetic
from cluster.plan.simulator.drafter import SimulatedDrafter
from cluster.plan.simulator.outputs import Target
from engine.protocol import Draft, DraftOrder, Missing
from policies.cost import ForwardCost
from policies.tree import DraftTree
from tests.engine.drafters.orders import Stream
from tests.policies.tree_lists import path_confidence

PROMPT = [5, 6, 7]
FORWARDS = ForwardCost(0.0, 0.0, 1.0)
"""A second each."""
DOMAINS = {"a": "", "b": ""}
MODEL = synthetic(0.7)
TARGET = Target({})


def drafter(cost: ForwardCost = FORWARDS, model: DrafterModel = MODEL) -> SimulatedDrafter:
    return SimulatedDrafter("ssm", cost, TARGET, Acceptance({("", "ssm"): model}), DOMAINS)


def tree_of(answer: object) -> DraftTree:
    assert isinstance(answer, Draft)
    return answer.tree


def target_tokens(request: str, seed: int = 0) -> list[int]:
    return TARGET.block(request, seed, 0).tolist()


async def test_a_delta_whose_prefix_is_not_held_is_missing_and_other_orders_are_served() -> None:
    host = drafter()
    known, unknown = Stream("a", PROMPT), Stream("b", PROMPT)
    unknown.seen = 2
    answers = await host.draft([known.order(2), unknown.order(2)], None)
    assert len(tree_of(answers[0])) == 2
    assert answers[1] == Missing("b", 0, 1, have=0)


@pytest.mark.parametrize(
    ("prompt", "depth", "forwards"), [(3, 1, 1), (3, 4, 4), (600, 4, 5), (1100, 0, 3), (1, 0, 0)]
)
async def test_a_draft_takes_as_many_forwards_as_a_real_one(
    prompt: int, depth: int, forwards: int
) -> None:
    """Committed tokens in chunks of 512, the last of which proposes level 1; then one per level.
    For catch-up alone, the last token need not run."""
    await drafter().draft([Stream("a", [1] * prompt).order(depth)], None)
    assert asyncio.get_running_loop().time() == forwards


def test_rows_of_accepted_draft_tokens_are_not_run_again() -> None:
    rows = ForwardCost(0.0, 1.0, 0.0)

    async def main(accepted: int) -> float:
        host = drafter(rows, DrafterModel((1.0, 1.0), (1.0, 1.0)))
        stream = Stream("a", PROMPT)
        await host.draft([stream.order(3)], None)
        started = asyncio.get_running_loop().time()
        stream.committed.extend(target_tokens("a")[: accepted + 1])
        await host.draft([stream.order(1)], None)
        return asyncio.get_running_loop().time() - started

    assert clock.run(main(accepted=0)) == 1  # the target's own token
    assert clock.run(main(accepted=2)) == 1
    assert clock.run(main(accepted=3)) == 2  # and the deepest level, which was proposed, not run


@dataclass
class _DepthRule:
    """Drafts each request to a level of its own, and records its arguments."""

    levels: dict[str, int]
    calls: list[tuple[int, list[str], list[list[float]]]] = field(default_factory=list)

    def __call__(
        self, depth: int, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]
    ) -> Sequence[bool]:
        self.calls.append((depth, list(requests), [level.tolist() for level in frontier]))
        return [depth < self.levels[request] for request in requests]


@pytest.mark.parametrize("width", [1, 3])
def test_a_rule_stops_each_request_at_its_level(width: int) -> None:
    async def main(rule: _DepthRule) -> tuple[list[DraftTree], float]:
        orders = [Stream(name, PROMPT).order(5, width) for name in ("a", "b")]
        answers = await drafter().draft(orders, rule)
        return [tree_of(one) for one in answers], asyncio.get_running_loop().time()

    rule = _DepthRule({"a": 1, "b": 3})
    (first, second), seconds = clock.run(main(rule))
    assert [int(first.depth.max()), int(second.depth.max())] == [1, 3]
    assert seconds == 3
    assert [(depth, requests) for depth, requests, _ in rule.calls] == [
        (0, ["a", "b"]),
        (1, ["a", "b"]),
        (2, ["b"]),
        (3, ["b"]),
    ]
    assert rule.calls[0][2] == [[], []]
    path = path_confidence(second)
    for depth, _, frontier in rule.calls[1:]:
        assert frontier[-1] == pytest.approx(path[second.depth == depth].tolist())


async def test_matched_are_the_tokens_that_the_drafter_would_have_drafted() -> None:
    """Counterfactual scores agree with drafts made at every position."""
    output = target_tokens("a")[:40]
    stream = Stream("a", PROMPT)
    stream.committed.extend(output)
    prefix = stream.prefix()
    (answer,) = await drafter().draft([DraftOrder(prefix, depth=0, score=True)], None)
    assert isinstance(answer, Draft)
    drafted = []
    for position, token in enumerate(output):
        other = Stream("a", PROMPT)
        other.committed.extend(output[:position])
        (draft,) = await drafter().draft([other.order(1)], None)
        drafted.append(tree_of(draft).tokens.tolist() == [token])
    assert list(answer.matched) == drafted
    assert {True, False} == set(drafted)
