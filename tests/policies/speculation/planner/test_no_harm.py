"""What rounds were worth to each request, and what follows from how the ended ones fared."""

import numpy as np
import pytest

from policies.speculation.forest import Floats
from policies.speculation.planner.best_prefix import caps_at
from policies.speculation.planner.no_harm import (
    NoHarmAccounts,
    caps_of,
    expect,
    power_of,
    weights_of,
)

WINDOW, PROMISE, EXCEPTIONS, MOST_PRICE = 100, 0.97, 0.12, 0.05
FORWARD_S, WAITING_S, DRAFTING_S = 10e-3, 1e-3, 3e-3
PLAIN_S = FORWARD_S + WAITING_S
ALL = np.array([0])


def ledger() -> NoHarmAccounts:
    made = NoHarmAccounts(PROMISE, WINDOW, repay=0.25, exceptions=EXCEPTIONS, most_price=MOST_PRICE)
    made.reserve(1)
    caps_of(ALL, np.array([True]), PLAIN_S, made.accounts)
    return made


def drafted(
    made: NoHarmAccounts,
    gain: float,
    handling_s: float,
    share: float = 0.0,
    prompts_s: float = 0.0,
    usual_s: float | None = None,
) -> None:
    """`share`: of the forward without prompts; `usual_s`: what handling took lately; not said:
    as long as now."""
    usual_s = handling_s if usual_s is None else usual_s
    drafts_s = share / (1.0 - share) * FORWARD_S
    forward_s = FORWARD_S + drafts_s + prompts_s
    made.expect_nothing(ALL, WAITING_S, usual_s)
    expect(ALL, np.array([gain]), drafts_s / forward_s, WAITING_S, usual_s, made.accounts.open)
    seconds = WAITING_S + handling_s + DRAFTING_S + forward_s
    made.settle(ALL, each(seconds), each(forward_s), each(prompts_s), DRAFTING_S)


def plain(made: NoHarmAccounts, seconds: float = PLAIN_S) -> None:
    made.settle(ALL, each(seconds), each(FORWARD_S), each(0.0), 0.0)


def each(seconds: float) -> Floats:
    return np.array([seconds])


def allowed(made: NoHarmAccounts) -> float:
    """Rounds of plain decoding that one round may take."""
    caps = caps_of(ALL, np.array([True]), PLAIN_S, made.accounts)
    return float(caps_at(caps, np.zeros(1))[0]) / PLAIN_S


@pytest.mark.parametrize("share", [0.0, 0.2])
@pytest.mark.parametrize("handling_s", [0.0, 2e-3])
def test_a_round_costs_all_that_plain_ones_do_not_take(handling_s: float, share: float) -> None:
    made = ledger()
    before = allowed(made)
    drafted(made, 0.5, handling_s, share)
    drafts_s = share / (1.0 - share) * FORWARD_S
    slowdown = (PLAIN_S + DRAFTING_S + handling_s + drafts_s) / PLAIN_S
    assert allowed(made) - before == pytest.approx(1.5 - slowdown)


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_prompts_that_ride_along_cost_nothing(share: float) -> None:
    """Nor do they hide a part of what drafts cost: these then looked a fifth cheaper."""
    alone, beside = ledger(), ledger()
    drafted(alone, 0.5, 1e-3, share)
    drafted(beside, 0.5, 1e-3, share, prompts_s=20e-3)
    assert allowed(beside) == pytest.approx(allowed(alone))


def test_plain_rounds_cost_nothing_however_long() -> None:
    made = ledger()
    before = allowed(made)
    plain(made, seconds=1.0)
    assert allowed(made) == before


def test_a_pause_of_the_process_is_not_the_drafts() -> None:
    made = ledger()
    before = allowed(made)
    drafted(made, 0.0, handling_s=30.0, usual_s=0.0)
    assert before - allowed(made) < 1.0


def test_waits_that_scatter_make_no_debts() -> None:
    made = ledger()
    before = allowed(made)
    for off_s in [0.8e-3, -0.8e-3] * 20:
        drafted(made, DRAFTING_S / PLAIN_S, handling_s=off_s, usual_s=0.0)
    assert allowed(made) == pytest.approx(before)


def test_chance_does_not_raise_the_care() -> None:
    """All gain 0.5% on what rounds cost them; handling takes nothing or 4.5 ms, 1.5 on average."""
    made, rng = ledger(), np.random.default_rng(0)
    gain = 1.005 * (PLAIN_S + DRAFTING_S + 1.5e-3) / PLAIN_S - 1.0
    cares = []
    for _ in range(200):
        caps_of(ALL, np.array([True]), PLAIN_S, made.accounts)
        for handling_s in rng.choice([0.0, 4.5e-3], 15, p=[2 / 3, 1 / 3]):
            drafted(made, gain, handling_s, usual_s=1.5e-3)
        made.forget(0)
        cares.append(made.care)
    assert np.mean(cares) < 2.0


