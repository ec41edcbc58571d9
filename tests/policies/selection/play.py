"""Requests, lanes and slots for tests of selection policies."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from policies.protocols import Selection
from policies.request import LaneView, RequestView, RoundOutcome

Goodput = Callable[[str, str | None], float]
"""Of a request on a lane; None: plain decoding."""


def request(name: str, prompt_len: int = 100, max_tokens: int = 10_000) -> RequestView:
    return RequestView(name, 0.0, prompt_len, max_tokens)


def requests(*names: str) -> list[RequestView]:
    return [request(name) for name in names]


def lane(name: str, capacity: int = 16, size: float = 0.0, catch_up_s: float = 0.0) -> LaneView:
    """A lane with a drafter of its own, which has the same name."""
    return LaneView(name, name, capacity, size, catch_up_s)


def outcome(request: str, lane: str | None, goodput: float) -> RoundOutcome:
    """A slot that commits two tokens, in the time that they take at this goodput."""
    if not goodput:
        return RoundOutcome(request, lane, 4, 4, 0, 0, seconds=0.05)
    return RoundOutcome(request, lane, 4, 4, 1, 2, seconds=2 / goodput)


def slot(
    policy: Selection,
    requests: Sequence[RequestView],
    lanes: Sequence[LaneView],
    goodput: Goodput,
    of: Iterable[str] | None = None,
) -> Mapping[str, str | None]:
    """Assigns all requests and ends a slot of those in `of`, by default of all."""
    chosen = dict(policy.assign(requests, lanes, 0.0))
    for name in [view.name for view in requests] if of is None else of:
        policy.observe([outcome(name, chosen[name], goodput(name, chosen[name]))])
    return chosen


def table(goodput: Mapping[tuple[str, str], float], plain: float = 1.0) -> Goodput:
    """Goodput by (request, lane)."""
    return lambda name, lane: plain if lane is None else goodput[name, lane]
