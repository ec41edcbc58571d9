"""Options of benchmarks.real, with the defaults of each way of measuring."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks.real.contenders import CONTENDERS, HEAD
from benchmarks.real.engine import DRAFTERS, MODEL
from benchmarks.real.prompts import CATEGORIES
from benchmarks.real.spindle import Dtype
from benchmarks.report import parser
from cluster.built_in_models import SMOLLM2

SMOKE = ("vllm_ngram_k3", "spindle_native")
SHORT: Mapping[str, Any] = {"clients": (1,), "requests": 4, "max_tokens": 16, "final_rounds": 0}
"""Other defaults with `--smoke`."""
ALWAYS: Mapping[str, Any] = {"requests": 16, "max_tokens": 128}
SERVED: Mapping[str, Any] = {
    "dtype": "float32",
    "rounds": 1,
    "clients": (1, 4, 16),
    "final_rounds": 4,
}
ENGINE: Mapping[str, Any] = {"depths": (5,), "drafter": None}
"""The options that only one way of measuring has, with defaults."""


def options_of(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    own = _parser(description)
    options = own.parse_args(arguments)
    _fill_in(options, own)
    known = (*DRAFTERS, *more_heads(options)) if options.engine else CONTENDERS
    if options.contenders is None:
        chosen = SMOKE if options.smoke and not options.engine else known
        options.contenders = [
            name
            for name in chosen
            if (options.head or HEAD not in name) and (options.drafter or name != MODEL)
        ]
    if min(options.requests, options.max_tokens, options.rounds or 1) < 1:
        own.error("--requests, --max-tokens, --rounds: at least 1")
    for name in options.contenders:
        if name not in known:
            own.error(f"--contenders: {name} is no contender here; there are {', '.join(known)}")
        if HEAD in name and not options.head:
            own.error(f"--contenders: {name} needs --head DIR")
        if name == MODEL and options.drafter is None:
            own.error(f"--contenders: {name} needs --drafter DIR")
    return options


def more_heads(options: argparse.Namespace) -> dict[str, Path]:
    """The heads after the first, which is named by its kind alone."""
    return {f"{HEAD}:{head.name}": head for head in options.head[1:]}


def _parser(description: str | None) -> argparse.ArgumentParser:
    own = parser(description)
    own.add_argument("--model", default=SMOLLM2, help="as target.model in a config")
    own.add_argument("--data", type=Path, default=Path("../shared/data"))
    own.add_argument(
        "--head",
        type=Path,
        nargs="+",
        default=[],
        help="heads of the model, in speculators' format; served contenders take the first",
    )
    own.add_argument("--drafter", type=Path, help="of --engine; a small model, as contender model")
    own.add_argument("--dtype", choices=get_args(Dtype), help="as served; by default float32")
    own.add_argument("--categories", nargs="+", choices=CATEGORIES, default=CATEGORIES)
    own.add_argument("--contenders", nargs="+", help=f"of {', '.join((*CONTENDERS, *DRAFTERS))}")
    own.add_argument("--clients", type=int, nargs="+", help="by default 1 4 16")
    own.add_argument(
        "--requests",
        type=int,
        help="in a round, at least 2 a client, by default 16; of --engine in all",
    )
    own.add_argument("--max-tokens", type=int, help="by default 128")
    own.add_argument("--rounds", type=int, help="of the heats, by default 1")
    own.add_argument("--final-rounds", type=int, help="by default 4")
    own.add_argument(
        "--smoke", action="store_true", help="shorter defaults: two contenders, one client"
    )
    own.add_argument("--engine", action="store_true", help="drafters alone, without serving")
    own.add_argument("--depths", type=int, nargs="+", help="of --engine; by default 5")
    return own


def _fill_in(options: argparse.Namespace, own: argparse.ArgumentParser) -> None:
    """Defaults. What the chosen way of measuring would ignore is refused."""
    with_effect, without = (ENGINE, SERVED) if options.engine else (SERVED, ENGINE)
    for name, default in {**ALWAYS, **with_effect}.items():
        if getattr(options, name) is None:
            setattr(options, name, (SHORT if options.smoke else {}).get(name, default))
    for name in without:
        if getattr(options, name) is not None:
            where = "with" if options.engine else "without"
            own.error(f"--{name.replace('_', '-')}: it has no effect {where} --engine")
