"""Requests, lanes and slots for tests of selection policies."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from policies.cost import ForwardCost
from policies.estimates.acceptance import AcceptanceEstimates
from policies.protocols import RoundContext, Selection
from policies.request import LaneView, RequestView, RoundOutcome

Goodput = Callable[[str, str | None], float]
"""The goodput of a request on a lane; None: plain decoding."""


def round_context(
    lanes: Sequence[LaneView],
    *,
    token_s: float = 0.0,
    step_s: float = 1e-3,
    waiting_s: float = 0.0,
    free: Sequence[LaneView] = (),
) -> RoundContext:
    """Verifications of 20 ms, and `token_s` for each token; draft steps of `step_s`, except on
    `free` lanes."""
    return RoundContext(
        verify=ForwardCost(0.0, token_s, 0.02),
        draft={one.name: ForwardCost(0.0, 0.0, step_s) for one in lanes},
        verify_budget=512,
        draft_budgets={},
        most_tokens=512,
        acceptance=AcceptanceEstimates([*lanes, *free], [one.name for one in free]),
        waiting_s=waiting_s,
        call_s={},  # the default cannot be pickled
    )


CONTEXT = round_context([])
"""For policies that do not read it."""


def request(name: str, prompt_len: int = 100, max_tokens: int = 10_000) -> RequestView:
    return RequestView(name, 0.0, prompt_len, max_tokens)


def requests(*names: str) -> list[RequestView]:
    return [request(name) for name in names]


def lane(name: str, capacity: int = 16, catch_up_s: float = 0.0) -> LaneView:
    """A lane with a drafter of its own, which has the same name."""
    return LaneView(name, name, capacity, catch_up_s)


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
    context: RoundContext = CONTEXT,
) -> Mapping[str, str | None]:
    """Assigns all requests and ends a slot of those in `of`, by default of all."""
    chosen = dict(policy.assign(requests, lanes, context, 0.0))
    for name in [view.name for view in requests] if of is None else of:
        policy.observe([outcome(name, chosen[name], goodput(name, chosen[name]))])
    return chosen


def table(goodput: Mapping[tuple[str, str], float], plain: float = 1.0) -> Goodput:
    """Goodput by (request, lane)."""
    return lambda name, lane: plain if lane is None else goodput[name, lane]
