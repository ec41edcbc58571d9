"""Attention layouts by name; all are equal in result (tested)."""

from typing import Literal

from engine.attention.context import AttentionBatch, AttentionPlan, Layout
from engine.attention.decomposed import decomposed
from engine.attention.flex import FusedPlan
from engine.attention.packed import PackedPlan
from engine.attention.pieces import padded

LayoutName = Literal["packed", "decomposed", "padded"]
LayoutChoice = Literal["packed", "decomposed", "padded", "auto"]
"""`auto`: measured when a model is loaded (engine/attention/choice.py)."""


def packed(batch: AttentionBatch) -> AttentionPlan:
    return PackedPlan(batch) if batch.device.type == "cpu" else FusedPlan(batch)


LAYOUTS: dict[LayoutName, Layout] = {
    "packed": packed,
    "decomposed": decomposed,
    "padded": padded,
}
