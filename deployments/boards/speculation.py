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
        "Of the rounds in which it drafted, as the cost model reckons.",
        "suffix: ×",
        [Query(speed_up("drafter", _DRAFTED), "{{drafter}}")],
    ),
    Panel(
        "Rounds by drafter",
        "Which drafter the selection chose; `lookups`: only lookups; `none`: no draft.",
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
        "Drafted and not verified: the speculation policy found it not worth verifying.",
        "suffix: tokens/s",
        [
            Query(rate("drafted_tokens", "drafter"), "{{drafter}} drafted"),
            Query(rate("verified_tokens", "drafter"), "{{drafter}} verified"),
        ],
    ),
    Panel(
        "Verified in vain",
        "Verified draft tokens that the target did not agree with.",
        "suffix: tokens/s",
        [
            Query(
                f"{rate('verified_tokens', 'drafter')} - {rate('accepted_tokens', 'drafter')}",
                "{{drafter}}",
            )
        ],
    ),
    Panel(
        "Acceptance by position",
        "The share of draft tokens at this depth that was accepted.",
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
        "Accepted ÷ expected draft tokens: 1 where confidences are calibrated.",
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
        "The share of goodput that a better drafter for each request would add, as the "
        "selection policy estimates it.",
        "percentunit",
        [Query(gauge("regret", "replica", "max"), "{{replica}}")],
    ),
    Panel(
        "Assignments by lane",
        "Requests in its draft calls.",
        "suffix: requests/s",
        [by_label("assignments", "host")],
    ),
    Panel(
        "Switches",
        "Requests that moved to another lane, tokens read in idle time to prepare it, and the "
        "time that this saved.",
        "none",
        [
            Query(rate("switches"), "switches/s"),
            Query(rate("prepared_switches"), "of them prepared/s"),
            Query(rate("catch_up_saved_seconds", "host"), "{{host}}: s saved/s"),
            Query(rate("caught_up_tokens", "host"), "{{host}}: tokens/s read ahead"),
        ],
    ),
]

PIPELINE = [
    Panel(
        "Busy share of lanes and verifier",
        "The rest is bubbles: time without work.",
        "percentunit",
        [Query(_BUSY, "{{host}}")],
    ),
    Panel(
        "Work",
        "Seconds of work per second; `select` is the coordinator's selection of nodes.",
        "percentunit",
        [Query(rate("busy_seconds", "host, work"), "{{host}} {{work}}")],
        stacked=True,
    ),
    Panel(
        "Where a round's time goes",
        "Slot time of all requests: drafting, verifying, others' prompts, waiting.",
        "percentunit",
        [by_label("slot_seconds", "part")],
        stacked=True,
    ),
    Panel(
        "Forward of the target",
        "Seconds of one forward.",
        "s",
        [
            Query(ratio(rate("busy_seconds", "", _VERIFY), rate("forwards")), "mean"),
            *quantiles("forward_seconds", of=(0.5, 0.95)),
        ],
    ),
    Panel(
        "Batch",
        "Requests in a forward.",
        "short",
        [
            Query(ratio(rate("rounds"), rate("forwards")), "mean"),
            *quantiles("forward_requests", of=(0.5, 0.95)),
        ],
    ),
    Panel(
        "Tokens per forward",
        "Committed: over all requests of the forward, and for each.",
        "short",
        [
            Query(ratio(rate("committed_tokens"), rate("forwards")), "per forward"),
            Query(ratio(rate("committed_tokens"), rate("rounds")), "per request"),
        ],
    ),
    Panel(
        "Error of the cost model",
        "Deviation from the expected time, as a share of it.",
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
        "Read by the target, and found in its prefix cache instead.",
        "suffix: tokens/s",
        [
            Query(rate("prefilled_tokens"), "read"),
            Query(rate("cached_tokens"), "cached"),
        ],
        stacked=True,
    ),
    Panel(
        "Prefix cache",
        "Prompts whose beginning was in KV memory, and the share of prompt tokens that were.",
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
        "Blocks in use by requests, kept for prompts, and free.",
        "short",
        [Query(gauge("kv_blocks", "state"), "{{state}}")],
        stacked=True,
    ),
]
