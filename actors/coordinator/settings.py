"""What a coordinator is made of besides its hosts: limits, lanes and the policies in force."""

from dataclasses import dataclass

from actors.hosts.protocol import DrafterHost
from policies.protocols import Schedule, Selection, Speculation
from policies.request import LaneView


@dataclass(frozen=True, slots=True)
class Limits:
    """Every queue and wait of the coordinator ends here."""

    max_batch: int = 16
    """Requests that run at once."""
    max_waiting: int = 64
    """Requests that wait for their turn; one more is refused."""
    kv_tokens: int = 16_384
    """What the verifier's KV memory holds, over all running requests."""
    forward_tokens: int = 512
    """New tokens in one verification; prefill takes what roots and drafts leave of it."""
    catch_up_tokens: int = 256
    """Committed tokens that one idle-time order brings to a drafter, so that it never holds up
    a micro-batch for longer than that."""
    unread_tokens: int = 256
    """A request that is further ahead of its reader pauses."""
    stalled_s: float = 30.0
    """A request that has paused for so long is cancelled."""
    stalled_host_s: float = 5.0
    """A host in an actor that gives no answer for so long counts as dead; it gets more where its
    own cost model says that the work is long (actors/hosts/remote.py)."""
    recovery_s: float = 60.0
    """A lost verifier that is not back by then, its model loaded, ends the coordinator. Ranks of a
    target wait as long for each other."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One drafter instance and how it is reached."""

    view: LaneView
    host: DrafterHost
    apart: bool = True
    """Has processors of its own: what it computes while the verifier works slows nobody down."""
    free: bool = False
    """Costs next to nothing (a lookup), so it drafts for every request beside the chosen lane
    instead of being chosen."""


@dataclass(frozen=True, slots=True)
class Policies:
    """One of each kind; all may be exchanged while requests run."""

    schedule: Schedule
    selection: Selection
    speculation: Speculation
