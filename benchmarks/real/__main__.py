"""Compares Spindle with vLLM and transformers on a real model and real prompts.

`python -m benchmarks.real --data DIR [--head DIR ...] [--clients 1 4 16] [--smoke] [--json FILE]`,
or `--engine [--drafter DIR] [--depths 5]` for drafters alone.

The default target on Spec-Bench, GSM8K and HumanEval (`--data`: the folder with their files), which
no model here was trained on; half of the requests greedy, half at temperature 1. As in
benchmarks.serving.peers, each contender is loaded in turn and serves the same new requests as plain
vLLM, which is loaded all the time, to closed-loop clients; in the `--final-rounds` the best two of
Spindle's and of the others serve in turns in the same rounds. Contenders: vLLM's ngram, suffix and
eagle3, transformers' `generate` (one client only), Spindle on both backends with single drafters,
all of them, or none. `--head`: an EAGLE-3 head of the target, without which what needs one is left
out. A contender that fails is listed with its reason.

Names: real/CONTENDER/cCLIENTS/goodput (`reference`: plain vLLM in its turns), .../slowest_domain,
.../tokens_per_forward of the target, .../forward_ms; of one request's rounds: .../tokens_per_round,
.../CATEGORY/tokens_per_round, .../accepted/POSITION (share of rounds in which the draft token at it
was accepted), .../acceptance; .../draft_ms of a forward, within drafters' calls; likewise
real/final/..., and real/final/spindle.../cCLIENTS/over_best (`reference`: the best that is not
Spindle).

`--engine`: greedy drafts of each of `--depths` through engine.generate in this process; names
real/engine/DRAFTER/kDEPTH/tokens_per_forward (of one request, without its first), .../draft_cpu_ms,
.../accepted/POSITION (of the tokens proposed at it), .../CATEGORY/...; heads after the first are
eagle3:FOLDER; real/engine/in_hindsight/...: each request by the drafter that was best for it
(`reference`: all by the one that was best for all).
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from benchmarks.real.contenders import CONTENDERS, HEAD, ONE_CLIENT, PLAIN, servers
from benchmarks.real.engine import DRAFTERS, MODEL, measure_drafters
from benchmarks.real.prompts import CATEGORIES, real_prompts
from benchmarks.real.results import real_records
from benchmarks.real.whole_head import whole_head
from benchmarks.report import Record, parser, publish
from benchmarks.serving.contenders import Dtype, PeerRequest
from benchmarks.serving.contest import Contender, PairedTurn, final, heats
from benchmarks.serving.peers import compared_with_best, finalists_of
from cluster.checkpoint_files import stop_token_ids
from cluster.smollm2 import SMOLLM2
from cluster.sources import checkpoint_folder

SMOKE = ("vllm_ngram_k3", "spindle_native")
SHORT: Mapping[str, Any] = {
    "clients": (1,),
    "requests": 4,
    "max_tokens": 16,
    "final_rounds": 0,
}
"""Other defaults with `--smoke`."""
IN_BOTH: Mapping[str, Any] = {"requests": 16, "max_tokens": 128}
AS_SERVED: Mapping[str, Any] = {
    "dtype": "float32",
    "clients": (1, 4, 16),
    "rounds": 1,
    "final_rounds": 4,
}
"""Defaults of the options that `--engine` refuses."""
ON_THE_ENGINE: Mapping[str, Any] = {"depths": (5,), "drafter": None}
"""Defaults of those that it alone has."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    checkpoint = checkpoint_folder(options.model)
    if options.engine:
        records = engine_records(options, checkpoint)
    else:
        with TemporaryDirectory() as scratch:
            records = served_records(options, checkpoint, Path(scratch))
    publish(records, options.json)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    own = parser(__doc__)
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
    own.add_argument("--clients", type=int, nargs="+", help="as served; by default 1 4 16")
    own.add_argument(
        "--requests", type=int, help="in a round, at least 2 a client; or in all; by default 16"
    )
    own.add_argument("--max-tokens", type=int, help="by default 128")
    own.add_argument("--rounds", type=int, help="of the heats, by default 1")
    own.add_argument("--final-rounds", type=int, help="by default 4")
    own.add_argument(
        "--smoke", action="store_true", help="shorter defaults: two contenders, one client"
    )
    own.add_argument("--engine", action="store_true", help="drafters alone, without serving")
    own.add_argument("--depths", type=int, nargs="+", help="of --engine; by default 5")
    options = own.parse_args(arguments)
    _fill_in(options, own)
    if options.contenders is None:
        chosen = SMOKE if options.smoke else CONTENDERS
        chosen = (*DRAFTERS, *_more_heads(options)) if options.engine else chosen
        options.contenders = [
            name
            for name in chosen
            if (options.head or HEAD not in name) and (options.drafter or name != MODEL)
        ]
    known = (*DRAFTERS, *_more_heads(options)) if options.engine else CONTENDERS
    for name in options.contenders:
        if name not in known:
            own.error(f"--contenders: {name} is no contender here; there are {', '.join(known)}")
        if HEAD in name and not options.head:
            own.error(f"--contenders: {name} needs --head DIR")
        if name == MODEL and options.drafter is None:
            own.error(f"--contenders: {name} needs --drafter DIR")
    return options


