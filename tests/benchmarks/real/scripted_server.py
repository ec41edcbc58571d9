"""A contender's server without a model, whose process imports neither torch nor vLLM."""

import os
from collections.abc import Iterator, Sequence
from itertools import count

from benchmarks.real.spindle import PeerRequest, TurnResult

MAX_TOKENS = 12
"""Output tokens of a request."""
END = 1
PER_DRAFTED_ROUND = 3


class ScriptedServer:
    """Its outputs are as long as they may be, but where a request may end with END: there the
    prompt decides."""

    def __init__(self, drafts: bool = False, batches: int = 100, error: str = "") -> None:
        """`batches`: after so many its process ends. `error`: why it cannot be loaded."""
        if error:
            raise FileNotFoundError(error)
        self._per_round = PER_DRAFTED_ROUND if drafts else 1
        self._batches_left = batches

    def serve(self, requests: Sequence[PeerRequest], clients: int) -> TurnResult:
        if not self._batches_left:
            os._exit(3)
        self._batches_left -= 1
        lengths = tuple(
            min(request.max_tokens, request.prompt[0]) if request.stop else request.max_tokens
            for request in requests
        )
        rounds = sum(-(-length // self._per_round) for length in lengths)
        return TurnResult(lengths, (1.0,) * len(lengths), 1.0, rounds)


def scripted_requests() -> Iterator[PeerRequest]:
    """Half of them end before MAX_TOKENS."""
    for number in count():
        yield PeerRequest((1 + number % (2 * MAX_TOKENS),), 0.0, MAX_TOKENS, (END,), "code")
