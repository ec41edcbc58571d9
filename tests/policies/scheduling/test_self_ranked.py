"""Self-scheduling's Algorithm 1, line by line, and the batching of its rank prompts."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.request import RequestView
from policies.scheduling.self_ranked import RankBatch, RankQueue, SelfRanked, SelfRankedParams


def view(name: str, arrival_s: float = 0.0) -> RequestView:
    return RequestView(name, arrival_s, prompt_len=10, max_tokens=100)


def arrived(params: SelfRankedParams, count: int, now: float = 0.0) -> SelfRanked:
    schedule = SelfRanked(params)
    for index in range(count):
        schedule.arrive(view(f"{index:02}", now), now)
    return schedule


def views(count: int) -> list[RequestView]:
    return [view(f"{index:02}") for index in range(count)]


def due(schedule: SelfRanked, now: float) -> RankBatch:
    batch = schedule.due(now)
    assert batch is not None
    return batch


# Batching (lines 3-8)


def test_a_full_batch_is_due_at_once() -> None:
    schedule = arrived(SelfRankedParams(batch=3, timeout_s=1.0), 3)
    batch = due(schedule, 0.0)
    assert batch.requests == ("00", "01", "02")
    assert batch.form == "length_only"
    assert schedule.due(9.0) is None


def test_a_partial_batch_is_due_once_the_oldest_request_has_waited_for_the_timeout() -> None:
    schedule = SelfRanked(SelfRankedParams(batch=3, timeout_s=1.0))
    schedule.arrive(view("a"), 0.0)
    schedule.arrive(view("b"), 0.9)
    assert schedule.due(0.99) is None
    assert due(schedule, 1.0).requests == ("a", "b")
    schedule.arrive(view("c"), 5.0)  # the timer starts again
    assert schedule.due(5.9) is None


@given(st.floats(0, 1e6), st.floats(0.001, 10))
def test_a_batch_is_due_when_a_timer_set_on_arrival_fires(now: float, timeout_s: float) -> None:
    """(now + timeout) - now may round to less than the timeout, and no other timer follows."""
    schedule = SelfRanked(SelfRankedParams(timeout_s=timeout_s))
    schedule.arrive(view("a"), now)
    schedule.arrive(view("b"), now)
    assert schedule.due(now + timeout_s) is not None


def test_a_request_that_ends_before_it_is_ranked_is_left_out() -> None:
    schedule = arrived(SelfRankedParams(batch=3, timeout_s=1.0), 2)
    schedule.forget("00")
    schedule.arrive(view("02"), 0.0)
    assert schedule.due(0.0) is None
    schedule.arrive(view("03"), 0.0)
    assert due(schedule, 0.0).requests == ("01", "02", "03")


def test_one_request_alone_needs_no_prompt_for_its_rank() -> None:
    by_rank = arrived(SelfRankedParams(timeout_s=1.0), 1)
    assert by_rank.due(1.0) is None
    by_rank.arrive(view("01"), 1.0)
    assert by_rank.pick([view("01", 0.0), view("00", 1.0)], [], 2, 1.0) == ["00", "01"]


@pytest.mark.parametrize("batch", [0, 11])
def test_batches_are_as_large_as_a_prompt_takes(batch: int) -> None:
    with pytest.raises(ValueError, match="1 to 10"):
        RankQueue("length_only", batch=batch)


# Order (line 12)


def test_ranks_compare_across_batches_as_they_are() -> None:
    schedule = arrived(SelfRankedParams(batch=2), 4)
    short, long = due(schedule, 0.0), due(schedule, 0.0)
    schedule.answer(long, [500.0, 600.0])
    schedule.answer(short, [10.0, 20.0])
    assert schedule.pick(views(4), [], 4, 0.0) == ["00", "02", "01", "03"]


def test_a_request_without_a_value_gets_the_median_rank() -> None:
    schedule = arrived(SelfRankedParams(batch=5), 5)
    schedule.answer(due(schedule, 0.0), [None, 30.0, 10.0, None, 20.0])
    assert schedule.pick(views(5), [], 5, 0.0) == ["02", "00", "03", "04", "01"]


@given(st.lists(st.none() | st.floats(allow_nan=False), min_size=6, max_size=6))
def test_no_answer_changes_anything_but_the_order(values: list[float | None]) -> None:
    schedule = arrived(SelfRankedParams(batch=6), 6)
    schedule.answer(due(schedule, 0.0), values)
    assert sorted(schedule.pick(views(6), [], 6, 0.0)) == [each.name for each in views(6)]


# Starvation (lines 9-11 and 13-25); a step is a forward


def ranked(params: SelfRankedParams, ranks: Sequence[float]) -> SelfRanked:
    schedule = arrived(params, len(ranks))
    schedule.answer(due(schedule, math.inf), list(ranks))
    return schedule


def steps(schedule: SelfRanked, count: int, requests: int, slots: int = 1) -> list[list[str]]:
    picked: list[list[str]] = []
    for _ in range(count):
        running = picked[-1] if picked else []
        picked.append(schedule.pick(views(requests), running, slots, 0.0))
        schedule.observe([], 0.0)
    return picked


def test_a_starved_request_is_promoted_for_a_quantum_of_forwards() -> None:
    """Not of picks: two lanes that finish one after the other cause two for each forward."""
    schedule = ranked(SelfRankedParams(starvation_steps=4, quantum_steps=3), [1.0, 2.0])
    order: list[str] = []
    running: list[str] = []
    for _ in range(20):
        for _ in range(2):
            running = schedule.pick(views(2), running, 1, 0.0)
        order += running
        schedule.observe([], 0.0)
    # 01 waits for 4 steps and runs for 3; 00 waits for those 3 and is first again by its rank.
    assert order == (["00"] * 4 + ["01"] * 3) * 2 + ["00"] * 4 + ["01"] * 2


def test_the_most_starved_are_promoted_first_up_to_the_limit() -> None:
    params = SelfRankedParams(starvation_steps=2, quantum_steps=50, max_promotions=1)
    schedule = ranked(params, [1.0, 4.0, 3.0, 2.0])
    picked = steps(schedule, 5, requests=4, slots=3)
    assert picked[:2] == [["00", "03", "02"], ["00", "03", "02"]]
    assert picked[2] == ["01", "00", "03"]  # promoted; now 02 waits
    assert picked[4] == ["02", "01", "00"]  # promoted as well, and of better rank
