"""`attention: auto` takes the layout that is measured to be fastest here, and leaves out others."""

import logging
from time import sleep

import pytest
import torch

from engine.attention.choice import fastest_layout
from engine.attention.context import AttentionBatch, AttentionPlan, Layout
from engine.attention.layouts import LAYOUTS, LayoutName
from engine.kv.cache import KVCache, KVShape

SHAPE = KVShape(2, 2, 8, torch.float32, torch.device("cpu"))


def slowed(layout: Layout) -> Layout:
    def slow(batch: AttentionBatch) -> AttentionPlan:
        sleep(0.02)
        return layout(batch)

    return slow


def broken(_batch: AttentionBatch) -> AttentionPlan:
    raise RuntimeError("no kernel for this device")


@pytest.mark.parametrize("fast", LAYOUTS)
def test_the_fastest_is_chosen_and_named_in_the_log(
    fast: LayoutName, caplog: pytest.LogCaptureFixture
) -> None:
    layouts = {name: layout if name == fast else slowed(layout) for name, layout in LAYOUTS.items()}
    with caplog.at_level(logging.INFO, logger="spindle"):
        assert fastest_layout(KVCache(SHAPE, 64), 4, 512, layouts, seconds=0.0) == fast
    assert f"attention: {fast} is the fastest here" in caplog.text


def test_one_that_does_not_run_here_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    layouts: dict[LayoutName, Layout] = {**LAYOUTS, "packed": broken}
    chosen = fastest_layout(KVCache(SHAPE, 64), 4, 512, layouts, seconds=0.0)
    assert chosen in ("decomposed", "padded")
    assert "attention packed does not run on cpu" in caplog.text


def test_the_smallest_pool_and_context_are_enough() -> None:
    assert fastest_layout(KVCache(SHAPE, 4), 4, 16, seconds=0.0) in LAYOUTS
