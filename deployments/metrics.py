"""The declarations of every metric that Spindle exports, and the tables of docs/metrics.md.

`/metrics` prefixes each name with `spindle_`, Ray with `ray_spindle_`; both append `_total` to
counters. `python -m deployments.metrics` writes the tables of docs/metrics.md anew.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

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
LOST, STOPPED = "lost", "stopped"
"""Why a replica has left."""
STATUSES = ("200", "400", "401", "403", "404", "413", "429", "499", "500", "503")
MOST_TENANTS = 50
"""More tenants than this are counted together, so that their series stay few."""


class Metric(NamedTuple):
    name: str
    text: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Of a histogram's buckets."""


_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_SECONDS_PER_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1)
_FORWARD_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

COUNTERS = (
    Metric("committed_tokens", "Output tokens committed: their rate is goodput"),
    Metric("prefilled_tokens", "Prompt tokens that the target has read"),
    Metric(
        "prompts",
        "Prompts of requests that have left, by whether their beginning was in KV memory (the "
        "prefix cache)",
        ("cached",),
    ),
    Metric("cached_tokens", "Tokens of these prompts that were there, and so were not read"),
    Metric("forwards", "Forwards of the target"),
    Metric(
        "rounds",
        "Verdicts with tokens, one for each request in a forward, by the number of draft tokens "
        "accepted in it",
        ("drafter", "accepted"),
    ),
    Metric(
        "drafted_tokens",
        "Draft tokens that drafters have proposed, by their position after the last committed "
        "token",
        ("drafter", "position"),
    ),
    Metric("verified_tokens", "Draft tokens that were verified", ("drafter", "position")),
    Metric("accepted_tokens", "Draft tokens that the target agreed with", ("drafter", "position")),
    Metric(
        "expected_tokens",
        "Draft tokens that calibrated confidences expected the target to agree with, of those "
        "verified",
        ("drafter", "position"),
    ),
    Metric(
        "slot_seconds",
        "Time between two verdicts of a request: of its drafting, of the forward, of other "
        "requests' prompts in it, and waiting",
        ("drafter", "part"),
    ),
    Metric(
        "plain_seconds",
        "The time in which plain decoding would have committed the same tokens, as the cost "
        "model reckons it",
        ("drafter",),
    ),
    Metric(
        "probe_seconds",
        "Slot time of rounds in whose forward nothing was drafted: measured, and as the cost "
        "model reckons it",
        ("by",),
    ),
    Metric(
        "busy_seconds",
        "Seconds in which a lane or the verifier worked, or the coordinator selected nodes",
        ("host", "work"),
    ),
    Metric("idle_seconds", "Seconds in which it had nothing to do", ("host",)),
    Metric(
        "predicted_seconds",
        "What the cost model expected of draft calls, and of forwards without prompts",
        ("host",),
    ),
    Metric(
        "prediction_error_seconds",
        "By how much these took longer or shorter than expected",
        ("host",),
    ),
    Metric("assignments", "Requests in draft calls of a lane", ("host",)),
    Metric("switches", "Requests that moved to another lane"),
    Metric(
        "prepared_switches",
        "Switches to a lane that had read committed tokens of the request in idle time",
    ),
    Metric(
        "catch_up_saved_seconds",
        "What the first drafts after these switches would have taken longer, by the lane's profile",
        ("host",),
    ),
    Metric("caught_up_tokens", "Committed tokens that lanes have read in idle time", ("host",)),
    Metric("preemptions", "Requests that lost their place in the batch"),
    Metric("swaps", "Requests whose KV went to host memory"),
    Metric(
        "late_calls",
        "Calls of a lane for whose answer the round did not wait (limits.slow_drafter_s)",
        ("host",),
    ),
    Metric(
        "features_lost",
        "Requests for which a lane did not draft, as it lacked features (limits.feature_tokens)",
        ("host",),
    ),
    Metric("losses", "Hosts that were lost: dead, or silent for too long", ("host",)),
    Metric("restarts", "Hosts that were lost and are back", ("host",)),
    Metric("recovery_seconds", "From losing a host to its return", ("host",)),
    Metric("requests", "Requests that have left", ("outcome",)),
    Metric(
        "promises", "Requests with an SLO that have finished: kept yes or no", ("kept", "slo_class")
    ),
)
GAUGES = (
    Metric("running", "Requests that have begun"),
    Metric("waiting", "Requests that have not run yet"),
    Metric("down", "1 while the host is lost", ("host",)),
    Metric("kv_blocks", "Blocks of the target's KV memory, every 2 s", ("state",)),
    Metric(
        "regret",
        "The share of goodput by which the present assignment is below the best drafter of each "
        "request, as the selection policy estimates it",
    ),
)
HISTOGRAMS = (
    Metric("ttft_seconds", "From arrival at the replica to the first token", (), _SECONDS),
    Metric("tpot_seconds", "Per output token behind the first", (), _SECONDS_PER_TOKEN),
    Metric("queue_seconds", "From arrival until a request first ran", (), _SECONDS),
    Metric("latency_seconds", "From arrival to the end of a finished request", (), _SECONDS),
    Metric("forward_seconds", "Of a forward of the target", (), _FORWARD_SECONDS),
    Metric("forward_requests", "Requests in a forward with verdicts: the batch", (), _REQUESTS),
)

