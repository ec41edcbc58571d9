"""Events that the coordinator passes to its observer: metrics, the recorder, benchmarks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from actors.coordinator.stream import Statistics
from engine.protocol import Finish
from policies.flat_trees import NO_TREES, FlatTrees, Ints
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
    trees: FlatTrees = NO_TREES
    """What it has proposed."""
    predicted_s: float = 0.0
    """What its cost model expected; 0 where its calls cost next to nothing."""


@dataclass(frozen=True, slots=True)
class Late:
    """A round goes on without a lane that has not answered."""

    at_s: float
    lane: str


@dataclass(frozen=True, slots=True)
class FeaturesLost:
    """A lane cannot draft for a request, because features that it lacks are not kept any more."""

    at_s: float
    request: str
    lane: str


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A lane has used idle time to read committed tokens (Spin's fast switching)."""

    at_s: float
    lane: str
    seconds: float
    tokens: int


class VerifiedTrees(NamedTuple):
    """The draft trees of one forward: one for each request in it that decodes."""

    trees: FlatTrees
    """With calibrated confidences."""
    sources: Ints | None
    """MergedTree.sources of all nodes; None where at most one lane has proposed each tree."""
    proposers: Sequence[Sequence[str]]
    """The lanes that have proposed each tree: those that `sources` numbers."""
    accepted: Sequence[Sequence[int] | None]
    """The accepted nodes of each tree; None where it was not verified."""
    requests: Sequence[str] = ()
    """Whose tree each is."""


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
    prompts: Sequence[str] = ()
    """Requests whose prompts are in this forward."""
    drafts: VerifiedTrees | None = None
    """None where nothing was drafted."""
    select_s: float = 0.0
    """The selection of these nodes, a part of `seconds`."""
    predicted_s: float = 0.0
    """What the cost model expected of the forward."""
    plain_s: float = 0.0
    """What it expects of a round in which all running requests decode plainly."""


@dataclass(frozen=True, slots=True)
class Switched:
    """A request drafts on another lane than before."""

    at_s: float
    request: str
    before: str
    lane: str
    caught_up: int
    """Committed tokens on which the new drafter must catch up."""
    read_ahead: int = 0
    """Those that it has read before, in idle time."""
    saved_s: float = 0.0
    """By how much its first draft would otherwise have taken longer."""


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
    | Late
    | FeaturesLost
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
