"""The numbers that `deployments.top` shows, from the change between two scrapes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from deployments.metrics import COORDINATOR, KV_STATES, LOOKUPS, PLAIN
from deployments.top.scrapes import Change

Value = float | str | None
_ONLY_LOOKUPS = "(lookups)"
"""The row of rounds in which only lookups drafted: their tokens are in the rows of each of them."""


class Column(NamedTuple):
    title: str
    show: Callable[[Value], str]
    width: int


class Table(NamedTuple):
    """The first column names the row; the others are in the order in which a narrow screen drops
    them, last first."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]


def _text(value: Value) -> str:
    return str(value)


def _number(value: Value) -> str:
    if not isinstance(value, float):
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"


def _percent(value: Value) -> str:
    return f"{100 * value:.0f}%" if isinstance(value, float) else "-"


def _times(value: Value) -> str:
    return f"{value:.2f}×" if isinstance(value, float) else "-"


def milliseconds(value: Value) -> str:
    if not isinstance(value, float):
        return "-"
    return f"{value:.3g} s" if value >= 0.9995 else f"{1000 * value:.3g} ms"


def ratio(above: float, below: float) -> float | None:
    return above / below if below > 0 else None


_DRAFTERS = (
    Column("drafter", _text, 10),
    Column("accepted/s", _number, 10),
    Column("accept %", _percent, 8),
    Column("speed-up", _times, 8),
    Column("rounds/s", _number, 8),
    Column("verified/s", _number, 10),
    Column("drafted/s", _number, 9),
    Column("calibration", _times, 11),
    Column("pos 1", _percent, 5),
    Column("pos 2", _percent, 5),
    Column("pos 4", _percent, 5),
)
_HOSTS = (
    Column("host", _text, 10),
    Column("state", _text, 5),
    Column("busy", _percent, 5),
    Column("drafted for/s", _number, 13),
    Column("model error", _percent, 11),
    Column("late", _number, 5),
    Column("lost", _number, 5),
    Column("read ahead/s", _number, 12),
)


def drafters(change: Change) -> Table:
    rounds = change.rates("rounds_total", "drafter")
    verified = change.rates("verified_tokens_total", "drafter")
    accepted = change.rates("accepted_tokens_total", "drafter")
    expected = change.rates("expected_tokens_total", "drafter")
    drafted = change.rates("drafted_tokens_total", "drafter")
    plain = change.rates("plain_seconds_total", "drafter")
    slots = change.rates("slot_seconds_total", "drafter")
    prompts = change.rates("slot_seconds_total", "drafter", part="prompts")

    def at(position: str, name: str) -> float | None:
        where = {"drafter": name, "position": position}
        taken = change.rate("accepted_tokens_total", **where)
        return ratio(taken, change.rate("verified_tokens_total", **where))

    rows = [
        (
            _ONLY_LOOKUPS if name == LOOKUPS else name,
            accepted.get(name),
            ratio(accepted.get(name, 0.0), verified.get(name, 0.0)),
            ratio(plain.get(name, 0.0), slots.get(name, 0.0) - prompts.get(name, 0.0)),
            rounds.get(name, 0.0),
            verified.get(name),
            drafted.get(name),
            ratio(accepted.get(name, 0.0), expected.get(name, 0.0)),
            *(at(position, name) for position in ("1", "2", "4")),
        )
        for name in rounds
        if name != PLAIN
    ]
    return Table("Drafters", _DRAFTERS, rows)


def hosts(change: Change) -> Table:
    busy = change.rates("busy_seconds_total", "host")
    idle = change.rates("idle_seconds_total", "host")
    errors = change.rates("prediction_error_seconds_total", "host")
    predicted = change.rates("predicted_seconds_total", "host")
    assignments = change.rates("assignments_total", "host")
    down = change.gauges("down", "host")
    late, lost = change.gauges("late_calls_total", "host"), change.gauges("losses_total", "host")
    ahead = change.rates("caught_up_tokens_total", "host")
    rows = [
        (
            name,
            "DOWN" if down.get(name) else "up",
            ratio(busy[name], busy[name] + idle.get(name, 0.0)),
            assignments.get(name, 0.0),
            ratio(errors.get(name, 0.0), predicted.get(name, 0.0)),
            late.get(name, 0.0),
            lost.get(name, 0.0),
            ahead.get(name, 0.0),
        )
        for name in busy
        if name != COORDINATOR
    ]
    return Table("Hosts", _HOSTS, rows)


def summary(change: Change) -> list[tuple[str, str]]:
    """Titles and values of the whole application."""
    plain = change.rate("plain_seconds_total")
    slots = change.rate("slot_seconds_total")
    slots -= change.rate("slot_seconds_total", part="prompts")
    speed_up = ratio(plain, slots)
    probes = change.rates("probe_seconds_total", "by")
    correction = ratio(probes.get("clock", 0.0), probes.get("model", 0.0))
    measured = speed_up * correction if speed_up and correction else None
    kept = change.rate("promises_total", kept="yes")
    blocks = [change.gauge("kv_blocks", state=state) for state in KV_STATES]
    used = ratio(blocks[KV_STATES.index("used")], sum(blocks))
    hits = change.rate("prompts_total", cached="yes")
    cached, read = change.rate("cached_tokens_total"), change.rate("prefilled_tokens_total")
    statuses = change.rates("responses_total", "status")
    failed = sum(rate for status, rate in statuses.items() if status.startswith("5"))
    return [
        ("goodput", f"{_number(change.rate('committed_tokens_total'))} tokens/s"),
        ("speed-up", _times(speed_up)),
        ("measured", _times(measured)),
        ("SLO met", _percent(ratio(kept, change.rate("promises_total")))),
        ("running", _number(change.gauge("running"))),
        ("waiting", _number(change.gauge("waiting"))),
        ("TTFT p95", milliseconds(change.quantile("ttft_seconds", 0.95))),
        ("TPOT p50", milliseconds(change.quantile("tpot_seconds", 0.5))),
        ("queue p95", milliseconds(change.quantile("queue_seconds", 0.95))),
        ("forward p50", milliseconds(change.quantile("forward_seconds", 0.5))),
        ("prefix hits", _percent(ratio(hits, change.rate("prompts_total")))),
        ("prompt cached", _percent(ratio(cached, cached + read))),
        ("batch", _number(ratio(change.rate("rounds_total"), change.rate("forwards_total")))),
        ("KV used", _percent(used)),
        ("responses/s", _number(sum(statuses.values()))),
        ("429/s", _number(statuses.get("429", 0.0))),
        ("5xx/s", _number(failed)),
    ]
