"""Calibrations learn the same from verdicts in any pieces and order."""

import random

from actors.coordinator.estimates import CalibrationBuffer
from actors.coordinator.round_draft import Proposal
from policies.estimates.calibration import Calibration
from policies.flat_trees import flatten
from policies.tree import DraftTree

Verified = list[tuple[Proposal, tuple[int, ...]]]


def trees(count: int, seed: int) -> list[DraftTree]:
    rng = random.Random(seed)
    return [
        DraftTree.chain([rng.randrange(3) for _ in range(4)], [rng.random() for _ in range(4)])
        for _ in range(count)
    ]


def verified(lane: str, drafted: list[DraftTree], seed: int) -> Verified:
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

    assert sum(at_once.export()["seen"]) > 64
    for name, expected in at_once.export().items():
        for here, there in zip(learning.export()[name], expected, strict=True):
            assert abs(here - there) < 1e-9, name


def test_trees_that_were_not_verified_change_no_calibration() -> None:
    call = verified("small", trees(80, 0), 1)
    learning, expected = Calibration(), Calibration()
    CalibrationBuffer({"small": learning}).learn(call[:64])
    [(_, drafted, _), _] = call[0]
    expected.observe(drafted, [*(tokens for _, tokens in call[:64]), *[()] * 16])
    assert learning.export() == expected.export()
    assert sum(expected.export()["seen"]) > 0


def test_each_lane_learns_once_it_has_enough_trees_of_its_own() -> None:
    small, large = Calibration(), Calibration()
    calibration_buffer = CalibrationBuffer({"small": small, "large": large})
    calibration_buffer.learn(
        verified("small", trees(63, 0), 1) + verified("large", trees(64, 2), 3)
    )
    assert sum(small.export()["seen"]) == 0
    assert sum(large.export()["seen"]) > 0
    calibration_buffer.learn(verified("small", trees(1, 4), 5))
    assert sum(small.export()["seen"]) > 0