def _fill_in(options: argparse.Namespace, own: argparse.ArgumentParser) -> None:
    """Defaults. What only the other way of measuring has is refused, for it would be ignored."""
    short = SHORT if options.smoke else {}
    for name, default in {**IN_BOTH, **AS_SERVED, **ON_THE_ENGINE}.items():
        if getattr(options, name) is None:
            setattr(options, name, short.get(name, default))
        elif name not in IN_BOTH and (name in ON_THE_ENGINE) != options.engine:
            where = "without" if options.engine else "with"
            own.error(f"--{name.replace('_', '-')}: it has an effect only {where} --engine")


def _more_heads(options: argparse.Namespace) -> dict[str, Path]:
    """The heads after the first, which is named by its kind alone."""
    return {f"{HEAD}:{head.name}": head for head in options.head[1:]}


def engine_records(options: argparse.Namespace, checkpoint: Path) -> list[Record]:
    prompts = real_prompts(options.data, checkpoint, options.categories)
    return measure_drafters(
        checkpoint,
        prompts[: options.requests],
        options.contenders,
        {HEAD: next(iter(options.head), None), MODEL: options.drafter, **_more_heads(options)},
        options.depths,
        options.max_tokens,
    )


def served_records(options: argparse.Namespace, checkpoint: Path, scratch: Path) -> list[Record]:
    head = next(iter(options.head), None)
    vllm_head = None if head is None else whole_head(head, checkpoint, scratch)
    made = servers(options.model, checkpoint, head, vllm_head, options.dtype)
    others = {name: made[name] for name in options.contenders}
    requests = real_requests(options, checkpoint)

    def in_a_round(clients: int) -> int:
        return max(options.requests, 2 * clients)

    finals: dict[tuple[str, int], Sequence[PairedTurn]] = {}
    with closing(Contender(PLAIN, made[PLAIN])) as plain:
        batched = {name: make for name, make in others.items() if name not in ONE_CLIENT}
        first = dict(heats(plain, batched, requests, options.clients, options.rounds, in_a_round))
        single = {name: make for name, make in others.items() if name in ONE_CLIENT}
        if single and 1 in options.clients:
            first |= heats(plain, single, requests, [1], options.rounds, in_a_round)
        for load in options.clients if options.final_rounds else ():
            finalists = {name: others[name] for name in finalists_of(first, load)}
            rounds = options.final_rounds
            finals |= final(plain, finalists, requests, load, rounds, in_a_round)
    over_best, behind = compared_with_best(finals, "real/final")
    print(*behind, sep="\n")
    return [*real_records(first, "real"), *real_records(finals, "real/final"), *over_best]


def real_requests(options: argparse.Namespace, checkpoint: Path) -> Iterator[PeerRequest]:
    """All prompts again and again, in other orders; temperatures 0 and 1 alternate between passes
    through the categories."""
    stop = stop_token_ids(checkpoint)
    in_turn = len(options.categories)
    for seed in count():
        prompts = real_prompts(options.data, checkpoint, options.categories, seed)
        for number, prompt in enumerate(prompts):
            temperature = float(number // in_turn % 2)
            yield PeerRequest(prompt.prompt, temperature, options.max_tokens, stop, prompt.domain)


if __name__ == "__main__":
    main()
