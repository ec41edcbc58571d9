"""For which requests lookups draft: those for which they save more time than they take.

A lookup costs next to nothing beside a slow target. Beside a fast one, what it takes of the event
loop in every round is a share of the round.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
from numba import njit

from policies.flat_trees import FlatTrees, path_confidences
from policies.protocols import Candidates, Mask, RoundContext
from policies.speculation.forest import Floats, context_tokens

_MEMORY = 0.2
"""Weight of a request's last draft in the mean of what its drafts save."""
_MEMORY_OF_ALL = 0.01
"""The same in the mean over all requests, from which a new one starts."""
_FIRST = 10.0
"""What drafts of a round take besides their requests, as if there were so many more."""
_TRIALS = 0.01
"""The share of the time that may be spent on drafts which only show whether they pay again."""
_MOST_REQUESTS = 1024


class LookupWorth:
    def __init__(self) -> None:
        self._saved_s: dict[str, float] = {}
        """By request, the mean time that a draft saves, least recently drafted for first."""
        self._of_all_s = inf
        self._drafts = 0
        self._trials_s = 0.0
        """The time that may be spent on a trial."""
        self._asked: set[str] = set()
        """The requests for which it is not known yet what their last draft saves."""

    def drafting(self, requests: Sequence[str], drafts_s: float, round_s: float) -> set[str]:
        """Those for which lookups draft. `drafts_s`: what drafts for all of them take, in a round
        that takes `round_s` without."""
        self._learn(dict.fromkeys(self._asked.intersection(requests), 0.0))  # nothing was found
        one_s = drafts_s / (len(requests) + _FIRST)
        gains_s = [self._saved_s.get(name, self._of_all_s) - one_s for name in requests]
        chosen = {name for name, gain_s in zip(requests, gains_s, strict=True) if gain_s >= 0.0}
        first_s = _FIRST * one_s
        if sum([max(0.0, gain_s) for gain_s in gains_s]) < first_s:
            chosen = set()
        if len(chosen) < len(requests):
            trial_s = (len(requests) - len(chosen)) * one_s + (0.0 if chosen else first_s)
            self._trials_s = min(self._trials_s + _TRIALS * round_s, trial_s)
            if self._trials_s >= trial_s:
                self._trials_s, chosen = 0.0, set(requests)
        self._asked |= chosen
        return chosen

    def observe(self, candidates: Candidates, kept: Mask, context: RoundContext) -> None:
        """`kept`: the nodes that are verified."""
        names = [one.name for one in candidates.requests]
        if self._asked.isdisjoint(names):
            return
        # Without prompts, which take the same time whatever is drafted.
        read, nodes = context_tokens(candidates.requests), int(np.count_nonzero(kept))
        verify_s = context.verify.predict(read, len(names) + nodes)
        row_s = (verify_s - context.verify.predict(read, len(names))) / max(1, nodes)
        seconds = max(candidates.drafting_s) + context.handling_s + context.waiting_s + verify_s
        saved_s = _saved(candidates.trees, kept & _by_lookups(candidates, context), seconds, row_s)
        by_request = zip(names, saved_s.tolist(), strict=True)
        self._learn({name: one_s for name, one_s in by_request if name in self._asked})

    def _learn(self, saved_s: dict[str, float]) -> None:
        for name, one_s in saved_s.items():
            self._drafts += 1
            weight = max(_MEMORY_OF_ALL, 1.0 / self._drafts)
            before_s = one_s if self._drafts == 1 else self._of_all_s
            self._of_all_s = before_s + weight * (one_s - before_s)
            before_s = self._saved_s.pop(name, self._of_all_s)
            self._saved_s[name] = before_s + _MEMORY * (one_s - before_s)
        self._asked.difference_update(saved_s)
        if len(self._asked) > _MOST_REQUESTS:  # those that have left
            self._asked.clear()
        while len(self._saved_s) > _MOST_REQUESTS:
            del self._saved_s[next(iter(self._saved_s))]


def _by_lookups(candidates: Candidates, context: RoundContext) -> Mask:
    """The nodes that a lookup has proposed."""
    if not context.draft:
        return np.ones(len(candidates.trees.tokens), np.bool_)
    bits = [
        sum(1 << bit for bit, lane in enumerate(lanes) if lane not in context.draft)
        for lanes in candidates.lanes
    ]
    each = np.repeat(np.array(bits, np.int64), candidates.trees.sizes)
    return (each if candidates.sources is None else each & candidates.sources) != 0


@njit(cache=True)
def _saved(trees: FlatTrees, kept: Mask, seconds: float, row_s: float) -> Floats:
    """By request, the time that its nodes save: each token that they gain is worth its share of the
    round, and each of them takes `row_s`."""
    requests, path = len(trees.starts) - 1, path_confidences(trees)
    gain, rows = np.zeros((2, requests))
    for request in range(requests):
        for node in range(trees.starts[request], trees.starts[request + 1]):
            if kept[node]:
                gain[request] += path[node]
                rows[request] += 1.0
    return gain * (seconds / (requests + gain.sum())) - rows * row_s
