"""Running estimates of what rounds take beyond drafting and the forward: handling and transport,
and what a draft call adds to the rest of its round. Where drafters share processors with the
verifier, the forward after a draft call is slower, which the drafter's own timing does not show.

Each mean is updated by the part of an observation that the others do not explain. Such times
scatter by more than their size, so the means are long and an outlier moves them only a little.
"""

from collections.abc import Collection

_LEAST_WEIGHT = 0.02
"""The weight of an observation in the running means: some fifty rounds of a kind count."""
_LARGEST_ERROR = 0.25
"""Observations are clipped at this share of a forward from what was expected: larger deviations are
pauses of the whole process."""
_CALL_PRIOR = 7
"""Observations that the prior of a lane's call, 0, counts for: until rounds differ by their lanes,
the cost of drafting is attributed to handling."""
_DECAY = 0.002
"""How much of the learned cost of drafting each plain round forgets: while no lane drafts nothing
is observed, so a period of slow calls would otherwise end drafting for good. Slow, because where
only few rounds draft, the plain ones between them would make drafts look cheap."""


class RoundOverheads:
    def __init__(self) -> None:
        self._plain = _Mean()
        self._drafting = _Mean()
        """The time of rounds in which drafters are called, even if they propose nothing, without
        what each lane's call adds."""
        self._call: dict[str, _Mean] = {}
        """What a call of each lane adds to its round."""

    @property
    def plain_s(self) -> float:
        """The time of a plain round."""
        return max(0.0, self._plain.value)

    @property
    def drafting_extra_s(self) -> float:
        """What a round in which drafters are called takes beyond a plain one."""
        return max(0.0, self._drafting.value - self._plain.value)

    def call_extra_s(self, lane: str) -> float:
        """What a call of this lane adds to the rest of its round; negative where handling overlaps
        with its drafting."""
        mean = self._call.get(lane)
        return mean.value if mean else 0.0

    def learn(
        self, extra_s: float, forward_s: float, drafters_called: bool, lanes: Collection[str]
    ) -> None:
        """One round: the time that it took beyond drafting and `forward_s`, the predicted time of
        its forward; whether any drafters were called, and which lanes were."""
        if drafters_called:
            for lane in lanes:
                self._call.setdefault(lane, _Mean(_CALL_PRIOR))
            means = [self._drafting, *(self._call[lane] for lane in lanes)]
        else:
            means = [self._plain]
        error_s = extra_s - sum([mean.value for mean in means])
        largest_s = _LARGEST_ERROR * forward_s
        error_s = min(max(error_s, -largest_s), largest_s)
        weights = [mean.weight for mean in means]
        share = 1.0 / max(1.0, sum(weights))
        for mean, weight in zip(means, weights, strict=True):
            mean.move(share * weight * error_s)
        if not drafters_called:
            self._drafting.value += _DECAY * (self._plain.value - self._drafting.value)
            for mean in self._call.values():
                mean.value -= _DECAY * mean.value


class _Mean:
    """An exponential mean, which weighs its first observations and `prior` zeros equally."""

    __slots__ = ("_count", "value")

    def __init__(self, prior: int = 1) -> None:
        self.value = 0.0
        self._count = prior

    @property
    def weight(self) -> float:
        """The weight of the next observation."""
        return max(_LEAST_WEIGHT, 1.0 / (self._count + 1))

    def move(self, by: float) -> None:
        self.value += by
        self._count += 1
