"""Every kind of attention equals its definition, on random skewed batches."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from engine.attention.context import AttentionBatch, Layout, Scoring
from engine.attention.flex import FusedPlan
from engine.attention.packed import BLOCK_LINES, PackedPlan
from engine.step_graphs import StaticPlan
from tests.engine.attention.batches import random_batch, random_tensors, reference


def static(batch: AttentionBatch) -> StaticPlan:
    """A plan of the batch's own shape."""
    rows, context = int(batch.row_offsets[-1]), int(batch.kv_counts().max())
    plan = StaticPlan(rows, context, batch.device)
    plan.load(batch)
    return plan


LAYOUTS: dict[str, Layout] = {"packed": PackedPlan, "fused": FusedPlan, "static": static}
SCORINGS = {"plain": Scoring(0.25), "window": Scoring(0.25, window=9)}
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
# FusedPlan is for CUDA. Here flex_attention runs uncompiled, which tests its masks, not the kernel.


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread and several run different compiled kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
@pytest.mark.parametrize("group", [1, 2, 4])
def test_layout_equals_the_definition(layout: Layout, scoring: Scoring, group: int) -> None:
    rng = np.random.default_rng(group)
    for requests in (1, 3, 8):
        batch = random_batch(rng, requests, group=group)
        tensors = random_tensors(rng, batch)
        expected = reference(batch, *tensors, scoring)
        mixed = layout(batch).attend(*tensors, scoring)
        torch.testing.assert_close(mixed.double(), expected, atol=1e-4, rtol=0)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_packed_mixes_prefill_chunks_with_short_segments(scoring: Scoring) -> None:
    rng = np.random.default_rng(5)
    batch = random_batch(rng, 8, most_rows=3 * BLOCK_LINES)
    lines = batch.row_counts() * batch.group
    assert lines.min() <= BLOCK_LINES < lines.max()
    tensors = random_tensors(rng, batch)
    expected = reference(batch, *tensors, scoring)
    mixed = PackedPlan(batch).attend(*tensors, scoring)
    torch.testing.assert_close(mixed.double(), expected, atol=1e-4, rtol=0)


def test_one_plan_serves_layers_that_differ() -> None:
    """Gemma alternates windows: a cached mask must not be used for another window."""
    rng = np.random.default_rng(7)
    batch = random_batch(rng, 4)
    tensors = random_tensors(rng, batch)
    for layout in LAYOUTS.values():
        plan = layout(batch)
        for scoring in (Scoring(0.25, window=5), Scoring(0.25), Scoring(0.25, window=20)):
            expected = reference(batch, *tensors, scoring)
            mixed = plan.attend(*tensors, scoring)
            torch.testing.assert_close(mixed.double(), expected, atol=1e-4, rtol=0)
