"""What calibrations learn from verdicts that come call by call, in pieces."""

import random

from actors.coordinator.calibration_buffer import CalibrationBuffer
from actors.coordinator.round_draft import Proposal
from policies.estimates.calibration import Calibration
from policies.flat_trees import flatten
from policies.tree import DraftTree

Judged = list[tuple[Proposal, tuple[int, ...]]]


def trees(count: int, seed: int) -> list[DraftTree]:
    rng = random.Random(seed)
    return [
        DraftTree.chain([rng.randrange(3) for _ in range(4)], [rng.random() for _ in range(4)])
        for _ in range(count)
    ]


def judged(lane: str, drafted: list[DraftTree], seed: int) -> Judged:
    """Verdicts on the trees of one call."""
    rng, call = random.Random(seed), flatten(drafted)
    said = [tuple(rng.randrange(3) for _ in range(rng.randrange(1, 4))) for _ in drafted]
    return [((lane, call, place), tokens) for place, tokens in enumerate(said)]


def test_verdicts_in_any_pieces_and_order_teach_what_all_at_once_do() -> None:
    first, second = trees(30, 0), trees(40, 1)
    verdicts = [judged("small", first, 2), judged("small", second, 3)]
    at_once = Calibration()
    at_once.observe(flatten(first + second), [said for call in verdicts for _, said in call])

    learning = Calibration()
    calibration_buffer = CalibrationBuffer({"small": learning})
    mixed = [one for call in verdicts for one in call]
    random.Random(4).shuffle(mixed)
    for begin in range(0, len(mixed), 7):
        calibration_buffer.learn(mixed[begin : begin + 7])

    assert sum(at_once.export()["seen"]) > 64
    for name, told in at_once.export().items():
        for here, there in zip(learning.export()[name], told, strict=True):
            assert abs(here - there) < 1e-9, name


def test_trees_that_nobody_judged_teach_nothing() -> None:
    call = judged("small", trees(80, 0), 1)
    learning, expected = Calibration(), Calibration()
    CalibrationBuffer({"small": learning}).learn(call[:64])
    [(_, drafted, _), _] = call[0]
    expected.observe(drafted, [*(said for _, said in call[:64]), *[()] * 16])
    assert learning.export() == expected.export()
    assert sum(expected.export()["seen"]) > 0


def test_each_lane_waits_until_it_has_a_lesson_of_its_own() -> None:
    small, large = Calibration(), Calibration()
    calibration_buffer = CalibrationBuffer({"small": small, "large": large})
    calibration_buffer.learn(judged("small", trees(63, 0), 1) + judged("large", trees(64, 2), 3))
    assert sum(small.export()["seen"]) == 0
    assert sum(large.export()["seen"]) > 0
    calibration_buffer.learn(judged("small", trees(1, 4), 5))
    assert sum(small.export()["seen"]) > 0
