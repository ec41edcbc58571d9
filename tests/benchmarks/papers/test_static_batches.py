"""Static batches: nothing joins or leaves the order until the last of a batch has ended."""

from benchmarks.papers.static_batches import StaticBatches
from policies.request import RequestView
from policies.scheduling.baselines import fcfs


def test_the_next_requests_run_when_the_last_of_the_batch_has_ended() -> None:
    batches: list[list[str]] = []
    schedule = StaticBatches(fcfs(), batches)
    views = [
        RequestView(name, at_s, prompt_len=10, max_tokens=10) for at_s, name in enumerate("abcd")
    ]
    for view in views:
        schedule.arrive(view, view.arrival_s)
    assert schedule.pick(views, [], 2, 0.0) == ["a", "b"]
    schedule.forget("a")
    assert schedule.pick(views[1:], ["b"], 2, 1.0) == ["b"]
    schedule.forget("b")
    assert schedule.pick(views[2:], [], 2, 2.0) == ["c", "d"]
    assert batches == [["a", "b"], ["c", "d"]]