INGRESS_COUNTERS = (
    Metric(
        "responses",
        "Requests that have ended, by HTTP status, over gRPC and handles as well; 499: the client "
        "left. A stream that fails in its middle counts with the status of its error",
        ("status",),
    ),
    Metric("resubmissions", "Choices that went to another replica after the loss of theirs"),
    Metric("replicas_started", "Replicas that have begun to take calls"),
    Metric(
        "replicas_left",
        "Replicas that take no calls any more: lost (died or hung), or stopped by Serve (replaced "
        "or scaled down)",
        ("reason",),
    ),
    Metric("tenant_responses", "The same as `responses` by tenant", ("tenant", "status")),
    Metric("tenant_tokens", "Tokens of requests that have ended", ("tenant", "kind")),
)
INGRESS_HISTOGRAMS = (
    Metric("response_ttft_seconds", "From arrival at the ingress to the first token", (), _SECONDS),
    Metric("response_seconds", "From arrival at the ingress to the last token", (), _SECONDS),
)

LABELS: Mapping[str, str] = {
    "replica": "the name of the replica, on all series of replicas",
    "drafter": "its name in the config. Tokens count for the drafter that proposed them, for the "
    "selected lane's where several did; rounds and slot time for that of the selected lane, or "
    f"for `{LOOKUPS}`, or for `{PLAIN}`",
    "position": f"{POSITIONS[0]} to {POSITIONS[-1]}: the depth in the draft tree",
    "accepted": f"{ACCEPTED[0]} to {ACCEPTED[-1]}",
    "part": ", ".join(f"`{part}`" for part in PARTS),
    "by": "`clock`, `model`",
    "host": f"a lane's name, `{VERIFIER}` or `{COORDINATOR}`",
    "work": "`draft`, `catch_up`, `verify`, `select`",
    "outcome": ", ".join(f"`{outcome}`" for outcome in OUTCOMES) + " (by an error of its own)",
    "kept": "`yes`, `no`",
    "cached": "`yes`, `no`",
    "slo_class": f"a class of the config with these objectives, or `{OTHER}`",
    "state": "`free`, `used` by requests, `cached` for prompts with the same beginning",
    "status": "HTTP status",
    "tenant": f"tenants with an API key; beyond the first {MOST_TENANTS} of the config, `{OTHER}`",
    "kind": "`prompt`, `output`",
    "reason": f"`{LOST}`, `{STOPPED}`",
}

_Kind = Literal["counter", "gauge", "histogram"]
_REPLICA: tuple[tuple[_Kind, tuple[Metric, ...]], ...] = (
    ("counter", COUNTERS),
    ("gauge", GAUGES),
    ("histogram", HISTOGRAMS),
)
_INGRESS: tuple[tuple[_Kind, tuple[Metric, ...]], ...] = (
    ("counter", INGRESS_COUNTERS),
    ("histogram", INGRESS_HISTOGRAMS),
)
_PARTS_OF_A_HISTOGRAM = ("bucket", "count", "sum")


def exported(prefix: str = "ray_spindle_") -> dict[str, set[str]]:
    """The label names of each series that Prometheus stores, by its name."""
    series: dict[str, set[str]] = {}
    for own, (kind, metrics) in chain(
        (({"replica"}, group) for group in _REPLICA), ((set[str](), group) for group in _INGRESS)
    ):
        for metric in metrics:
            labels = own | set(metric.labels)
            if kind == "histogram":
                for part in _PARTS_OF_A_HISTOGRAM:
                    more = {"le"} if part == "bucket" else set[str]()
                    series[f"{prefix}{metric.name}_{part}"] = labels | more
            else:
                suffix = "_total" if kind == "counter" else ""
                series[f"{prefix}{metric.name}{suffix}"] = labels
    return series


def tables() -> Iterator[str]:
    yield _table("### Of replicas", _REPLICA)
    yield _table("### Of the ingress", _INGRESS)
    rows = [f"| `{label}` | {text} |" for label, text in LABELS.items()]
    yield "\n".join(["### Labels", "", "| label | values |", "| --- | --- |", *rows])


def _table(title: str, groups: Iterable[tuple[_Kind, tuple[Metric, ...]]]) -> str:
    rows = [
        f"| `{metric.name}{'_total' if kind == 'counter' else ''}` "
        f"| {', '.join([kind, *(f'`{label}`' for label in metric.labels)])} | {metric.text} |"
        for kind, metrics in groups
        for metric in metrics
    ]
    return "\n".join([title, "", "| name | kind, labels | |", "| --- | --- | --- |", *rows])


def written(page: str) -> str:
    """The page with its tables written anew; they end where the next chapter begins."""
    before, _, rest = page.partition("### Of replicas\n")
    _, _, after = rest.partition("\n## ")
    return before + "\n\n".join(tables()) + "\n\n## " + after


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
