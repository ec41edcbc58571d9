"""Events that the coordinator passes to its observer: metrics, the recorder, benchmarks."""

from dataclasses import dataclass

from actors.coordinator.stream import Statistics
from engine.protocol import Finish
from policies.request import RequestView, RoundOutcome


@dataclass(frozen=True, slots=True)
class Arrived:
    """A user's request has been accepted."""

    at_s: float
    view: RequestView
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drafted:
    """A lane has drafted for a micro-batch."""

    at_s: float
    lane: str
    seconds: float
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A lane has used idle time to read committed tokens (Spin's fast switching)."""

    at_s: float
    lane: str
    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Verified:
    """One forward of the target."""

    at_s: float
    seconds: float
    idle_s: float
    """Since the end of the forward before it."""
    context: int
    tokens: int
    prefill_tokens: int
    outcomes: tuple[RoundOutcome, ...]


@dataclass(frozen=True, slots=True)
class Switched:
    """A request drafts on another lane than before."""

    at_s: float
    request: str
    before: str
    lane: str
    caught_up: int
    """Committed tokens on which the new drafter must catch up."""


@dataclass(frozen=True, slots=True)
class Preempted:
    at_s: float
    request: str


@dataclass(frozen=True, slots=True)
class LaneDown:
    at_s: float
    lane: str
    error: str


@dataclass(frozen=True, slots=True)
class LaneUp:
    """A lost lane takes orders again."""

    at_s: float
    lane: str
    seconds: float
    """Since it was lost."""


@dataclass(frozen=True, slots=True)
class VerifierDown:
    at_s: float
    error: str


@dataclass(frozen=True, slots=True)
class VerifierUp:
    at_s: float
    seconds: float
    """Since it was lost."""


@dataclass(frozen=True, slots=True)
class Left:
    """A request has left: finished, or (`finish` is None) cancelled or failed."""

    at_s: float
    view: RequestView
    finish: Finish | None
    statistics: Statistics
    internal: bool
    failed: bool = False
    """Ended with RequestFailed."""


Event = (
    Arrived
    | Drafted
    | CaughtUp
    | Verified
    | Switched
    | Preempted
    | LaneDown
    | LaneUp
    | VerifierDown
    | VerifierUp
    | Left
)
