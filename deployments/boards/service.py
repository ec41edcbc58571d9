"""The boards of the service: SLO and schedule, and reliability."""

from deployments.boards.queries import Panel, Query, by_label, increase, of_ingress, quantiles, rate
from deployments.boards.shared import ATTAINMENT, DOWN, LOAD, STATUSES, TPOT, TTFT

SLO = [
    ATTAINMENT,
    Panel(
        "Finished requests with an SLO",
        "By class, and whether it was kept.",
        "reqps",
        [Query(rate("promises", "slo_class, kept"), "{{slo_class}} {{kept}}")],
        stacked=True,
    ),
    TTFT,
    TPOT,
    Panel("Time in the queue", "Until a request first ran.", "s", quantiles("queue_seconds")),
    Panel(
        "Latency",
        "From arrival at the replica to the last token.",
        "s",
        quantiles("latency_seconds"),
    ),
    Panel(
        "Time to first token at the ingress",
        "As clients see it, without their network.",
        "s",
        quantiles("response_ttft_seconds", of_replicas=False),
    ),
    Panel(
        "Latency at the ingress",
        "As clients see it, without their network.",
        "s",
        quantiles("response_seconds", of_replicas=False),
    ),
    LOAD,
    Panel(
        "Preemptions and swaps",
        "Requests that lost their place, and those whose KV went to host memory.",
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
        "By status.",
        "reqps",
        [Query(of_ingress("tenant_responses", "tenant, status"), "{{tenant}} {{status}}")],
        stacked=True,
    ),
]

RELIABILITY = [
    STATUSES,
    Panel(
        "Requests that have left",
        "At the replicas, by outcome.",
        "reqps",
        [by_label("requests", "outcome")],
        stacked=True,
    ),
    DOWN,
    Panel(
        "Losses and restarts of hosts",
        "Drafters and verifiers that were lost, and those that are back.",
        "short",
        [
            Query(increase("losses", "host"), "{{host}} lost"),
            Query(increase("restarts", "host"), "{{host}} back"),
        ],
    ),
    Panel(
        "Time without a host",
        "Of the hosts that are back.",
        "s",
        [Query(increase("recovery_seconds", "host"), "{{host}}")],
    ),
    Panel(
        "Late draft calls",
        "The round went on without their answer.",
        "short",
        [Query(increase("late_calls", "host"), "{{host}}")],
    ),
    Panel(
        "Requests without features",
        "A head did not draft for them, as it lacked the target's hidden states.",
        "short",
        [Query(increase("features_lost", "host"), "{{host}}")],
    ),
    Panel(
        "Replicas that have come and gone",
        "With the choices that went to another replica.",
        "short",
        [
            Query(of_ingress("replicas_started", function="increase"), "started"),
            Query(of_ingress("replicas_left", function="increase"), "left"),
            Query(of_ingress("resubmissions", function="increase"), "resubmitted choices"),
        ],
    ),
]
