"""The drafter of an EAGLE-3 head (kind `eagle3`): a model drafter that also reads the target's
features, which orders bring along."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from cluster.checkpoints import architecture
from engine.cpu.prepack import fast_dtype
from engine.draft_profile import DraftCosts, measure_drafter
from engine.drafters.beam import DraftJob
from engine.drafters.eagle3_head import Eagle3Head
from engine.drafters.eagle3_runner import Eagle3Runner
from engine.drafters.loading import LoadedDrafter, cached_costs
from engine.drafters.model import ModelDrafter, check_vocabulary
from engine.errors import IncompatibleDrafter
from engine.feature_buffer import lacks_from
from engine.grammar.compiler import Grammars
from engine.hidden_states import as_tensor
from engine.learning.versions import unpacked
from engine.protocol import (
    ContinueDrafting,
    Draft,
    DraftOrder,
    Missing,
    NoRoom,
    to_ordered_depth,
)
from engine.soft_state import HeldRequest


class Eagle3Drafter(ModelDrafter):
    """Answers Missing from where it lacks features: of rows that were evicted it has none any
    more."""

    reuses_draft_rows = False

    def __init__(
        self,
        name: str,
        head: Eagle3Head,
        *,
        kv_tokens: int,
        target_vocab_size: int,
        grammars: Grammars | None = None,
    ) -> None:
        self._rows = Eagle3Runner(head, kv_tokens, self._features_of)
        super().__init__(name, self._rows, target_vocab_size=target_vocab_size, grammars=grammars)
        self.feature_layers = head.aux_layers
        self._features: dict[str, tuple[int, Tensor]] = {}
        """By request, the first position whose row is still to be run, or to run again, and the
        features from there on."""

    def draft(
        self, orders: Sequence[DraftOrder], continue_drafting: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]:
        answers = super().draft(orders, continue_drafting)
        self._rows.drop_drafts()
        for order in orders:
            self._drop_read(order.prefix.request)
        return answers

    def roll_back(self, requests: Iterable[str]) -> None:
        """Drops only rows of tokens that the failed call's orders have brought, whose features are
        still here. Earlier rows stay, because their features are gone."""
        for request in requests:
            if request in self._state:
                self._rows.truncate(request, self._state[request].unchanged)

    def renew(self, version: bytes) -> None:
        """Rows of the old weights stay until their requests end: only drafts suffer."""
        self._rows.head = self._rows.head.renewed(unpacked(version).weights)

    def _accept(self, orders: Sequence[DraftOrder]) -> list[HeldRequest | Missing]:
        return [
            held if isinstance(held, Missing) else self._with_features(order, held)
            for order, held in zip(orders, super()._accept(orders), strict=True)
        ]

    def _job(self, order: DraftOrder, held: HeldRequest) -> DraftJob:
        if len(held.committed.ids) < 2:  # there is no position before the last token
            order = order._replace(depth=0)
        return super()._job(order, held)

    def _drop_rows(self, request: str) -> None:
        super()._drop_rows(request)
        self._features.pop(request, None)

    def _with_features(self, order: DraftOrder, held: HeldRequest) -> HeldRequest | Missing:
        """Keeps what the order has brought; Missing if a row that is to be run lacks features."""
        prefix, end = order.prefix, lacks_from(len(held.committed.ids))
        has_rows = min(self._rows.length(prefix.request), held.unchanged, end)
        first, rows = self._features.get(prefix.request, (0, None))
        if rows is not None:
            rows = rows[: max(held.unchanged - first, 0)]
        if order.features is not None and len(order.features.rows):
            new = as_tensor(order.features.rows)
            if rows is not None and first <= order.features.first <= first + len(rows):
                rows = torch.cat([rows[: order.features.first - first], new])
            else:
                first, rows = order.features.first, new
        needed = lacks_from(has_rows)
        lacks = rows is None or first > needed or first + len(rows) < end
        if lacks and needed < end:
            return Missing(prefix.request, prefix.attempt, prefix.round, has_rows)
        if rows is not None:
            self._features[prefix.request] = (first, rows)
        return held

    def _features_of(self, request: str, begin: int, end: int) -> Tensor:
        if begin == end:
            width = len(self.feature_layers) * self._rows.head.target_hidden_size
            return torch.empty(0, width)
        first, rows = self._features[request]
        return rows[begin - first : end - first]

    def _drop_read(self, request: str) -> None:
        """The last row runs again if another token is committed after it."""
        if request in self._features:
            first, rows = self._features[request]
            needed = max(first, self._rows.length(request) - 2)
            self._features[request] = (needed, rows[needed - first :].clone())


def load_eagle3(
    name: str,
    checkpoint: Path,
    *,
    dtype: torch.dtype | None,
    device: str,
    kv_tokens: int,
    target_vocab_size: int,
    target: Path,
) -> LoadedDrafter:
    """`target`: its checkpoint. Without a `dtype`, linear layers have 8 bits on a CPU. Raises
    IncompatibleDrafter."""
    int8 = dtype is None and device == "cpu"
    dtype = dtype or (torch.float32 if int8 else fast_dtype(device))
    try:
        check_vocabulary(name, architecture(checkpoint).vocab_size, target_vocab_size)
        head = Eagle3Head.load(checkpoint, device, dtype, target, int8=int8)
    except ValueError as error:
        raise IncompatibleDrafter(name, "model", str(error)) from error
    drafter = Eagle3Drafter(
        name,
        head,
        kv_tokens=kv_tokens,
        target_vocab_size=target_vocab_size,
        grammars=Grammars.of(target, target_vocab_size),
    )
    width = len(head.aux_layers) * head.target_hidden_size

    setup = f"draft steps of a head over {len(head.vocabulary)} tokens, features of {width}"
    setup += ", in 8 bits" if int8 else ""

    def measure(cache_dir: Path, seconds: float) -> DraftCosts:
        context = drafter.max_context
        steps = partial(measure_drafter, drafter, target_vocab_size, context, seconds, width)
        return cached_costs(head, torch.device(device), setup, cache_dir, seconds, steps)

    return LoadedDrafter(
        drafter,
        measure=measure,
        feature_layers=head.aux_layers,
        feature_width=width,
        renew=drafter.renew,
    )
