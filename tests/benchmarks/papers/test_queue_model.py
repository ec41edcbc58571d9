"""The queue alone: the order of service by ranks, and what it makes of Table 1."""

import numpy as np
import pytest

from benchmarks.papers.queue_model import by_rank, compare, queue


def test_ranks_of_different_batches_are_compared_and_arrival_decides_between_equals() -> None:
    predicted = np.array([*range(10, 0, -1), *range(100, 110)], np.float64)
    order = by_rank(predicted).tolist()
    assert order[:4] == [9, 10, 8, 11]
    assert order[-2:] == [0, 19]


def test_fcfs_answers_what_is_printed_and_only_a_tail_lets_ranks_answer_as_many_as_printed() -> (
    None
):
    of = queue("numinamath", draws=4)
    by_name = {record.name: record for spread in (0.7, 1.6) for record in compare(of, spread)}
    assert by_name["queue/numinamath/1.6/fcfs/minutes_to_500"].value == pytest.approx(25, abs=2)
    best = by_name["queue/numinamath/0.7/1.0/answered_10_min"]
    assert best.reference == 948
    assert best.value < 700  # even with perfect predictions
    assert by_name["queue/numinamath/1.6/0.6/answered_10_min"].ratio == pytest.approx(1, abs=0.2)
