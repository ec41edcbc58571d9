"""Output lengths learned from finished requests: how long those were that were alike.

Requests are alike that share tenant, SLO and `max_tokens`, and whose prompts are about as long. A
request that has generated tokens is compared only with those that became longer than that. Where
few are alike, wider groups count: the mean of each is drawn towards that of the next wider one.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from policies.request import RequestView

Group = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class LearnedLengthsParams:
    least: int = 8
    """Finished requests before the first prediction."""
    remembered: int = 64
    """How many of the last finished requests of a group count."""
    groups: int = 1024
    """The most groups; the least recently used is forgotten."""
    prior: float = 2.0
    """As many requests as the next wider group counts for in the mean of a group."""
    prompt_steps: float = 8.0
    """Prompts are alike within so many parts of a doubling."""

    def __post_init__(self) -> None:
        if min(self.least, self.remembered, self.groups) < 1:
            raise ValueError("least, remembered and groups start at 1")
        if not (self.prior > 0 and self.prompt_steps > 0):
            raise ValueError("prior and prompt_steps are above 0")


class LearnedLengths:
    """Memory is bounded by `groups` times `remembered` numbers."""

    def __init__(self, params: LearnedLengthsParams = LearnedLengthsParams()) -> None:
        self._params = params
        self._lengths: OrderedDict[Group, deque[int]] = OrderedDict()
        self._finished = 0

    def finished(self, request: RequestView) -> None:
        """Learns from a request whose output ended by itself or at its limit."""
        self._finished += 1
        for group in self._groups_of(request):
            lengths = self._lengths.get(group)
            if lengths is None:
                lengths = self._lengths[group] = deque(maxlen=self._params.remembered)
            lengths.append(request.generated)
            self._lengths.move_to_end(group)
        while len(self._lengths) > self._params.groups:
            self._lengths.popitem(last=False)

    def predict(self, request: RequestView) -> float | None:
        """Output tokens in all, more than it has; None while too few have finished, or none was as
        long as this request already is."""
        if self._finished < self._params.least:
            return None
        predicted: float | None = None
        for group in self._groups_of(request):
            longer = [n for n in self._lengths.get(group, ()) if n > request.generated]
            if not longer:
                continue
            if predicted is None:
                predicted = sum(longer) / len(longer)
            else:
                prior = self._params.prior
                predicted = (sum(longer) + prior * predicted) / (len(longer) + prior)
        return None if predicted is None else min(predicted, float(request.max_tokens))

    def _groups_of(self, request: RequestView) -> Iterator[Group]:
        """From the widest to the narrowest."""
        yield ()
        client: Group = (request.tenant, request.slo, request.max_tokens)
        yield client
        octave = math.log2(max(1, request.prompt_len))
        yield (*client, "octave", round(octave))
        yield (*client, "part", round(octave * self._params.prompt_steps))
