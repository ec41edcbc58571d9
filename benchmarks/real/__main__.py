"""Compares Spindle with vLLM on a real model and real prompts.

`python -m benchmarks.real --data DIR [--head DIR ...] [--clients 1 4 16] [--smoke] [--json FILE]`,
or `--engine [--drafter DIR] [--depths 5]` for drafters alone.

The default target on Spec-Bench, GSM8K and HumanEval (`--data`: the folder with their files), which
no model here was trained on; half of the requests greedy, half at temperature 1. Each
contender is loaded in turn and serves the same new requests as plain
vLLM, which is loaded all the time, to closed-loop clients; in the `--final-rounds` the best two of
Spindle's and of the others serve in turns in the same rounds. Contenders: vLLM's ngram, suffix and
eagle3, Spindle on both backends with single drafters, all of them, or none. `--head`: an EAGLE-3
head of the target, without which what needs one is left out. A contender that fails is listed with
its reason.

Names: real/CONTENDER/cCLIENTS/goodput (`reference`: plain vLLM in its turns), .../slowest_domain,
.../tokens_per_forward of the target, .../forward_ms; of one request's rounds: .../tokens_per_round,
.../CATEGORY/tokens_per_round, .../accepted/POSITION (share of rounds in which the draft token at it
was accepted), .../acceptance; .../draft_ms of a forward, within drafters' calls; likewise
real/final/..., and real/final/spindle.../cCLIENTS/over_best (`reference`: the best that is not
Spindle).

`--engine`: greedy drafts of each of `--depths` through benchmarks.generation in this process; names
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

from benchmarks.real.contenders import HEAD, PLAIN, servers
from benchmarks.real.contest import Contender, MakeServer, PairedTurn, final, heats
from benchmarks.real.engine import MODEL, measure_drafters
from benchmarks.real.options import more_heads, options_of
from benchmarks.real.prompts import real_prompts
from benchmarks.real.results import compared_with_best, finalists_of, real_records
from benchmarks.real.spindle import PeerRequest
from benchmarks.real.whole_head import whole_head
from benchmarks.report import Record, publish
from cluster.checkpoint_files import stop_token_ids
from cluster.sources import checkpoint_folder


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments)
    checkpoint = checkpoint_folder(options.model)
    if options.engine:
        records = engine_records(options, checkpoint)
    else:
        with TemporaryDirectory() as scratch:
            made = _servers(options, checkpoint, Path(scratch))
            requests = real_requests(options, checkpoint)
            records = served_records(options, made, requests)
    publish(records, options.json)


def engine_records(options: argparse.Namespace, checkpoint: Path) -> list[Record]:
    prompts = real_prompts(options.data, checkpoint, options.categories)
    return measure_drafters(
        checkpoint,
        prompts[: options.requests],
        options.contenders,
        {HEAD: next(iter(options.head), None), MODEL: options.drafter, **more_heads(options)},
        options.depths,
        options.max_tokens,
    )


def _servers(
    options: argparse.Namespace, checkpoint: Path, scratch: Path
) -> Mapping[str, MakeServer]:
    head = next(iter(options.head), None)
    vllm_head = None if head is None else whole_head(head, checkpoint, scratch)
    return servers(options.model, checkpoint, head, vllm_head, options.dtype)


def served_records(
    options: argparse.Namespace, made: Mapping[str, MakeServer], requests: Iterator[PeerRequest]
) -> list[Record]:
    others = {name: made[name] for name in options.contenders}

    def in_a_round(clients: int) -> int:
        return max(options.requests, 2 * clients)

    finals: dict[tuple[str, int], Sequence[PairedTurn]] = {}
    with closing(Contender(PLAIN, made[PLAIN])) as plain:
        first = heats(plain, others, requests, options.clients, options.rounds, in_a_round)
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
