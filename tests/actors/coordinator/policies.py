"""A selection policy that makes requests switch lanes all the time."""

from collections.abc import Mapping, Sequence

from policies.protocols import RoundContext
from policies.request import LaneView, RequestView, RoundOutcome


class Touring:
    """Assigns every request to the next lane after `stay` tokens, and predicts it correctly."""

    def __init__(self, stay: int = 6) -> None:
        self._stay = stay
        self._next: dict[str, str] = {}

    def assign(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        assigned: dict[str, str | None] = {}
        for request in requests:
            turn = request.generated // self._stay + len(request.name)
            assigned[request.name] = lanes[turn % len(lanes)].name if lanes else None
            if lanes:
                self._next[request.name] = lanes[(turn + 1) % len(lanes)].name
        return assigned

    def likely_next(self, request: str) -> str | None:
        return self._next.get(request)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None: ...

    def forget(self, request: str) -> None:
        self._next.pop(request, None)
