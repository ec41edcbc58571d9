"""Options of benchmarks.real, with the defaults of each way of measuring."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from actors.coordinator.settings import Limits
from benchmarks.real.contenders import CONTENDERS, HEAD, ONE_CLIENT
from benchmarks.real.engine import DRAFTERS, MODEL
from benchmarks.real.prompts import CATEGORIES
from benchmarks.real.spindle import Dtype
from benchmarks.report import parser
from cluster.built_in_models import SMOLLM2

SMOKE = ("vllm_ngram_k3", "spindle_native")
ON_TRACE = ("vllm_ngram_k3", "spindle_native", "spindle_vllm")
"""All of a trace's contenders are loaded at once."""
MOST_AT_ONCE = Limits().max_batch + Limits().max_waiting
"""Requests of an open loop, all of which may wait at once."""
SLOWEST = 20
SHORT: Mapping[str, Any] = {
    "clients": (1,),
    "loads": (80,),
    "requests": 4,
    "max_tokens": 16,
    "final_rounds": 0,
}
"""Other defaults with `--smoke`."""
ALWAYS: Mapping[str, Any] = {"requests": 16, "max_tokens": 128}
AS_SERVED: Mapping[str, Any] = {"dtype": "float32", "rounds": 1}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "": {**AS_SERVED, "clients": (1, 4, 16), "final_rounds": 4},
    "trace": {**AS_SERVED, "loads": (50, 80, 100), "requests": 48},
    "engine": {"depths": (5,), "drafter": None},
}
"""By the option that chooses it: the options that not every way of measuring has, with defaults."""


def options_of(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    own = _parser(description)
    options = own.parse_args(arguments)
    way = "engine" if options.engine else "trace" if options.trace else ""
    if options.engine and options.trace:
        own.error("--trace: it has no effect with --engine")
    _fill_in(options, way, own)
    known = {
        "": CONTENDERS,
        "trace": [name for name in CONTENDERS if name not in ONE_CLIENT],
        "engine": (*DRAFTERS, *more_heads(options)),
    }[way]
    if options.contenders is None:
        usual = ON_TRACE if options.trace else known
        chosen = SMOKE if options.smoke and not options.engine else usual
        options.contenders = [
            name
            for name in chosen
            if (options.head or HEAD not in name) and (options.drafter or name != MODEL)
        ]
    if options.trace and options.requests > MOST_AT_ONCE:
        own.error(f"--requests: with --trace at most {MOST_AT_ONCE}, else Spindle refuses some")
    if options.trace and min(options.loads) < SLOWEST:
        own.error(f"--loads: percentages from {SLOWEST}, below which a turn takes too long")
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
    own.add_argument("--clients", type=int, nargs="+", help="of closed loops; by default 1 4 16")
    own.add_argument(
        "--requests",
        type=int,
        help="in a round, at least 2 a client, by default 16, of --trace 48 and at most "
        f"{MOST_AT_ONCE}; of --engine in all",
    )
    own.add_argument("--max-tokens", type=int, help="by default 128")
    own.add_argument("--rounds", type=int, help="of the heats or of each load, by default 1")
    own.add_argument("--final-rounds", type=int, help="of closed loops; by default 4")
    own.add_argument(
        "--smoke", action="store_true", help="shorter defaults: two contenders, one client or load"
    )
    own.add_argument("--trace", type=Path, help="requests arrive as in this file")
    own.add_argument(
        "--loads",
        type=int,
        nargs="+",
        help="of --trace; %% of what plain vLLM serves; by default 50 80 100",
    )
    own.add_argument("--engine", action="store_true", help="drafters alone, without serving")
    own.add_argument("--depths", type=int, nargs="+", help="of --engine; by default 5")
    return own


def _fill_in(options: argparse.Namespace, way: str, own: argparse.ArgumentParser) -> None:
    """Defaults. What the chosen way of measuring would ignore is refused."""
    with_effect: Mapping[str, Any] = {**ALWAYS, **WAYS[way]}
    for name, default in with_effect.items():
        if getattr(options, name) is None:
            setattr(options, name, (SHORT if options.smoke else {}).get(name, default))
    for other, only_there in WAYS.items():
        for name in only_there:
            if name not in with_effect and getattr(options, name) is not None:
                where = f"without --{other}" if other else f"with --{way}"
                own.error(f"--{name.replace('_', '-')}: it has no effect {where}")
