"""The profiler on a real model: what it measures, and when it measures again."""

import os
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from engine import profiler
from engine.cpu import threads
from engine.model import PackedModel
from engine.profiler import (
    Grid,
    ProfileKey,
    Shape,
    measure,
    measure_alternately,
    profile,
    shapes_of,
)
from policies.cost import fit_roofline
from tests.checkpoints import CONTEXT, llama
from tests.engine.kv import integrity

GRID = Grid(requests=(1, 3), rows=(1, 4), context=(16, 40), rounds=2)


@pytest.fixture(scope="module")
def model() -> PackedModel:
    return PackedModel(llama(), kv_tokens=512)


def test_every_shape_is_measured_once_and_nothing_stays_behind(model: PackedModel) -> None:
    measured = measure(model, GRID)
    assert sorted((s.context, s.tokens) for s in measured) == sorted(
        (n * context, n * rows) for n in (1, 3) for rows in (1, 4) for context in (16, 40)
    )
    assert all(sample.seconds > 0 for sample in measured)
    assert model.kv.used_blocks == 0
    integrity.check(model.kv)


def test_rows_of_the_measurement_are_never_taken_for_a_prompts(model: PackedModel) -> None:
    measure(model, GRID)
    for token in range(model.vocab_size):
        assert model.kv.open("prompt", [token] * 64) == 0
        model.kv.release("prompt")


def test_shapes_too_large_for_the_model_are_left_out(model: PackedModel) -> None:
    grid = replace(GRID, context=(16, CONTEXT))
    assert {sample.context for sample in measure(model, grid)} == {16, 48}
    with pytest.raises(ValueError, match="too small"):
        measure(model, replace(GRID, context=(CONTEXT,)))


def test_a_second_profile_comes_from_the_cache(
    model: PackedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "waited_s", lambda: 0.0)
    first = profile(model, "packed", tmp_path, GRID)
    assert profile(model, "packed", tmp_path, GRID) == first
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
    assert 1 <= first.token_budget <= 12


def test_what_was_measured_beside_other_work_is_measured_again_when_it_is_quiet(
    model: PackedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "waited_s", perf_counter)
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    disturbed = profile(model, "packed", tmp_path, GRID)
    assert profile(model, "packed", tmp_path, GRID) == disturbed
    monkeypatch.setattr(threads, "waited_s", lambda: 0.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    again = profile(model, "packed", tmp_path, GRID)
    assert again != disturbed
    assert profile(model, "packed", tmp_path, GRID) == again


def test_whatever_changes_the_cost_is_measured_anew(
    model: PackedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(setup: str = "packed", grid: Grid = GRID, of: PackedModel = model) -> ProfileKey:
        return ProfileKey.of(of.hf_model, model.device, setup, grid)

    first = key()
    others = [key(setup="padded"), key(grid=replace(GRID, rounds=3))]
    smaller, rounded = llama(layers=1), llama().bfloat16()
    others += [key(of=PackedModel(one, kv_tokens=512)) for one in (smaller, rounded)]
    monkeypatch.setattr(profiler, "most_threads", lambda: first.threads + 1)
    assert len({first, *others, key()}) == 6


class Machine:
    """On which each token of a forward takes so many seconds, and each forward one tenth."""

    def __init__(self, token_s: float) -> None:
        self.now = 0.0
        self.token_s = token_s

    def clock(self) -> float:
        return self.now

    def time_forward(self, shape: Shape, _rng: np.random.Generator) -> float:
        took = 0.1 + self.token_s * shape.tokens
        self.now += took
        return took


@pytest.mark.parametrize("token_s", [0.0, 0.001, 0.01, 0.02])
def test_a_budget_of_seconds_is_kept(token_s: float) -> None:
    machine = Machine(token_s)
    grid = Grid(seconds=5.0)
    samples = measure_alternately(shapes_of(grid), grid, machine.time_forward, machine.clock)
    assert machine.now <= 5.0
    assert len({sample.tokens for sample in samples}) >= 3, "a knee can be found"
    assert len({sample.context for sample in samples}) >= 2


class DisturbedMachine(Machine):
    """Every third forward takes twice as long, as beside other work."""

    def __init__(self, token_s: float, first: int) -> None:
        super().__init__(token_s)
        self._forward = first

    def time_forward(self, shape: Shape, rng: np.random.Generator) -> float:
        self._forward += 1
        return super().time_forward(shape, rng) * (1 + (self._forward % 3 == 0))


@pytest.mark.parametrize("token_s", [0.001, 0.002, 0.005])
@pytest.mark.parametrize("first", range(3))
def test_a_short_and_noisy_measurement_shows_what_tokens_cost(token_s: float, first: int) -> None:
    machine, grid = DisturbedMachine(token_s, first), Grid(seconds=3.0)
    samples = measure_alternately(shapes_of(grid), grid, machine.time_forward, machine.clock)
    most = fit_roofline(samples).predict(0, 128)
    assert most == pytest.approx(0.1 + 128 * token_s, rel=0.35)
