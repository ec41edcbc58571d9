"""Which lanes read the target's features, and what each of them can be sent."""

from collections.abc import Iterable, Iterator, Mapping

from engine.feature_buffer import FeatureBuffer, lacks_from
from engine.protocol import FeatureRange, Features, Prefix
from engine.request import VERIFIER, ServedRequest


class FeatureLanes:
    """The lanes whose drafters read features, and what each of them can be sent.

    A lane that lacks features which are not kept any more (its drafter was restarted, or too many
    tokens were committed without it) is left out of a request until the verifier computes these
    positions again. Until then nothing is kept for it, nor asked of the verifier.
    """

    def __init__(self, layers: Mapping[str, tuple[int, ...]], most_tokens: int) -> None:
        """`layers`: by lane; lanes without any are left out. `most_tokens`: kept per request."""
        self._by_lane = {lane: some for lane, some in layers.items() if some}
        self._layers = tuple(sorted({one for some in self._by_lane.values() for one in some}))
        self._most = most_tokens

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_lane)

    def __len__(self) -> int:
        return len(self._by_lane)

    def needed(self, served: ServedRequest, lanes: Iterable[str]) -> FeatureRange | None:
        """What the next verdict should bring. `lanes`: those of these lanes that may draft for the
        request."""
        first, kept = self._drop_unneeded(served, lanes), served.features
        if first is None:
            return None
        if kept is not None and first >= kept.first:
            first = kept.end
        return FeatureRange(self._layers, first)

    def keep(self, served: ServedRequest, features: Features, lanes: Iterable[str]) -> None:
        """Keeps what a verdict has brought until the lanes have read it."""
        if served.features is None:
            served.features = FeatureBuffer(self._layers, self._most)
        served.features.add(features)
        self._drop_unneeded(served, lanes)

    def lacks(self, served: ServedRequest, lane: str) -> bool:
        """Whether features that the lane needs next are not kept any more."""
        kept = served.features
        return kept is not None and lacks_from(served.known.get(lane, 0)) < kept.first

    def readable(self, served: ServedRequest, lane: str) -> int:
        """How many committed tokens the lane can have after its next order: all, but for features
        that it cannot be sent."""
        committed = len(served.committed.ids)
        if lane not in self._by_lane:
            return committed
        known, kept = served.known.get(lane, 0), served.features
        if kept is None or self.lacks(served, lane):
            return known
        return min(committed, max(known, kept.end + 1))

    def can_draft(self, served: ServedRequest, lane: str) -> bool:
        return lane not in self._by_lane or (
            self.readable(served, lane) == len(served.committed.ids)
            and not self.lacks(served, lane)
        )

    def of_order(self, served: ServedRequest, lane: str, prefix: Prefix) -> Features | None:
        """What the order with this prefix brings to the lane; it is `readable`."""
        layers = self._by_lane.get(lane)
        if layers is None or served.features is None:
            return None
        first, end = lacks_from(prefix.base), prefix.base + len(prefix.delta) - 1
        return served.features.read(first, end, layers)

    def _drop_unneeded(self, served: ServedRequest, lanes: Iterable[str]) -> int | None:
        """Keeps only what one of these lanes can still be sent, and returns the first position of
        it; None if there is no such lane. The verifier computes again what it does not know."""
        kept, available = served.features, served.known.get(VERIFIER, 0)
        if kept is not None:
            available = min(available, kept.first)
        lacking = [lacks_from(served.known.get(lane, 0)) for lane in lanes]
        first = min([position for position in lacking if position >= available], default=None)
        if kept is not None:
            kept.drop_before(kept.end if first is None else first)
        return first
