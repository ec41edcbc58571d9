"""The settings of a coordinator: limits, lanes and policies."""

from dataclasses import dataclass

from actors.hosts.protocol import DrafterHost
from policies.protocols import Schedule, Selection, Speculation
from policies.request import LaneView


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of every queue and wait of the coordinator."""

    max_batch: int = 16
    """Requests that run at once."""
    max_waiting: int = 64
    """Requests that wait for a batch slot; one more is refused."""
    kv_tokens: int = 16_384
    """Tokens in the verifier's KV memory, over all running requests."""
    forward_tokens: int = 512
    """New tokens in one verification; prompts get what roots and drafts leave of it, but at least a
    quarter."""
    catch_up_tokens: int = 256
    """Committed tokens in one catch-up order, which bounds how long it delays a micro-batch."""
    catch_up_share: float = 0.005
    """The fraction of the time in which lanes that share processors with the verifier may catch up
    in the verifier's time; others always may."""
    feature_tokens: int = 4096
    """Positions of a request whose features are kept for drafters that have not read them."""
    unread_tokens: int = 256
    """A request that is further ahead of its reader pauses."""
    stalled_s: float = 30.0
    """A request that has paused for so long is cancelled."""
    slow_drafter_s: float = 0.5
    """A round goes on without a drafter that takes longer than this, and longer than a small
    multiple of what such a call usually takes (policies/timeouts.py)."""
    stalled_host_s: float = 5.0
    """A host in an actor that gives no answer for so long counts as dead; the limit is longer where
    its cost model predicts long work (actors/hosts/remote.py)."""
    suspect_host_s: float | None = 2.0
    """After this long without an answer (scaled as `stalled_host_s` is), processes that would
    replace the verifier are started; None: only once it is lost."""
    probe_after_s: float | None = None
    """Every so many seconds, one round of all requests decodes plainly; None: never."""
    compile_s: float = 5.0
    """Processor time that compiling one output grammar may take; a longer one is refused."""
    recovery_s: float = 120.0
    """A lost verifier that is not ready again by then, its model loaded, ends the coordinator. Also
    the time for which ranks of a target wait for each other."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One drafter instance and the host that runs it."""

    view: LaneView
    host: DrafterHost
    own_processors: bool = True
    """What it computes while the verifier works does not slow the verifier down."""
    always_drafts: bool = False
    """A lookup, which costs next to nothing and drafts for every request beside the selected lane;
    the selection policy does not assign it."""
    feature_layers: tuple[int, ...] = ()
    """The target's layers whose hidden states its drafter reads; for most none."""
    loading: bool = False
    """Its drafter is not loaded yet: the lane is down until `host.recover` has done so."""


@dataclass(frozen=True, slots=True)
class Policies:
    """One policy of each kind; all may be replaced while requests run."""

    schedule: Schedule
    selection: Selection
    speculation: Speculation
