"""What rounds take beyond forward and drafting: handling, transport, and what a draft call leaves
behind. Where drafters share processors with the verifier, the forward after their call is slower,
which no clock of theirs shows.

Learned as running means, each of the part that the others do not explain. Such times scatter by
more than they are, so the means are long, and one observation moves them a little way only.
"""

from collections.abc import Collection

_MEMORY = 0.02
"""Of the running means: the last fifty rounds of a kind count."""
_FARTHEST = 0.25
"""Of a forward, from what is usual: what lies farther off is a pause of the whole process, or the
end of one, and counts as no more."""
_USUALLY_NOTHING = 7
"""Observations that speak for a call that leaves nothing behind: what drafting costs is handling,
until rounds differ by their lanes."""
_FORGETTING = 0.002
"""Per plain round, of what drafts have cost: a bad spell must not end drafting for good, for
only drafting could tell that it is over. Slow, or where few rounds pay for drafts the others would
make them look cheap."""


class RoundOverheads:
    def __init__(self) -> None:
        self._plain = _Mean()
        self._drafted = _Mean()
        """Of rounds in which drafters are asked, be it in vain, but for what calls leave behind."""
        self._behind: dict[str, _Mean] = {}
        """By lane, of each round in which it was called."""

    @property
    def own_s(self) -> float:
        """What a plain round takes."""
        return max(0.0, self._plain.value)

    @property
    def drafted_s(self) -> float:
        """What a round in which drafters are asked takes beyond that."""
        return max(0.0, self._drafted.value - self._plain.value)

    def behind_s(self, lane: str) -> float:
        """What a call of this lane adds to the rest of its round; less than nothing where other
        handling is done while it drafts."""
        mean = self._behind.get(lane)
        return mean.value if mean else 0.0

    def learn(self, extra_s: float, forward_s: float, asked: bool, lanes: Collection[str]) -> None:
        """One round: what it took beyond drafting and `forward_s`, its forward as expected;
        whether drafters were asked at all, and which lanes were called."""
        if asked:
            for lane in lanes:
                self._behind.setdefault(lane, _Mean(_USUALLY_NOTHING))
            means = [self._drafted, *(self._behind[lane] for lane in lanes)]
        else:
            means = [self._plain]
        surprise_s = extra_s - sum([mean.value for mean in means])
        farthest_s = _FARTHEST * forward_s
        surprise_s = min(max(surprise_s, -farthest_s), farthest_s)
        weights = [mean.weight for mean in means]
        share = 1.0 / max(1.0, sum(weights))
        for mean, weight in zip(means, weights, strict=True):
            mean.move(share * weight * surprise_s)
        if not asked:
            self._drafted.value += _FORGETTING * (self._plain.value - self._drafted.value)
            for mean in self._behind.values():
                mean.value -= _FORGETTING * mean.value


class _Mean:
    """Running, and while there are few observations, of all of them and `prior` of nothing."""

    __slots__ = ("_count", "value")

    def __init__(self, prior: int = 1) -> None:
        self.value = 0.0
        self._count = prior

    @property
    def weight(self) -> float:
        """Of the next observation."""
        return max(_MEMORY, 1.0 / (self._count + 1))

    def move(self, by: float) -> None:
        self.value += by
        self._count += 1
