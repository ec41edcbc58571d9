"""Profiles of vLLM steps, measured through the verifier."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from cluster.built_in_models import TARGET, model_path
from engine.profiler import Grid
from engine.protocol import VerifyOrder
from engine.verifiers.vllm.loading import VllmSpec
from engine.verifiers.vllm.profile import measure, profile_vllm
from tests.engine.verifiers.backends import AMPLE, TIGHT, vllm

GRID = Grid(requests=(1, 3), rows=(1, 4), context=(20, 60), rounds=2)
SPEC = VllmSpec(model_path(TARGET), "float32", AMPLE)


def test_every_shape_is_measured_once_and_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = vllm(AMPLE)
    measured = profile_vllm(verifier, SPEC, tmp_path, GRID)
    shapes = {(sample.context, sample.tokens) for sample in measured.samples}
    # Contexts are rounded up to whole blocks and one token.
    assert shapes == {
        (requests * context, requests * rows)
        for requests in (1, 3)
        for rows in (1, 4)
        for context in (33, 65)
    }
    assert all(sample.seconds > 0 for sample in measured.samples)
    assert verifier.blocks().used == 0

    def measured_again(_orders: Sequence[VerifyOrder]) -> object:
        raise AssertionError("it was measured again")

    monkeypatch.setattr(verifier, "verify", measured_again)
    assert profile_vllm(verifier, SPEC, tmp_path, GRID).samples == measured.samples


def test_shapes_that_do_not_fit_the_pool_are_skipped() -> None:
    samples = measure(vllm(TIGHT), Grid(requests=(1, 4), rows=(1,), context=(32, 256), rounds=1))
    assert {(sample.context, sample.tokens) for sample in samples} == {(33, 1), (132, 4), (257, 1)}
