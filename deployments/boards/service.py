"""The boards of the service: SLO and schedule, and reliability."""

from deployments.boards.queries import Panel, Query, by_label, increase, of_ingress, quantiles, rate
from deployments.boards.shared import ATTAINMENT, DOWN, LOAD, STATUSES, TPOT, TTFT

SLO = [
    ATTAINMENT,
    Panel(
        "Finished requests with an SLO",
        "By class, and whether it was met.",
        "reqps",
        [Query(rate("promises", "slo_class, kept"), "{{slo_class}}, met: {{kept}}")],
        stacked=True,
    ),
    TTFT,
    TPOT,
    Panel(
        "Time in the queue",
        "From arrival at the replica until a request begins.",
        "s",
        quantiles("queue_seconds"),
    ),
    Panel(
        "Latency",
        "From arrival at the replica to the last token.",
        "s",
        quantiles("latency_seconds"),
    ),
    Panel(
        "Time to first token at the ingress",
        "From arrival there: what clients see, without their network.",
        "s",
        quantiles("response_ttft_seconds", of_replicas=False),
    ),
    Panel(
        "Latency at the ingress",
        "From arrival there: what clients see, without their network.",
        "s",
        quantiles("response_seconds", of_replicas=False),
    ),
    LOAD,
    Panel(
        "Preemptions and swaps",
        "Requests that lost their place in the batch to others, and those whose KV was swapped to "
        "host memory.",
        "suffix: /s",
        [Query(rate("preemptions"), "preemptions"), Query(rate("swaps"), "swaps")],
    ),
    Panel(
        "Tokens by tenant",
        "Of requests that have ended, for tenants with an API key.",
        "suffix: tokens/s",
        [Query(of_ingress("tenant_tokens", "tenant, kind"), "{{tenant}} {{kind}}")],
        stacked=True,
    ),
    Panel(
        "Responses by tenant",
        "By HTTP status, for tenants with an API key.",
        "reqps",
        [Query(of_ingress("tenant_responses", "tenant, status"), "{{tenant}} {{status}}")],
        stacked=True,
    ),
]

RELIABILITY = [
    STATUSES,
    Panel(
        "Ended requests by outcome",
        "At the replicas. `stop` and `length` are complete answers.",
        "reqps",
        [by_label("requests", "outcome")],
        stacked=True,
    ),
    DOWN,
    Panel(
        "Lost and restarted",
        "Drafters and verifiers that died or did not answer, and those that are back.",
        "short",
        [
            Query(increase("losses", "host"), "{{host}} lost"),
            Query(increase("restarts", "host"), "{{host}} back"),
        ],
    ),
    Panel(
        "Downtime",
        "Of drafters and verifiers, counted when they are back.",
        "s",
        [Query(increase("recovery_seconds", "host"), "{{host}}")],
    ),
    Panel(
        "Late draft calls",
        "The drafter answered too late, and the round went on without it.",
        "short",
        [Query(increase("late_calls", "host"), "{{host}}")],
    ),
    Panel(
        "Not drafted for lack of hidden states",
        "Requests for which an EAGLE-3 head could not draft: the target's hidden states that it "
        "reads were not kept.",
        "short",
        [Query(increase("features_lost", "host"), "{{host}}")],
    ),
    Panel(
        "Replicas started and gone",
        "Lost: died or hung; stopped: replaced or scaled down by Serve. And choices that went on "
        "at another replica after the loss of theirs.",
        "short",
        [
            Query(of_ingress("replicas_started", function="increase"), "started"),
            Query(of_ingress("replicas_left", "reason", "increase"), "{{reason}}"),
            Query(of_ingress("resubmissions", function="increase"), "resubmitted choices"),
        ],
    ),
]
