"""The boards of speculation: drafters and selection, and the pipeline of lanes and verifier."""

from deployments.boards.queries import (
    Panel,
    Query,
    by_label,
    gauge,
    quantiles,
    rate,
    ratio,
    speed_up,
)
from deployments.boards.shared import ACCEPTANCE

_DRAFTED = 'drafter!="none"'
_HOSTS = 'host!="coordinator"'
_VERIFY = 'work="verify"'
_WORK = rate("busy_seconds", "host", _HOSTS)
_BUSY = ratio(_WORK, f"({_WORK} + {rate('idle_seconds', 'host')})")

DRAFTERS = [
    ACCEPTANCE,
    Panel(
        "Speed-up by drafter",
        "Over plain decoding, in the rounds in which it drafted; estimated by the cost model.",
        "suffix: ×",
        [Query(speed_up("drafter", _DRAFTED), "{{drafter}}")],
    ),
    Panel(
        "Rounds by drafter",
        "Which drafter was chosen; `lookups`: only lookups drafted; `none`: nothing was drafted.",
        "suffix: rounds/s",
        [by_label("rounds", "drafter")],
        stacked=True,
    ),
    Panel(
        "Accepted tokens by drafter",
        "What each drafter contributes to goodput.",
        "suffix: tokens/s",
        [by_label("accepted_tokens", "drafter")],
        stacked=True,
    ),
    Panel(
        "Drafted and verified tokens by drafter",
        "Where fewer are verified than drafted, the rest was not worth verifying.",
        "suffix: tokens/s",
        [
            Query(rate("drafted_tokens", "drafter"), "{{drafter}} drafted"),
            Query(rate("verified_tokens", "drafter"), "{{drafter}} verified"),
        ],
    ),
    Panel(
        "Rejected draft tokens by drafter",
        "Verified, and not accepted by the target: wasted work.",
        "suffix: tokens/s",
        [
            Query(
                f"{rate('verified_tokens', 'drafter')} - {rate('accepted_tokens', 'drafter')}",
                "{{drafter}}",
            )
        ],
    ),
    Panel(
        "Acceptance rate by position",
        "The share of verified draft tokens at this depth of the tree that were accepted.",
        "percentunit",
        [
            Query(
                ratio(
                    rate("accepted_tokens", "position"),
                    rate("verified_tokens", "position"),
                ),
                "{{position}}",
            )
        ],
        kind="bargauge",
    ),
    Panel(
        "Accepted length",
        "Rounds by how many draft tokens were accepted in them.",
        "suffix: rounds/s",
        [by_label("rounds", "accepted")],
        kind="bargauge",
    ),
    Panel(
        "Calibration",
        "Accepted draft tokens over those that its confidences predict: 1 is calibrated.",
        "none",
        [
            Query(
                ratio(rate("accepted_tokens", "drafter"), rate("expected_tokens", "drafter")),
                "{{drafter}}",
            )
        ],
    ),
    Panel(
        "Regret of the selection",
        "The share of goodput that the best drafter for each request would add, as the "
        "selection policy estimates it.",
        "percentunit",
        [Query(gauge("regret", "replica", "max"), "{{replica}}")],
    ),
    Panel(
        "Requests drafted for, by lane",
        "A lane is one drafter and the requests assigned to it; counted once per draft call.",
        "suffix: requests/s",
        [by_label("assignments", "host")],
    ),
    Panel(
        "Switches between lanes",
        "Requests that moved to another lane, and those of them whose text it had read ahead.",
        "suffix: requests/s",
        [
            Query(rate("switches"), "all"),
            Query(rate("prepared_switches"), "read ahead"),
        ],
    ),
    Panel(
        "Time for reading ahead, and time saved by it",
        "A lane reads ahead in idle time, so that requests can switch to it at once. It pays where "
        "it saves more than it takes.",
        "percentunit",
        [
            Query(rate("busy_seconds", "host", 'work="catch_up"'), "{{host}} takes"),
            Query(rate("catch_up_saved_seconds", "host"), "{{host}} saves"),
        ],
    ),
    Panel(
        "Tokens read ahead",
        "Committed tokens that a lane has read in idle time.",
        "suffix: tokens/s",
        [by_label("caught_up_tokens", "host")],
    ),
]

PIPELINE = [
    Panel(
        "Utilization of lanes and verifier",
        "The rest is idle time (pipeline bubbles).",
        "percentunit",
        [Query(_BUSY, "{{host}}")],
    ),
    Panel(
        "Work by kind",
        "The share of time in draft calls, reading ahead (`catch_up`), forward passes (`verify`), "
        "and choosing which draft tokens are verified (`select`).",
        "percentunit",
        [Query(rate("busy_seconds", "host, work"), "{{host}} {{work}}")],
        stacked=True,
    ),
    Panel(
        "Where a round's time goes",
        "Of each running request, added up: drafting, verifying, prompts of other requests in the "
        "same forward pass, waiting. 300% means three requests at a time.",
        "percentunit",
        [by_label("slot_seconds", "part")],
        stacked=True,
    ),
    Panel(
        "Forward pass of the target",
        "Duration of one pass, which serves the whole batch.",
        "s",
        [
            Query(ratio(rate("busy_seconds", "", _VERIFY), rate("forwards")), "mean"),
            *quantiles("forward_seconds", of=(0.5, 0.95)),
        ],
    ),
    Panel(
        "Batch size",
        "Requests in a forward pass.",
        "short",
        [
            Query(ratio(rate("rounds"), rate("forwards")), "mean"),
            *quantiles("forward_requests", of=(0.5, 0.95)),
        ],
    ),
    Panel(
        "Output tokens per forward pass",
        "For the whole batch, and for each request in it: 1 is plain decoding.",
        "short",
        [
            Query(ratio(rate("committed_tokens"), rate("forwards")), "per pass"),
            Query(ratio(rate("committed_tokens"), rate("rounds")), "per request"),
        ],
    ),
    Panel(
        "Cost model error",
        "Mean deviation of draft calls and forward passes from the predicted time.",
        "percentunit",
        [
            Query(
                ratio(
                    rate("prediction_error_seconds", "host"),
                    rate("predicted_seconds", "host"),
                ),
                "{{host}}",
            )
        ],
    ),
    Panel(
        "Prompt tokens",
        "Read by the target, or found in its prefix cache.",
        "suffix: tokens/s",
        [
            Query(rate("prefilled_tokens"), "read"),
            Query(rate("cached_tokens"), "cached"),
        ],
        stacked=True,
    ),
    Panel(
        "Prefix cache hit rate",
        "The share of prompts whose beginning was there, and of all prompt tokens.",
        "percentunit",
        [
            Query(ratio(rate("prompts", more='cached="yes"'), rate("prompts")), "prompts"),
            Query(
                ratio(
                    rate("cached_tokens"),
                    f"({rate('cached_tokens')} + {rate('prefilled_tokens')})",
                ),
                "tokens",
            ),
        ],
    ),
    Panel(
        "KV memory of the target",
        "Blocks used by requests, cached for prompts with the same beginning, and free.",
        "short",
        [Query(gauge("kv_blocks", "state"), "{{state}}")],
        stacked=True,
    ),
]
