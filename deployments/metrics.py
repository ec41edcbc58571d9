"""The declarations of every metric that Spindle exports; docs/metrics.md has the same tables.

`/metrics` prefixes each name with `spindle_`, Ray with `ray_spindle_`; both append `_total` to
counters.
"""

from typing import Literal, NamedTuple

VERIFIER = "verifier"
COORDINATOR = "coordinator"
LOOKUPS = "lookups"
"""The drafter of rounds in which only lookups proposed tokens."""
PLAIN = "none"
"""The drafter of rounds without a draft."""
OTHER = "other"
"""The class of SLOs that are of no class of the config, and tenants beyond MOST_TENANTS."""
POSITIONS = ("1", "2", "3", "4", "5", "6", "7", "8", "9+")
ACCEPTED = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9+")
PARTS = ("draft", "verify", "prompts", "wait")
OUTCOMES = ("stop", "length", "cancelled", "failed")
KV_STATES = ("free", "used", "cached")
STATUSES = ("200", "400", "401", "403", "404", "405", "408", "413", "429", "499", "500", "503")
MOST_TENANTS = 50
"""More tenants than this are counted together, so that their series stay few."""


class Metric(NamedTuple):
    name: str
    text: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets."""


_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_SECONDS_PER_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1)
_FORWARD_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

COUNTERS = (
    Metric("committed_tokens", "Output tokens committed: their rate is goodput"),
    Metric("prefilled_tokens", "Prompt tokens that the target has read"),
    Metric(
        "prompts",
        "Prompts of ended requests, by whether their beginning was found in the prefix cache",
        ("cached",),
    ),
    Metric("cached_tokens", "Prompt tokens found there, which the target did not have to read"),
    Metric("forwards", "Forward passes of the target"),
    Metric(
        "rounds",
        "Verifications that committed tokens, one per request and forward pass, by the number of "
        "draft tokens accepted",
        ("drafter", "accepted"),
    ),
    Metric(
        "drafted_tokens",
        "Draft tokens proposed, by their position after the last committed token",
        ("drafter", "position"),
    ),
    Metric("verified_tokens", "Draft tokens that the target verified", ("drafter", "position")),
    Metric("accepted_tokens", "Draft tokens that the target accepted", ("drafter", "position")),
    Metric(
        "expected_tokens",
        "How many of the verified draft tokens should have been accepted: the sum of their "
        "calibrated confidences",
        ("drafter", "position"),
    ),
    Metric(
        "slot_seconds",
        "Time between two verifications of a request, by what it went into",
        ("drafter", "part"),
    ),
    Metric(
        "plain_seconds",
        "Time that the same tokens would have taken without drafts, as the cost model estimates it",
        ("drafter",),
    ),
    Metric(
        "probe_seconds",
        "Time of plain rounds, in whose forward pass nothing was drafted: measured, and as the "
        "cost model estimates it",
        ("by",),
    ),
    Metric("busy_seconds", "Time spent working", ("host", "work")),
    Metric("idle_seconds", "Time without anything to do", ("host",)),
    Metric(
        "predicted_seconds",
        "Duration that the cost model predicted for draft calls, and for forward passes without "
        "prompts",
        ("host",),
    ),
    Metric(
        "prediction_error_seconds",
        "Absolute difference between these predictions and what was measured",
        ("host",),
    ),
    Metric("assignments", "Requests drafted for, once per draft call", ("host",)),
    Metric("switches", "Requests that moved to another lane"),
    Metric(
        "prepared_switches",
        "Switches to a lane that had read committed tokens of the request ahead",
    ),
    Metric(
        "catch_up_saved_seconds",
        "Drafting time that reading ahead saved after these switches, by the lane's profile",
        ("host",),
    ),
    Metric("caught_up_tokens", "Committed tokens that a lane read ahead in idle time", ("host",)),
    Metric("preemptions", "Requests that lost their place in the batch to others"),
    Metric(
        "late_calls",
        "Draft calls for whose answer the round did not wait (limits.slow_drafter_s)",
        ("host",),
    ),
    Metric(
        "features_lost",
        "Requests for which a lane did not draft because it lacked hidden states of the target "
        "(limits.feature_tokens)",
        ("host",),
    ),
    Metric(
        "lessons",
        "Requests from which the drafter could learn, by whether the trainer was sent them",
        ("sent",),
    ),
    Metric("losses", "Losses of this drafter or verifier: dead, or silent for too long", ("host",)),
    Metric("restarts", "Times that it was back after a loss", ("host",)),
    Metric("recovery_seconds", "Time from a loss until it was back", ("host",)),
    Metric("requests", "Requests that have ended at the replica", ("outcome",)),
    Metric(
        "promises", "Finished requests with an SLO, by whether it was met", ("kept", "slo_class")
    ),
)
GAUGES = (
    Metric("running", "Requests that have begun"),
    Metric("waiting", "Requests that wait to begin"),
    Metric("down", "1 while it is lost", ("host",)),
    Metric("learned_version", "The version that a learning drafter serves; 0: the config's own"),
    Metric("learned_tokens", "Tokens of answers that it has learned from"),
    Metric("learning_share", "How much of a processor the trainer used in the last minute"),
    Metric(
        "learning_tokens_per_forward",
        "By the learning drafter alone, on the last requests before it learned from them",
        ("version",),
    ),
    Metric("kv_blocks", "Blocks of the target's KV memory, updated every 2 s", ("state",)),
)
HISTOGRAMS = (
    Metric("ttft_seconds", "Time from arrival at the replica to the first token", (), _SECONDS),
    Metric("tpot_seconds", "Time per output token after the first", (), _SECONDS_PER_TOKEN),
    Metric("queue_seconds", "Time from arrival until a request begins", (), _SECONDS),
    Metric("latency_seconds", "Time from arrival to the end of a finished request", (), _SECONDS),
    Metric("forward_seconds", "Duration of a forward pass of the target", (), _FORWARD_SECONDS),
    Metric("forward_requests", "Batch size: requests verified in a forward pass", (), _REQUESTS),
)

INGRESS_COUNTERS = (
    Metric(
        "responses",
        "Requests that have ended, by HTTP status, over gRPC and handles as well. 499: the client "
        "left. A stream that fails midway counts with the status of its error",
        ("status",),
    ),
    Metric("resubmissions", "Choices that went on at another replica after the loss of theirs"),
    Metric("replicas_lost", "Replicas that had requests and have not answered: died or hung"),
    Metric("tenant_responses", "The same as `responses_total`, by tenant", ("tenant", "status")),
    Metric("tenant_tokens", "Tokens of requests that have ended", ("tenant", "kind")),
)
INGRESS_HISTOGRAMS = (
    Metric(
        "response_ttft_seconds", "Time from arrival at the ingress to the first token", (), _SECONDS
    ),
    Metric("response_seconds", "Time from arrival at the ingress to the last token", (), _SECONDS),
)

Kind = Literal["counter", "gauge", "histogram"]
Declared = tuple[tuple[Kind, tuple[Metric, ...]], ...]
OF_REPLICA: Declared = (
    ("counter", COUNTERS),
    ("gauge", GAUGES),
    ("histogram", HISTOGRAMS),
)
OF_INGRESS: Declared = (
    ("counter", INGRESS_COUNTERS),
    ("histogram", INGRESS_HISTOGRAMS),
)
PARTS_OF_A_HISTOGRAM = ("bucket", "count", "sum")
