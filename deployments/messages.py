"""The messages between an ingress and a replica: dicts of plain values and of records that the
engine, the policies and the coordinator have for them.

A replica sends one message per verdict or for several, never one per token, because every message
costs a call between processes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NotRequired, TypedDict

from actors.coordinator.stream import Overloaded, Statistics
from engine.errors import InvalidRequest
from engine.protocol import Commit, Finish, RoundTrace, TokenLogprobs
from engine.sampling.params import SamplingParams
from engine.scopes import Scope
from policies.request import Slo


class SpeculationFields(TypedDict):
    enabled: bool
    drafter: str | None
    """Draft only on lanes of this drafter; None: the selection policy chooses."""
    max_depth: int | None


class Routed(TypedDict):
    """The fields of a request that deployments/routing.py reads and writes, in the sender's
    process."""

    avoid: list[str]
    """Replicas that do not answer heartbeats at present; they are not chosen."""
    routed_to: str | None
    """The replica that the call was sent to, written by the request router: a replica that hangs
    would never report that it has the request."""
    replicas: NotRequired[list[str]]
    """All replicas that take calls at present, written by the request router."""


class StreamRequest(Routed):
    """One choice of a client's request, or the rest of it after the loss of a replica."""

    name: str
    """Unique among all choices of all ingresses; the coordinator adds the attempt to it."""
    attempt: int
    ingress: str
    """The sending ingress process; the replica cancels the stream when this ingress's heartbeats
    stop."""
    prompt_ids: list[int]
    output_ids: list[int]
    """Output tokens committed by earlier attempts. They stay output, not prompt, so that positions
    and penalties continue."""
    params: SamplingParams
    slo: Slo
    priority: int
    """Larger is more urgent: the client's, negated."""
    tenant: str
    scope: Scope
    remember: bool
    """Whether its answer may be kept for later requests."""
    speculation: SpeculationFields
    may_teach: bool
    """Whether a drafter may learn from it."""
    trace: bool
    """Whether each commit carries a trace of its round."""
    pause_s: float
    """The commits of so many seconds come in one message, since each costs processor time at both
    ends. 0: each comes at once, for a client that reads along."""


class Heartbeat(TypedDict):
    """Sent to a replica at least once a second while the ingress has streams there."""

    replica: str
    ingress: str
    read: Mapping[str, int]
    """For each stream, how many of its output tokens have reached the client."""
    left: Sequence[str]
    """Streams whose client has left. Their calls are cancelled as well, but Serve sometimes loses a
    cancellation."""


class Named(TypedDict):
    """The argument of a call to one certain replica."""

    replica: str


class LiveQuery(Named):
    seconds: float
    """How far back."""


class Accepted(TypedDict):
    kind: Literal["accepted"]
    replica: str


class Refused(TypedDict):
    kind: Literal["refused"]
    status: Literal[400, 429, 503]
    message: str
    param: str | None


class Committed(TypedDict):
    kind: Literal["commit"]
    first_index: int
    token_ids: list[int]
    logprobs: Sequence[TokenLogprobs] | None
    prompt_logprobs: Sequence[TokenLogprobs] | None
    """For all prompt tokens except the first, sent with the first output token if requested."""
    finish: Finish | None
    statistics: Statistics
    """The attempt's so far. Sent with every commit, because the ingress may end the stream at any
    of them (stop strings)."""
    trace: RoundTrace | None
    """If requested."""


class Failed(TypedDict):
    kind: Literal["failed"]
    status: Literal[500, 503]
    message: str
    """Shown to the client, so it contains no details of the server."""
    retry: bool
    """Whether another attempt, on another replica, may succeed."""


Message = Accepted | Refused | Committed | Failed
"""A stream consists of one Accepted or Refused, then Committed up to the one with a finish. Failed
ends a stream at any time."""


def committed(commit: Commit, statistics: Statistics) -> Committed:
    return {
        "kind": "commit",
        "first_index": commit.first_index,
        "token_ids": list(commit.token_ids),
        "logprobs": commit.logprobs,
        "prompt_logprobs": commit.prompt_logprobs,
        "finish": commit.finish,
        # As they are now: the coordinator goes on counting.
        "statistics": replace(statistics, by_lane=dict(statistics.by_lane)),
        "trace": commit.trace,
    }


def summed(earlier: Statistics, later: Statistics) -> Statistics:
    """Sums the statistics of two attempts at one choice; TTFT and cached tokens are those of the
    first attempt that produced a token."""
    return Statistics(
        rounds=earlier.rounds + later.rounds,
        drafted=earlier.drafted + later.drafted,
        accepted=earlier.accepted + later.accepted,
        by_lane=dict(Counter(earlier.by_lane) + Counter(later.by_lane)),
        queue_s=(earlier.queue_s or 0.0) + (later.queue_s or 0.0),
        ttft_s=earlier.ttft_s or later.ttft_s,
        cached=earlier.cached if earlier.rounds else later.cached,
    )


def refused(status: Literal[400, 429], error: InvalidRequest | Overloaded) -> Refused:
    param = error.field if isinstance(error, InvalidRequest) else None
    return {"kind": "refused", "status": status, "message": str(error), "param": param}


def cannot_serve() -> Refused:
    message = "this replica cannot serve now; try again later"
    return {"kind": "refused", "status": 503, "message": message, "param": None}


def failed(message: str, retry: bool) -> Failed:
    return {"kind": "failed", "status": 503, "message": message, "retry": retry}


def failed_by_defect(request: str) -> Failed:
    """An error in Spindle's own code, which would occur on every replica, so the request is not
    retried."""
    message = f"request {request} failed inside the server, whose log says why"
    return {"kind": "failed", "status": 500, "message": message, "retry": False}
