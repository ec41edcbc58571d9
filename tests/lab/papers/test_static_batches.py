"""Static batches: nothing joins or leaves the order until the last of a batch has ended."""

from pathlib import Path

from actors.coordinator.events import Left
from actors.coordinator.stream import Statistics
from lab.papers.cells import cell
from lab.papers.measuring import measure
from lab.papers.rank_prompts import PREFIX
from lab.papers.row import Scalar
from lab.papers.run_observer import RunObserver
from lab.papers.static_batches import StaticBatches
from policies.request import RequestView
from policies.scheduling.baselines import fcfs

NO_TRACES = Path()
CASE: dict[str, Scalar] = {
    "machine": "a100",
    "dataset": "sharegpt",
    "workload": "rates",
    "rate": 16.0,
    "requests": 20,
}


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


def test_answers_return_with_the_last_of_their_batch() -> None:
    observer = RunObserver()
    left(observer, "early", 0.5)
    observer.batches.append(["a", f"{PREFIX}0", "b"])
    for name, at_s in (("a", 1.0), (f"{PREFIX}0", 2.0)):
        left(observer, name, at_s)
    assert observer.returned_s == {"early": 0.5}
    left(observer, "b", 3.0)
    assert observer.returned_s == {"early": 0.5, "a": 3.0, "b": 3.0}


def left(observer: RunObserver, name: str, at_s: float) -> None:
    view = RequestView(name, 0.0, prompt_len=10, max_tokens=10)
    observer.observe(Left(at_s, view, "length", Statistics(), internal=False))


def test_static_batches_and_latency_per_token_change_what_they_say() -> None:
    def p95(value: str, metric: str) -> float:
        paper = f"self_scheduling@static_batches_step_by_step:{value}"
        return measure(cell(paper, "fcfs", CASE), NO_TRACES)[f"{metric}_p95"]

    assert p95("static", "tpot") > 2 * p95("continuous", "tpot")
    assert p95("static, latency per token", "tpot") == p95("static", "tpot")
    tokens = p95("static", "latency") / p95("static, latency per token", "latency")
    assert 2 < tokens < 1000
