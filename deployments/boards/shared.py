"""Panels that several boards show."""

from deployments.boards.queries import (
    Panel,
    Query,
    gauge,
    of_ingress,
    quantiles,
    rate,
    ratio,
    speed_up,
)

_PROBES_BY_CLOCK = rate("probe_seconds", more='by="clock"')
_PROBES_BY_MODEL = rate("probe_seconds", more='by="model"')
_ATTAINMENT = ratio(rate("promises", "slo_class", 'kept="yes"'), rate("promises", "slo_class"))
_ACCEPTANCE = ratio(rate("accepted_tokens", "drafter"), rate("verified_tokens", "drafter"))
GOODPUT = Panel(
    "Goodput",
    "Output tokens committed per second, by replica: the upper edge is the sum.",
    "suffix: tokens/s",
    [Query(rate("committed_tokens", "replica"), "replica {{replica}}")],
    stacked=True,
)
SPEED_UP = Panel(
    "Speed-up over plain decoding",
    "Above 1, speculation is faster. Estimated: by the cost model alone. Measured: corrected by "
    "the plain rounds that are run now and then to check it.",
    "suffix: ×",
    [
        Query(speed_up(), "estimated"),
        Query(
            f"{speed_up()} * {_PROBES_BY_CLOCK} / {_PROBES_BY_MODEL}",
            "measured",
        ),
    ],
)
LOAD = Panel(
    "Running and waiting requests",
    "Those that have begun, and those that wait to begin.",
    "short",
    [Query(gauge("running"), "running"), Query(gauge("waiting"), "waiting")],
)
ATTAINMENT = Panel(
    "SLO attainment by class",
    "The share of finished requests that met their SLO.",
    "percentunit",
    [Query(_ATTAINMENT, "{{slo_class}}")],
)
ACCEPTANCE = Panel(
    "Acceptance rate by drafter",
    "The share of verified draft tokens that the target accepted.",
    "percentunit",
    [Query(_ACCEPTANCE, "{{drafter}}")],
)
STATUSES = Panel(
    "Responses by status",
    "Requests that have ended, by HTTP status; 499: the client left.",
    "reqps",
    [Query(of_ingress("responses", "status"), "{{status}}")],
    stacked=True,
)
TTFT = Panel("Time to first token", "From arrival at the replica.", "s", quantiles("ttft_seconds"))
TPOT = Panel(
    "Time per output token", "Of all tokens after the first.", "s", quantiles("tpot_seconds")
)
DOWN = Panel(
    "Drafters and verifiers that are down",
    "1 while it is down: its process has died or does not answer.",
    "short",
    [Query(gauge("down", "replica, host", "max"), "{{host}} of {{replica}}")],
)
