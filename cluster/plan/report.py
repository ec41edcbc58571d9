"""What a plan prints and writes: the table, the placement, each drafter's part, the YAML."""

from collections.abc import Iterator, Sequence

import yaml

from cluster.plan.acceptance import Fleet
from cluster.plan.candidates import Option, Refused
from cluster.plan.runs import EQUAL, INGRESS_S, Outcome

_HEADER = ("", "topology", "tokens/s", "TTFT", "TPOT", "in SLO", "a round", "$/M tokens", "GPUs")


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    rows = [_HEADER, *(_row(str(place), one) for place, one in enumerate(outcomes, start=1))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for place, name, *cells in rows:
        aligned = (cell.rjust(width) for cell, width in zip(cells, widths[2:], strict=True))
        yield "  ".join([place.rjust(widths[0]), name.ljust(widths[1]), *aligned])


def _row(place: str, one: Outcome) -> tuple[str, ...]:
    return (
        place,
        one.option.name,
        f"{one.goodput:,.0f}",
        f"{one.ttft_s:.2f} s",
        f"{1000 * one.tpot_s:.1f} ms",
        f"{one.attainment:.0%}",
        f"{one.tokens_per_round:.2f}",
        "-" if one.dollars is None else f"{one.dollars:.2f}",
        " + ".join(f"{n} {kind}" for kind, n in one.option.gpus.items()) or "-",
    )


def picture(best: Outcome) -> Iterator[str]:
    option = best.option
    target = option.args["target"]
    ranks = target.get("tensor_parallel", 1)
    inside = ["coordinator"]
    lines = []
    where = target.get("accelerator") or next(iter(option.gpus), "processors")
    if target.get("placement") == "inline":
        inside.append(f"target ({target['backend']})")
    else:
        lines.append(f"[{' | '.join([where] * ranks)}] target ({target['backend']})")
    for drafter in option.args["drafters"]:
        own = drafter.get("accelerator") or (where if drafter.get("gpus") else None)
        if own is None:
            inside.append(drafter["name"])
        else:
            share = f" with the target, {drafter['gpus']:g} of it" if drafter["gpus"] < 1 else ""
            boxes = " ".join([f"[{own}]"] * drafter.get("instances", 1))
            lines.append(f"{boxes} {drafter['name']}{share}")
    yield "client -> ingress, router (head node)"
    yield f"  `-> {option.replicas} x replica [{', '.join(inside)}]"
    yield from (f"        |- {line}" for line in lines)
    busy = best.verdicts_s * INGRESS_S
    if busy > 1:
        yield (
            f"note  {best.verdicts_s:,.0f} verdicts a second pass the one ingress. At "
            f"{1000 * INGRESS_S:g} ms each it would be busy {busy:.1f} times over: measure yours "
            "(benchmarks.serving.overhead), or serve from several clusters beside each other"
        )


def parts(outcomes: Sequence[Outcome], refused: Sequence[Refused]) -> Iterator[str]:
    """Why each fleet is in or out: compared with the same layout without what it adds."""
    best = outcomes[0].option
    fleets = {one.option.fleet.label: one.option.fleet for one in outcomes}
    fleets |= {one.fleet.label: one.fleet for one in refused}
    by_name = {one.option.name: one for one in outcomes}
    for label, fleet in fleets.items():
        if not label.startswith("no "):
            own = [one for one in outcomes if one.option.fleet.label == label]
            yield f"{label}: {_part(own, fleet, best, by_name, refused)}"


def _part(
    own: Sequence[Outcome],
    fleet: Fleet,
    best: Option,
    by_name: dict[str, Outcome],
    refused: Sequence[Refused],
) -> str:
    if not own:
        why = next(one.reason for one in refused if one.fleet.label == fleet.label)
        return f"out, {why}"
    first = own[0]
    without = Fleet(fleet.lookups if fleet.given else {})
    plain = by_name.get(f"{first.option.layout}: {without.label}")
    gain = first.goodput / plain.goodput if plain and plain.goodput else 1.0
    compared = f"{gain:.2f} of {without.label} on {first.option.layout}"
    if best.fleet.label == fleet.label:
        return f"in, {compared}"
    if best.fleet.given is None or fleet.given is not None:
        if first.option.layout != best.layout:
            return f"out, {compared}, where the target itself is slower"
        equal = " (equal: the simpler one is taken)" if abs(gain - 1) <= EQUAL else ""
        return f"out, {compared}{equal}"
    return f"in, {compared}, and beside {best.fleet.given.name}"


def serve_config(best: Outcome, command: str) -> str:
    """A Serve config as `serve run` and `cluster.check` take it."""
    application = {
        "name": "spindle",
        "route_prefix": "/",
        "import_path": "deployments.app:build",
        "args": best.option.args,
    }
    content = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [application],
    }
    said = f"# {command}\n# {best.option.name}: {best.goodput:,.0f} tokens/s expected.\n"
    return said + yaml.safe_dump(content, sort_keys=False)
