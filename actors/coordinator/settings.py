"""The settings of a coordinator (limits, lanes and policies), and what its parts share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from actors.coordinator.background_tasks import Tasks
from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event
from actors.coordinator.lessons import Lessons
from actors.hosts.protocol import DrafterHost
from cluster.config.serving import LimitsConfig
from policies.protocols import Schedule, Selection, Speculation
from policies.request import LaneView


class Limits(LimitsConfig):
    """The `limits` of a config, which bound every queue and wait of the coordinator, and what else
    it needs."""

    kv_tokens: int = 16_384
    """Tokens in the verifier's KV memory, over all running requests: `target.kv_tokens`."""
    catch_up_tokens: int = 256
    """Committed tokens in one catch-up order, which bounds how long it delays a micro-batch."""

    def check_holds(self, max_context: int) -> None:
        """Raises ValueError if one request may have more tokens than the KV memory."""
        if self.kv_tokens < max_context:
            raise ValueError(
                f"limits.kv_tokens is {self.kv_tokens}, less than the {max_context} tokens that "
                "one request may have: a request could wait for ever"
            )


@dataclass(frozen=True, slots=True)
class Lane:
    """One drafter instance and the host that runs it."""

    view: LaneView
    host: DrafterHost
    own_processors: bool = True
    """What it computes while the verifier works does not slow the verifier down."""
    always_drafts: bool = False
    """A lookup, which drafts for every request besides the selected lane: the selection policy does
    not assign it, the speculation policy may leave it out."""
    feature_layers: tuple[int, ...] = ()
    """The target's layers whose hidden states its drafter reads; for most none."""


@dataclass(frozen=True, slots=True)
class Policies:
    """One policy of each kind; all may be replaced while requests run."""

    schedule: Schedule
    selection: Selection
    speculation: Speculation


@dataclass(frozen=True, slots=True)
class Shared:
    """What all parts of a coordinator have in common."""

    limits: Limits
    estimates: Estimates
    observe: Callable[[Event], None]
    tasks: Tasks
    changed: Callable[[], None]
    """To be called when something has changed, so that a pass follows."""
    lessons: Lessons = field(default_factory=lambda: Lessons((), 0))
