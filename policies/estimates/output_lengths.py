"""Output lengths learned from finished requests: how long those were that were alike.

Requests are alike that share tenant, SLO and `max_tokens`, and whose prompts are about as long. A
request that has generated tokens is compared only with those that became longer than that. Where
few are alike, wider groups count: the mean of each is drawn towards that of the next wider one.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterator

from policies.request import RequestView

Group = tuple[object, ...]


LEAST = 8
"""Finished requests before the first prediction."""
REMEMBERED = 64
"""How many of the last finished requests of a group count."""
MOST_GROUPS = 1024
"""The least recently used is forgotten."""
_PRIOR = 2.0
"""As many requests as the next wider group counts for in the mean of a group."""
_PROMPT_STEPS = 8.0
"""Prompts are alike within so many parts of a doubling."""


class LearnedLengths:
    """Memory is bounded by MOST_GROUPS times REMEMBERED numbers."""

    def __init__(self) -> None:
        self._lengths: OrderedDict[Group, deque[int]] = OrderedDict()
        self._finished = 0

    def finished(self, request: RequestView) -> None:
        """Learns from a request whose output ended by itself or at its limit."""
        self._finished += 1
        for group in self._groups_of(request):
            lengths = self._lengths.get(group)
            if lengths is None:
                lengths = self._lengths[group] = deque(maxlen=REMEMBERED)
            lengths.append(request.generated)
            self._lengths.move_to_end(group)
        while len(self._lengths) > MOST_GROUPS:
            self._lengths.popitem(last=False)

    def predict(self, request: RequestView) -> float | None:
        """Output tokens in all, more than it has; None while too few have finished, or none was as
        long as this request already is."""
        if self._finished < LEAST:
            return None
        predicted: float | None = None
        for group in self._groups_of(request):
            longer = [n for n in self._lengths.get(group, ()) if n > request.generated]
            if not longer:
                continue
            if predicted is None:
                predicted = sum(longer) / len(longer)
            else:
                predicted = (sum(longer) + _PRIOR * predicted) / (len(longer) + _PRIOR)
        return None if predicted is None else min(predicted, float(request.max_tokens))

    def _groups_of(self, request: RequestView) -> Iterator[Group]:
        """From the widest to the narrowest."""
        yield ()
        client: Group = (request.tenant, request.slo, request.max_tokens)
        yield client
        octave = math.log2(max(1, request.prompt_len))
        yield (*client, "octave", round(octave))
        yield (*client, "part", round(octave * _PROMPT_STEPS))
