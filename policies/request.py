"""What a policy may know of a request, of a lane, and of a round that has ended."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request was promised. None: nothing."""

    ttft_s: float | None = None
    """Time to the first token, from arrival."""
    tpot_s: float | None = None
    """Mean time per output token behind the first."""


@dataclass(slots=True)
class RequestView:
    """One accepted request. The coordinator keeps it up to date; policies only read it."""

    name: str
    arrival_s: float
    prompt_len: int
    max_tokens: int
    slo: Slo = Slo()
    priority: int = 0
    """Larger is more urgent."""
    tenant: str = ""
    generated: int = 0
    """Output tokens committed."""
    first_token_s: float | None = None
    """When the first output token was committed."""
    prefilled: int = 0
    """Committed tokens in the verifier's KV; 0 again after a preemption without swap."""
    predicted_len: float | None = None
    """Output tokens in all, as a length predictor says; None until one has spoken."""

    @property
    def context(self) -> int:
        """Committed tokens: what a forward of this request reads."""
        return self.prompt_len + self.generated


@dataclass(frozen=True, slots=True)
class LaneView:
    """One drafter instance that can take requests."""

    name: str
    drafter: str
    """Which SSM it runs; several lanes may run the same one."""
    capacity: int
    """B_j of Spin: the requests that it serves at once."""
    size: float = 0.0
    """Parameters of the SSM, by which Spin's greedy baseline orders them."""
    catch_up_s: float = 0.0
    """Seconds to catch up on one committed token (Spin's switching cost per token)."""


class RoundOutcome(NamedTuple):
    """What one round did for one request."""

    request: str
    lane: str | None
    """The lane that drafted; None: none did, but for drafters that are asked anyway."""
    drafted: int
    """Draft tokens that were verified."""
    depth: int
    """Draft steps: the deepest level that was drafted."""
    accepted: int
    committed: int
    """Tokens gained: the accepted ones and the target's own."""
    seconds: float
    """Slot time: from the request's last verdict (or its start) to this one."""
    verify_s: float = 0.0
    """Of it, the verifier's forward."""
    draft_s: float = 0.0
    """Of it, drafting."""
    caught_up: int = 0
    """Tokens that the drafter had to catch up on first: the request had just moved."""
    accepted_free: int = 0
    """Of the accepted tokens, those that drafters which are asked anyway (lookup) had proposed:
    without its lane the request would have gained them, too."""
    tried: bool = False
    """Some drafter was asked, be it in vain."""
    prompts_s: float = 0.0
    """Of the forward, what the prompts of others took."""
