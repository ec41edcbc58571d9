"""A drafter that reads the target's features, and remembers them for comparison."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from engine.feature_buffer import lacks_from
from engine.protocol import (
    ContinueDrafting,
    Draft,
    Drafter,
    DraftOrder,
    Missing,
    NoRoom,
    to_ordered_depth,
)
from engine.soft_state import HeldRequest, SoftState

Rows = NDArray[Any]


class FeatureReader:
    """Drafts as `inner` does, but only where it has the features of every position before."""

    def __init__(self, inner: Drafter, layers: tuple[int, ...]) -> None:
        self._inner = inner
        self.feature_layers = layers
        self._state = SoftState(64, on_drop=self._drop)
        self._rows: dict[str, Rows] = {}
        self.read: list[tuple[str, list[int], Rows]] = []
        """The request, its committed tokens and their features, for each order that has brought
        any."""

    @property
    def name(self) -> str:
        return self._inner.name

    def draft(
        self, orders: Sequence[DraftOrder], continue_drafting: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]:
        held = self._state.accept([order.prefix for order in orders])
        own = [self._take(order, one) for order, one in zip(orders, held, strict=True)]
        passed = [
            order._replace(features=None)
            for order, answer in zip(orders, own, strict=True)
            if answer is None
        ]
        drafts = iter(self._inner.draft(passed, continue_drafting))
        return [next(drafts) if answer is None else answer for answer in own]

    def forget(self, requests: Iterable[str]) -> None:
        self._state.forget(requests)
        self._inner.forget(requests)

    def roll_back(self, requests: Iterable[str]) -> None:
        self._inner.roll_back(requests)

    def _take(self, order: DraftOrder, held: HeldRequest | Missing) -> Missing | None:
        if isinstance(held, Missing):
            return held
        prefix, new = order.prefix, order.features
        first, end = lacks_from(prefix.base), lacks_from(len(held.committed.ids))
        rows = self._rows.get(prefix.request)
        have = 0 if rows is None else min(len(rows), held.unchanged)
        if have < first:
            known = have + 1 if have else 0
            return Missing(prefix.request, prefix.attempt, prefix.round, known)
        assert new is not None, "an order without features"
        if first < end:
            assert (new.first, len(new.rows)) == (first, end - first)
            rows = new.rows if rows is None else np.concatenate([rows[:first], new.rows])
            self._rows[prefix.request] = rows
            self.read.append((prefix.request, list(held.committed.ids), rows))
        return None

    def _drop(self, request: str, _held: HeldRequest) -> None:
        self._rows.pop(request, None)


def stock_features(
    model: PreTrainedModel, tokens: Sequence[int], layers: Sequence[int]
) -> NDArray[np.float32]:
    """[tokens, layers · hidden size], of a stock model without cache."""
    assert model.config._attn_implementation == "eager"
    with torch.inference_mode():
        output = model(
            input_ids=torch.tensor([list(tokens)]), use_cache=False, output_hidden_states=True
        )
    return torch.cat([output.hidden_states[layer][0] for layer in layers], 1).float().numpy()


def check_features(reader: FeatureReader, model: PreTrainedModel, atol: float = 1e-4) -> None:
    assert reader.read, "no features were read"
    for _, tokens, rows in reader.read:
        expected = stock_features(model, tokens, reader.feature_layers)[: len(rows)]
        np.testing.assert_allclose(rows, expected, atol=atol)
