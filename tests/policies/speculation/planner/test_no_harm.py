"""What rounds were worth to each request, and what follows from it for the next one."""

import numpy as np
import pytest
from policies.speculation.planner.no_harm import (
    FAIRNESS_WEIGHT,
    NoHarmAccounts,
    caps_of,
    weights_of,
)

from policies.speculation.forest import Floats

WINDOW, NO_HARM = 100, 0.97
FORWARD_S, WAIT_S, DRAFTING_S = 10e-3, 1e-3, 3e-3
PLAIN_S = FORWARD_S + WAIT_S
ALL = np.array([0])
BOUND = np.array([True])


def account() -> NoHarmAccounts:
    made = NoHarmAccounts(NO_HARM, WINDOW)
    made.reserve(1)
    return made


def drafted(
    made: NoHarmAccounts,
    gain: float,
    overhead_s: float,
    share: float = 0.0,
    prompts_s: float = 0.0,
) -> None:
    """`share`: of the forward without prompts, what drafts cost."""
    drafts_s = share / (1.0 - share) * FORWARD_S
    forward_s = FORWARD_S + drafts_s + prompts_s
    made.open_round(ALL, 0.0, 0.0, WAIT_S, overhead_s)
    made.open_round(ALL, np.array([gain]), drafts_s / forward_s, WAIT_S, overhead_s)
    made.close_round(ALL, each(forward_s), each(prompts_s), DRAFTING_S)


def plain(made: NoHarmAccounts, forward_s: float = FORWARD_S) -> None:
    made.close_round(ALL, each(forward_s), each(0.0), 0.0)


def each(seconds: float) -> Floats:
    return np.array([seconds])


def allowed(made: NoHarmAccounts) -> float:
    """Rounds of plain decoding that one round may take."""
    caps = caps_of(ALL, BOUND, PLAIN_S, made.accounts)
    return float(caps.slope[0] + caps.offset[0]) / PLAIN_S


@pytest.mark.parametrize("share", [0.0, 0.2])
@pytest.mark.parametrize("overhead_s", [0.0, 2e-3])
def test_a_round_costs_all_that_plain_ones_do_not_take(overhead_s: float, share: float) -> None:
    made = account()
    before = allowed(made)
    drafted(made, 0.5, overhead_s, share)
    drafts_s = share / (1.0 - share) * FORWARD_S
    slowdown = (PLAIN_S + DRAFTING_S + overhead_s + drafts_s) / PLAIN_S
    assert allowed(made) - before == pytest.approx(1.5 - slowdown)


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_prompts_in_the_same_forward_cost_nothing(share: float) -> None:
    """Nor do they hide a part of what drafts cost: these then looked a fifth cheaper."""
    alone, beside = account(), account()
    drafted(alone, 0.5, 1e-3, share)
    drafted(beside, 0.5, 1e-3, share, prompts_s=20e-3)
    assert allowed(beside) == pytest.approx(allowed(alone))


def test_plain_rounds_cost_nothing_however_long() -> None:
    made = account()
    before = allowed(made)
    plain(made, forward_s=1.0)
    assert allowed(made) == before


def test_a_debt_is_repaid_in_parts() -> None:
    made = account()
    for _ in range(30):
        drafted(made, 0.0, 0.0)
    behind = 30 * DRAFTING_S / PLAIN_S - (1 - NO_HARM) * WINDOW
    assert behind > 0
    assert allowed(made) == pytest.approx(1.0 - 0.05 * behind, abs=0.05)


def test_the_slower_a_request_has_been_the_more_it_weighs() -> None:
    def weight(gain: float) -> float:
        made = account()
        for _ in range(200):
            drafted(made, gain, 0.0)
        return float(weights_of(ALL, BOUND, made.accounts)[0])

    slowdown = DRAFTING_S / PLAIN_S
    assert weight(slowdown + 0.5) == 1.0
    assert weight(slowdown - 0.2) == pytest.approx(1.0 + FAIRNESS_WEIGHT)
    assert 1.0 < weight(slowdown + 0.1) < 1.0 + FAIRNESS_WEIGHT
    assert weights_of(ALL, np.array([False]), account().accounts)[0] == 1.0


def test_a_forgotten_request_leaves_an_empty_account() -> None:
    made = account()
    for _ in range(30):
        drafted(made, 0.0, 0.0)
    made.forget(0)
    assert allowed(made) == allowed(account())
