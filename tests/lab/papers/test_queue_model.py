"""The queue alone: the order of service by ranks, and what it makes of Table 1."""

import numpy as np
import pytest

from lab.papers.queue_model import by_rank, compare, compare_static, queue


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


def test_static_batches_give_the_printed_factors_at_p95() -> None:
    """NuminaMath, with the spread at which they answer what Table 1 prints."""
    records = {record.name: record for record in compare_static(queue("numinamath", draws=8), 1.1)}
    answered = records["queue/numinamath/1.1/0.6/answered_10_min"]
    assert answered.ratio == pytest.approx(1, abs=0.15)
    by_metric = {
        metric: records[f"queue/numinamath/1.1/0.6/{metric}_vs_fcfs"].value
        for metric in ("tpot", "latency_per_token")
    }
    assert by_metric["latency_per_token"] == pytest.approx(1 / 6, rel=0.2)
    assert by_metric["tpot"] == pytest.approx(1 / 2.5, rel=0.2)
