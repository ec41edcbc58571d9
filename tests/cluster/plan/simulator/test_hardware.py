"""Roofline costs: times of forwards from published peak rates, and how they scale."""

import pytest

from cluster.plan.simulator.hardware import A100, roofline
from lab.papers.hardware import L20, LLAMA_7B, LLAMA_31_70B, kv_tokens, swap_s_per_token


def test_a_70b_model_on_four_a100_takes_some_25_ms_per_token() -> None:
    cost = roofline(LLAMA_31_70B, A100, 4)
    assert 0.020 < cost.predict(1024, 1) < 0.032


def test_a_token_is_nearly_free_below_the_knee_and_costs_arithmetic_above_it() -> None:
    cost = roofline(LLAMA_7B, A100)
    assert 64 < cost.knee < 512
    below = cost.predict(0, cost.knee) - cost.predict(0, 1)
    above = cost.predict(0, 3 * cost.knee) - cost.predict(0, 2 * cost.knee)
    assert below < 0.01 * cost.predict(0, 1)
    assert above == pytest.approx(2 * 6.74e9 * cost.knee / (0.6 * 312e12), rel=0.01)


def test_kv_gets_the_memory_that_the_weights_leave() -> None:
    # 48 GB less 13.5 GB of weights, half a MiB of KV per token.
    assert kv_tokens(LLAMA_7B, L20) == pytest.approx((0.9 * 48e9 - 13.48e9) / 524_288, abs=1)
    assert kv_tokens(LLAMA_31_70B, A100) == 0
    assert swap_s_per_token(LLAMA_7B, L20) * 500 == pytest.approx(0.0117, rel=0.01)
