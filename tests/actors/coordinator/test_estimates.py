"""What a coordinator learns of the time between verdicts."""

import random

import numpy as np
import pytest

from actors.coordinator.estimates import CalibrationBuffer, Costs, Estimates
from actors.coordinator.events import Verified
from actors.coordinator.round_draft import Proposal
from engine.protocol import DraftOrder, Prefix
from policies.cost import ForwardCost
from policies.estimates.calibration import Calibration
from policies.flat_trees import flatten
from policies.request import LaneView, RoundOutcome
from policies.tree import DraftTree

FORWARD_S = 0.01
DRAFTS = {"lane": ForwardCost(0, 0, 0.001), "other": ForwardCost(0, 0, 0.001)}


def rounds(drafted: bool, extra_s: float, queueing_s: float = 0.0, count: int = 60) -> Estimates:
    """After rounds of two requests, one of which drafts for 4 ms, or none."""
    estimates = Estimates(Costs(ForwardCost(0, 0, FORWARD_S), DRAFTS, 64, {}, 64), [])
    learn(estimates, drafted, extra_s, queueing_s, count)
    return estimates


def learn(
    estimates: Estimates,
    drafted: bool,
    extra_s: float,
    queueing_s: float = 0.0,
    count: int = 60,
    depth: int = 2,
    lane: str | None = None,
) -> None:
    """`depth` 0: drafters were called but proposed nothing. `lane` None: only lookups were."""
    drafting_s = 0.004 if drafted else 0.0
    idle_s = drafting_s + extra_s
    seconds = idle_s + queueing_s + FORWARD_S
    drafting = RoundOutcome(
        "drafts", lane, 0, depth, 0, 1, seconds, FORWARD_S, drafting_s, tried=drafted
    )
    outcomes = (drafting, RoundOutcome("waits", None, 0, 0, 0, 1, seconds, FORWARD_S))
    for _ in range(count):
        predicted_s = estimates.verify_s(10, 2)
        estimates.learn_verify(
            Verified(1.0, FORWARD_S, idle_s, 10, 2, 0, outcomes, predicted_s=predicted_s)
        )


@pytest.mark.parametrize("queueing_s", [0.0, 0.008])
def test_only_time_in_which_the_verifier_works_for_other_requests_is_queueing(
    queueing_s: float,
) -> None:
    """Waiting for the drafts of other requests is none."""
    context = rounds(drafted=True, extra_s=0.0, queueing_s=queueing_s).context()
    assert context.waiting_s == pytest.approx(queueing_s, rel=0.05, abs=1e-6)
    assert context.handling_s == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("depth", [2, 0], ids=["proposed", "nothing proposed"])
def test_handling_is_the_extra_time_of_rounds_in_which_drafters_are_called(depth: int) -> None:
    estimates = rounds(drafted=False, extra_s=0.0005)
    learn(estimates, drafted=True, extra_s=0.002, depth=depth)
    assert estimates.context().handling_s == pytest.approx(0.0015, rel=0.05)
    assert estimates.context().waiting_s == pytest.approx(0.0005, rel=0.05)


def test_costs_of_deep_drafts_are_not_extrapolated_from_shallow_ones() -> None:
    """Short calls of 2 ms and 0.1 ms per level: six levels cost 2.6 ms, not six times 2.1."""
    step = ForwardCost(0.0, 0.0, 1e-4)
    lane = LaneView("near", "near", capacity=8)
    estimates = Estimates(Costs(ForwardCost(0, 0, FORWARD_S), {"near": step}, 64, {}, 64), [lane])
    order = DraftOrder(Prefix("r", 0, 0, 10, 0, (1,)), 6)
    drafted = flatten([DraftTree.chain([5], [0.5])])
    for _ in range(100):
        estimates.learn_draft_cost("near", [order], drafted, 2.1e-3)
    context = estimates.context()
    six_s = context.call_s["near"] + 6 * context.draft["near"].predict(10, 1)
    assert six_s == pytest.approx(2.6e-3, rel=0.1)


def test_the_share_of_prompts_is_the_cost_of_their_tokens() -> None:
    estimates = Estimates(Costs(ForwardCost(0, 1e-3, FORWARD_S), {}, 64, {}, 64), [])
    assert estimates.share_of_prompts(0, 10, 0) == 0.0
    assert estimates.share_of_prompts(0, 10, 5) == pytest.approx(0.25)
    free = Estimates(Costs(ForwardCost(0, 0, 0), {}, 64, {}, 64), [])
    assert free.share_of_prompts(0, 10, 5) == 0.0


Learned = list[tuple[Proposal, tuple[int, ...]]]


def trees(count: int, seed: int) -> list[DraftTree]:
    rng = random.Random(seed)
    return [
        DraftTree.chain([rng.randrange(3) for _ in range(4)], [rng.random() for _ in range(4)])
        for _ in range(count)
    ]


def verified(lane: str, drafted: list[DraftTree], seed: int) -> Learned:
    """Verdicts on the trees of one call."""
    rng, call = random.Random(seed), flatten(drafted)
    committed = [tuple(rng.randrange(3) for _ in range(rng.randrange(1, 4))) for _ in drafted]
    return [((lane, call, place), tokens) for place, tokens in enumerate(committed)]


def test_verdicts_in_any_pieces_and_order_give_the_same_calibration_as_all_at_once() -> None:
    first, second = trees(30, 0), trees(40, 1)
    verdicts = [verified("small", first, 2), verified("small", second, 3)]
    at_once = Calibration()
    at_once.observe(flatten(first + second), [tokens for call in verdicts for _, tokens in call])

    learning = Calibration()
    calibration_buffer = CalibrationBuffer({"small": learning})
    mixed = [one for call in verdicts for one in call]
    random.Random(4).shuffle(mixed)
    for begin in range(0, len(mixed), 7):
        calibration_buffer.learn(mixed[begin : begin + 7])

    assert at_once.rank_counts[:, 0].sum() > 64
    assert learning.rank_counts == pytest.approx(at_once.rank_counts)
    confidences = np.linspace(0, 1, 9)
    for curve in ("chain", "survival"):
        assert getattr(learning, curve)(confidences) == pytest.approx(
            getattr(at_once, curve)(confidences)
        )
