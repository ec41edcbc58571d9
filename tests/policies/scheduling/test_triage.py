"""Triage: which requests it holds back, which it never does, and that none waits for ever."""

from collections.abc import Collection, Sequence

import pytest

from policies.request import RequestView, Slo
from policies.scheduling.triage import Triage

NOW = 10.0
TPOT_S = 0.05


def decoding(name: str, token_s: float, priority: int = 0) -> RequestView:
    """Has 11 tokens, the last ten of which took `token_s` each."""
    view = RequestView(name, 0.0, 10, 100, Slo(tpot_s=TPOT_S), priority)
    view.generated, view.first_token_s = 11, NOW - 10 * token_s
    return view


def new(
    name: str, slo: Slo | None = None, priority: int = 0, arrival_s: float = 9.9
) -> RequestView:
    return RequestView(name, arrival_s, 10, 100, slo or Slo(tpot_s=TPOT_S), priority)


def batch(late: int, in_time: int = 8) -> list[RequestView]:
    slow = [decoding(f"late{number}", 1.5 * TPOT_S) for number in range(late)]
    return [*slow, *(decoding(f"ok{number}", 0.5 * TPOT_S) for number in range(in_time))]


def held(
    triage: Triage,
    running: Sequence[RequestView],
    waiting: Sequence[RequestView],
    exempt: Collection[str] = (),
) -> set[str]:
    order = [*running, *waiting]
    admitted = triage.admitted(order, {one.name for one in running}, exempt, NOW, slots=16)
    assert [name for name in admitted if name not in {one.name for one in waiting}] == [
        one.name for one in running
    ]
    return {one.name for one in order} - set(admitted)


def test_new_requests_wait_while_too_many_that_run_are_late() -> None:
    waiting = [new("a"), new("b")]
    assert held(Triage(0.1), batch(late=0), waiting) == set()
    assert held(Triage(0.1), batch(late=1), waiting) == {"a", "b"}
    assert held(Triage(0.2), batch(late=1), waiting) == set()


def test_those_that_waited_start_one_at_a_time() -> None:
    triage, running = Triage(0.1), batch(late=0)
    held(triage, batch(late=4), [new("a"), new("b")])
    assert held(triage, running, [new("a"), new("b")]) == {"b"}
    assert held(triage, [*running, new("a")], [new("b")]) == {"b"}  # a has no token yet
    assert held(triage, [*running, decoding("a", 0.0)], [new("b")]) == set()
    assert held(triage, running, [new("c"), new("d")]) == set()  # no request waits any more


def test_no_request_waits_once_none_has_a_tpot() -> None:
    triage, waiting = Triage(0.1), [new("a", Slo()), new("b", Slo())]
    assert held(triage, batch(late=4), waiting) == {"a", "b"}
    assert held(triage, [], waiting) == set()


def test_without_running_requests_one_starts() -> None:
    triage = Triage(0.1)
    held(triage, batch(late=4), [new("a"), new("b")])
    assert held(triage, [], [new("a"), new("b")]) == {"b"}


@pytest.mark.parametrize(("late", "waits"), [(4, False), (9, True)])
def test_a_ttft_within_reach_is_given_up_only_where_most_are_late(late: int, waits: bool) -> None:
    slo = Slo(ttft_s=0.2, tpot_s=TPOT_S)
    running = batch(late)
    assert held(Triage(0.1), running, [new("a", slo)]) == ({"a"} if waits else set())
    assert held(Triage(0.1), running, [new("missed", slo, arrival_s=9.0)]) == {"missed"}


def test_turns_and_higher_priorities_and_preempted_requests_are_not_held() -> None:
    waiting = [new("turn"), new("high", priority=1), decoding("preempted", 1.5 * TPOT_S), new("a")]
    assert held(Triage(0.1), batch(late=9), waiting, exempt={"turn"}) == {"a"}


def test_requests_without_slos_are_served_as_before() -> None:
    running = [RequestView(f"r{number}", 0.0, 10, 100) for number in range(9)]
    for view in running:
        view.generated, view.first_token_s = 11, 0.0
    assert held(Triage(0.1), running, [new("a", Slo())]) == set()
