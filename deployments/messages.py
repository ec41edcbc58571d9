"""What an ingress and a replica say to each other: plain dicts, lists and numbers, both ways.

One message per verdict, never one per token: each costs a hop (DESIGN section 7).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from actors.coordinator.stream import Overloaded, Statistics
from engine.errors import InvalidRequest
from engine.protocol import Commit, Finish, TokenLogprobs
from engine.sampling.params import SamplingParams
from policies.request import Slo


class SloFields(TypedDict):
    ttft_s: float | None
    tpot_s: float | None


class SpeculationFields(TypedDict):
    enabled: bool
    drafter: str | None
    """Only lanes with this drafter; None: whichever the selection policy chooses."""
    max_depth: int | None


class Routed(TypedDict):
    """What the router reads and writes in a request: it runs in the sender's process."""

    avoid: list[str]
    """Replicas that are silent."""
    routed_to: str | None
    """Where it goes. A replica that hangs would never say that it has it."""


class StreamRequest(Routed):
    """One choice of one client's request, or what is left of it after a replica's death."""

    name: str
    """Unique among all choices of all ingresses."""
    attempt: int
    ingress: str
    """The ingress's incarnation: its signs of life keep the stream going."""
    prompt_ids: list[int]
    output_ids: list[int]
    """Committed by earlier attempts. They stay outputs: positions and penalties go on."""
    seed: int
    params: dict[str, Any]
    """The fields of engine.sampling.params.SamplingParams but the seed."""
    slo: SloFields
    priority: int
    tenant: str
    speculation: SpeculationFields


class Heartbeat(TypedDict):
    """At least once a second while an ingress has streams on a replica."""

    replica: str
    ingress: str
    read: Mapping[str, int]
    """Output tokens of each stream that have reached its client."""
    left: Sequence[str]
    """Streams that nobody reads any more. Their calls are cancelled as well, which Serve now and
    then loses."""


class Accepted(TypedDict):
    kind: Literal["accepted"]
    replica: str


class Refused(TypedDict):
    kind: Literal["refused"]
    status: Literal[400, 413, 429, 503]
    message: str
    param: str | None


class Logprob(TypedDict):
    logprob: float
    top: list[list[int | float]]
    """[token id, log-probability], the best first."""


class StreamStatistics(TypedDict):
    """actors.coordinator.stream.Statistics of one attempt so far, or of several together."""

    rounds: int
    drafted: int
    accepted: int
    by_lane: dict[str, int]
    queue_s: float
    ttft_s: float


NO_STATISTICS: StreamStatistics = {
    "rounds": 0,
    "drafted": 0,
    "accepted": 0,
    "by_lane": {},
    "queue_s": 0.0,
    "ttft_s": 0.0,
}


class Committed(TypedDict):
    kind: Literal["commit"]
    first_index: int
    token_ids: list[int]
    logprobs: list[Logprob] | None
    prompt_logprobs: list[Logprob] | None
    """Of the prompt's tokens but the first: with the output's first one, where asked for."""
    finish: Finish | None
    statistics: StreamStatistics
    """With every commit: the ingress may leave at any of them, because of a stop string."""


class Failed(TypedDict):
    kind: Literal["failed"]
    status: Literal[500, 503]
    message: str
    """For the client: nothing of what is inside the server."""
    retry: bool
    """Whether another attempt may heal it."""


Message = Accepted | Refused | Committed | Failed
"""First Accepted or Refused; then Committed until one has a finish. Failed ends a stream at any
time."""


def sampling_params(request: StreamRequest) -> SamplingParams:
    fields = dict(request["params"])
    fields["stop_token_ids"] = tuple(fields.get("stop_token_ids", ()))
    return SamplingParams(seed=request["seed"], **fields)


def slo(request: StreamRequest) -> Slo:
    return Slo(**request["slo"])


def committed(commit: Commit, statistics: Statistics) -> Committed:
    return {
        "kind": "commit",
        "first_index": commit.first_index,
        "token_ids": list(commit.token_ids),
        "logprobs": _logprobs(commit.logprobs),
        "prompt_logprobs": _logprobs(commit.prompt_logprobs),
        "finish": commit.finish,
        "statistics": {
            "rounds": statistics.rounds,
            "drafted": statistics.drafted,
            "accepted": statistics.accepted,
            "by_lane": dict(statistics.by_lane),
            "queue_s": statistics.queue_s or 0.0,
            "ttft_s": statistics.ttft_s or 0.0,
        },
    }


def _logprobs(logprobs: Sequence[TokenLogprobs] | None) -> list[Logprob] | None:
    if logprobs is None:
        return None
    return [
        {"logprob": token.logprob, "top": [[other, value] for other, value in token.top]}
        for token in logprobs
    ]


def together(earlier: StreamStatistics, later: StreamStatistics) -> StreamStatistics:
    """Of two attempts at one choice; its first token is that of the first one that had one."""
    return {
        "rounds": earlier["rounds"] + later["rounds"],
        "drafted": earlier["drafted"] + later["drafted"],
        "accepted": earlier["accepted"] + later["accepted"],
        "by_lane": dict(Counter(earlier["by_lane"]) + Counter(later["by_lane"])),
        "queue_s": earlier["queue_s"] + later["queue_s"],
        "ttft_s": earlier["ttft_s"] or later["ttft_s"],
    }


def refused(status: Literal[400, 413, 429], error: InvalidRequest | Overloaded) -> Refused:
    param = error.field if isinstance(error, InvalidRequest) else None
    return {"kind": "refused", "status": status, "message": str(error), "param": param}


def cannot_serve() -> Refused:
    message = "this replica cannot serve now; try again later"
    return {"kind": "refused", "status": 503, "message": message, "param": None}


def failed(message: str, retry: bool) -> Failed:
    return {"kind": "failed", "status": 503, "message": message, "retry": retry}


def failed_by_itself(request: str) -> Failed:
    """No replica can serve it, so none is to be tried."""
    message = f"request {request} failed inside the server, whose log says why"
    return {"kind": "failed", "status": 500, "message": message, "retry": False}