def end(made: NoHarmAccounts, speed: float, rounds: int = 20) -> None:
    """A request comes, is given so much of plain decoding's speed, and goes."""
    caps_of(ALL, np.array([True]), PLAIN_S, made.accounts)
    for _ in range(rounds):
        drafted(made, speed * (PLAIN_S + DRAFTING_S) / PLAIN_S - 1.0, handling_s=0.0)
    made.forget(0)


def test_care_rises_while_requests_end_badly_and_falls_when_they_do_not() -> None:
    made = ledger()
    for _ in range(10):
        end(made, 0.9)
    assert made.care > 8.0
    for _ in range(1000):
        end(made, 0.9)
    highest = made.care
    for _ in range(300):
        end(made, 1.2)
    assert made.care == -1.0
    assert highest < 20.0


def test_a_care_that_one_bad_moment_has_raised_falls_soon() -> None:
    """All of a batch were in the same slow rounds."""
    made = ledger()
    for _ in range(16):
        end(made, 0.8)
    high = made.care
    for _ in range(60):
        end(made, 1.0)
    assert high > 12.0
    assert made.care < 4.0


def test_care_falls_where_it_costs_more_than_it_may_however_badly_requests_end() -> None:
    made = ledger()
    for _ in range(10):
        end(made, 0.9)
    dear = made.care
    for _ in range(40):
        made.learn_price(2 * MOST_PRICE)
        end(made, 0.9)
    assert made.care < dear / 4
    for _ in range(40):
        made.learn_price(0.0)
        end(made, 0.9)
    assert made.care > dear


def test_where_nothing_is_left_to_care_for_the_objective_turns_to_throughput() -> None:
    """By steps: with less and less care all weigh the same, then proportional fairness goes."""
    made = ledger()
    assert power_of(True, made.accounts) == 0.0
    powers = []
    for _ in range(300):
        end(made, 1.2)
        powers.append(power_of(True, made.accounts))
    assert any(0.0 < power < 1.0 for power in powers)
    assert powers[-1] == 1.0
    assert weights_of(ALL, np.array([True]), made.accounts) == 1.0
    end(made, 0.9)
    assert power_of(True, made.accounts) < 1.0
    assert power_of(False, ledger().accounts) == 1.0, "the throughput objective"


def test_no_line_holds_that_costs_more_than_it_may_where_the_objective_has_no_care_left() -> None:
    made = ledger()
    for _ in range(100):
        made.learn_price(2 * MOST_PRICE)
    assert allowed(made) < np.inf, "first the care goes"
    for _ in range(100):
        end(made, 0.9)
    assert allowed(made) == np.inf
    for _ in range(100):
        made.learn_price(0.0)
    assert allowed(made) < np.inf


def test_the_slower_a_request_has_been_the_more_it_weighs() -> None:
    made = ledger()

    def weight(promised: bool = True) -> float:
        return float(weights_of(ALL, np.array([promised]), made.accounts)[0])

    new = weight()
    assert 1.0 < new < 1.0 + made.care, "neither slow nor fast yet"
    for _ in range(10):
        drafted(made, gain=0.0, handling_s=0.0)
    slow = weight()
    assert slow == 1.0 + made.care
    assert weight(promised=False) == 1.0, "it has caps of its own"
    for _ in range(40):
        drafted(made, gain=1.0, handling_s=0.0)
    assert weight() == 1.0


def test_the_share_of_bad_ends_settles_at_the_exceptions() -> None:
    """Here the speed of half of the requests depends on the care, more or less."""
    made, rng = ledger(), np.random.default_rng(0)
    bad = []
    for number in range(3000):
        speed = rng.normal(0.92 + 0.01 * made.care, 0.02) if number % 2 else 1.5
        end(made, speed, rounds=5)
        bad.append(speed < PROMISE)
    assert np.mean(bad[:20]) > 0.2
    assert np.mean(bad[1000:]) == pytest.approx(EXCEPTIONS, abs=0.03)


def test_who_is_promised_nothing_and_who_was_hardly_there_teach_nothing() -> None:
    made = ledger()
    before = made.care
    for _ in range(20):
        end(made, 0.8, rounds=2)
        caps_of(ALL, np.array([False]), PLAIN_S, made.accounts)
        for _ in range(20):
            drafted(made, 0.0, handling_s=3e-3)
        made.forget(0)
    assert made.care == before
