"""The information that policies get about requests, lanes and finished rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Slo:
    """The service level objectives of a request; None where there is none."""

    ttft_s: float | None = None
    """Time to the first token, from arrival."""
    tpot_s: float | None = None
    """Mean time per output token after the first."""


@dataclass(slots=True)
class RequestView:
    """One admitted request. The coordinator updates it in place; policies only read it."""

    name: str
    arrival_s: float
    prompt_len: int
    max_tokens: int
    slo: Slo = Slo()
    priority: int = 0
    """Larger is more urgent."""
    tenant: str = ""
    generated: int = 0
    """Committed output tokens."""
    first_token_s: float | None = None
    """When the first output token was committed; of a resumed request, when that would have been
    had all earlier tokens been on time."""
    prefilled: int = 0
    """Committed tokens in the verifier's KV cache after its last verdict."""
    predicted_len: float | None = None
    """The predicted length of the whole output in tokens; None while there is no prediction."""
    read: Mapping[str, int] = field(default_factory=dict)
    """Committed tokens that each lane's drafter has processed; absent: none."""

    @property
    def context(self) -> int:
        """Committed tokens, all of which a forward of this request reads."""
        return self.prompt_len + self.generated


@dataclass(frozen=True, slots=True)
class LaneView:
    """One drafter instance."""

    name: str
    drafter: str
    """The drafter (Spin's SSM) that it runs; several lanes may run the same one."""
    capacity: int
    """B_j of Spin: the most requests that it serves at once."""
    catch_up_s: float = 0.0
    """Seconds to catch up on one committed token (Spin's switching cost per token)."""


class RoundOutcome(NamedTuple):
    """The result of one round for one request."""

    request: str
    lane: str | None
    """The lane that drafted; None where none did, not counting free drafters (lookup), which draft
    for every request."""
    drafted: int
    """Draft tokens that were verified."""
    depth: int
    """Draft steps: the deepest level that was drafted."""
    accepted: int
    """Draft tokens that were accepted."""
    committed: int
    """Accepted draft tokens and the target's own token."""
    seconds: float
    """Slot time: from the request's last verdict (or its start) to this one."""
    verify_s: float = 0.0
    """The verifier's forward, a part of `seconds`."""
    draft_s: float = 0.0
    """Drafting, a part of `seconds`."""
    caught_up: int = 0
    """Tokens on which the drafter had to catch up before it drafted, because the request had
    switched lanes."""
    tried: bool = False
    """Whether any drafter was called for this request, even if it proposed nothing."""
    prompts_s: float = 0.0
    """The part of `verify_s` that the prefill of other requests took."""


_OVERRUN = 1.25
"""The factor by which a predicted length is raised whenever the output has exceeded it."""


def expected_len(request: RequestView) -> float | None:
    """Output tokens in all: the prediction, raised once the output exceeds it, at most
    `max_tokens`; None without a prediction."""
    if request.predicted_len is None:
        return None
    expected = max(1.0, request.predicted_len)
    while expected <= request.generated:
        expected *= _OVERRUN
    return min(expected, float(request.max_tokens))


def by_arrival(request: RequestView) -> tuple[float, str]:
    """First come, first served; ties are broken by name, so that the order is total."""
    return (request.arrival_s, request.name)
