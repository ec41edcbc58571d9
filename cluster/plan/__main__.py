"""`python -m cluster.plan MODEL`: which topology serves a model best on these machines.

Simulates candidates with the production coordinator and policies, prints the best, says what each
drafter brings, and writes the config. `--gpus 4xH100,2xL4` describes a cluster by a table; without
it this machine is planned for, and the models are measured on it. `--trace FILE` has the requests:
a CSV file or JSON lines with arrival_s, prompt_tokens, output_tokens, or the texts as prompt and
output, on which lookups are replayed. Exit status 1 if nothing fits, with the reason.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from tokenizers import Tokenizer

from cluster.cache import written_whole
from cluster.checkpoints import architecture
from cluster.config.drafter_kinds import LOOKUPS
from cluster.plan.acceptance import Fleet, Given, of_lookup
from cluster.plan.candidates import Option, Planned, Refused, candidates
from cluster.plan.gpus import described
from cluster.plan.load import CLIENTS, Load, traced, usual
from cluster.plan.report import parts, picture, serve_config, table
from cluster.plan.runs import Outcome, outcome, ranked
from cluster.sources import check_source, header_folder
from policies.request import Slo

_SHOWN = 3


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    try:
        outcomes, refused = planned(options)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if not outcomes:
        print(
            *dict.fromkeys(f"{one.layout}: {one.reason}" for one in refused),
            sep="\n",
            file=sys.stderr,
        )
        return 1
    best = outcomes[0]
    print(*table(outcomes[:_SHOWN]), "", *picture(best), "", *parts(outcomes, refused), sep="\n")
    command = shlex.join(["python", "-m", "cluster.plan", *(arguments or sys.argv[1:])])
    with written_whole(options.output) as file:
        file.write_text(serve_config(best, command))
    print(f"\n{options.output}: check it with `python -m cluster.check {options.output}`")
    if options.json is not None:
        with written_whole(options.json) as file:
            file.write_text(json.dumps([_record(one) for one in outcomes], indent=1) + "\n")
    return 0


def planned(options: argparse.Namespace) -> tuple[list[Outcome], list[Refused]]:
    """All candidates, best first, and those that cannot run. Raises ValueError."""
    machines = described(options.gpus, options.price)
    model = check_source(options.model)
    context = architecture(header_folder(model)).max_position_embeddings
    load = _load(options, sum(machines.gpus.values()), context)
    lookups = {kind: of_lookup(kind, load.texts) for kind in LOOKUPS}
    given = [_given("eagle3", one) for one in options.head]
    given += [_given("model", one) for one in options.drafter]
    if not machines.gpus:
        given.append(Given("quantized", None, None))
    fleets = [Fleet(), Fleet(lookups), *(Fleet(lookups, one) for one in given)]
    clients = load.clients or CLIENTS * max(1, sum(machines.gpus.values()))
    longest = max(one.prompt_tokens + one.max_tokens for one in load.arrivals)
    asked = Planned(model, machines, clients, options.slo, options.quantize, longest)
    found = list(candidates(asked, fleets))
    outcomes = [outcome(one, load, machines) for one in found if isinstance(one, Option)]
    return ranked(outcomes), [one for one in found if isinstance(one, Refused)]


def _load(options: argparse.Namespace, gpus: int, context: int) -> Load:
    slo = Slo(tpot_s=None if options.slo is None else options.slo / 1000)
    if options.trace is None:
        return usual(options.clients or CLIENTS * max(1, gpus), slo, context)
    return traced(options.trace, partial(_tokens, options.model), slo, context, options.clients)


def _tokens(model: str, text: str) -> Sequence[int]:
    ids: Sequence[int] = _tokenizer(header_folder(model) / "tokenizer.json").encode(text).ids
    return ids


@cache
def _tokenizer(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(
            f"{file} cannot be read ({error}): give the trace prompt_tokens and output_tokens"
        ) from error


def _given(kind: str, text: str) -> Given:
    """`MODEL`, or `MODEL=0.7` with the share of its tokens that is accepted."""
    model, equals, share = text.rpartition("=")
    if not equals:
        return Given(kind, check_source(text), None)
    try:
        acceptance = float(share)
    except ValueError:
        acceptance = -1.0
    if not 0.0 < acceptance < 1.0:
        option = "--head" if kind == "eagle3" else "--drafter"
        raise ValueError(f"{option}: {share!r} is no share between 0 and 1, as in {model}=0.7")
    return Given(kind, check_source(model), acceptance)


def _record(one: Outcome) -> dict[str, object]:
    numbers = {name: getattr(one, name) for name in Outcome._fields if name != "option"}
    option = one.option
    return {"name": option.name, **numbers, "replicas": option.replicas, "args": option.args}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cluster.plan", description=__doc__)
    parser.add_argument("model", help="as target.model in a config")
    parser.add_argument("--gpus", metavar="4xH100,2xL4", help="by default this machine")
    parser.add_argument("--trace", type=Path, help="the requests; by default conversations")
    parser.add_argument(
        "--clients", type=_at_least_one, help="requests at once, each followed by another"
    )
    parser.add_argument("--slo", type=_above_zero, metavar="TPOT_MS", help="time per output token")
    for name in ("head", "drafter"):
        metavar = "MODEL[=ACCEPTANCE]"
        parser.add_argument(f"--{name}", action="append", default=[], metavar=metavar)
    parser.add_argument(
        "--quantize", choices=("int8", "int4"), help="also round the target so, on CPUs"
    )
    parser.add_argument("--price", action="append", default=[], metavar="H100=2.50", help="an hour")
    parser.add_argument("--output", type=Path, default=Path("plan.yaml"))
    parser.add_argument("--json", type=Path, help="all candidates with their numbers")
    return parser.parse_args(arguments)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _above_zero(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
