"""Measures the goodput of Spindle on vLLM against vLLM's own speculation methods.

`python -m benchmarks.serving.peers [--served] [--clients 1 4 16] [--smoke] [--json FILE]`.

The zoo's target inflated to 90M, in bf16, or with `--dtype float32` for a CPU without bf16
arithmetic. Contenders: plain vLLM; its ngram, suffix and draft_model at k = 1, 3, 5; Spindle with
its default policies.

Each contender is one process: vLLM a bare loop of engine steps, Spindle with all models inline.
That is the fastest that either gets here, but a bare loop cannot serve clients. `--served` compares
them as they are served: vLLM behind AsyncLLM, as in `vllm serve` without HTTP, Spindle's
coordinator as in cluster/vllm.yaml; both with their models in processes of their own.

Plain vLLM is loaded all the time. In the heats each other contender is loaded in turn and serves
the same new requests as plain vLLM, half of them sampled, to 1, 4 and 16 closed-loop clients. Heats
are minutes apart, so the machine's speed drifts between them, and the best of many is partly
chance. So in the final, for each number of clients, Spindle, plain vLLM and the best of vLLM's
methods are loaded together and serve in turns in the same rounds. The processes of the others are
stopped meanwhile; all have two threads for the target. Every output is as long as plain vLLM's, so
all do equal work.

Names: peers/CONTENDER/cCLIENTS/goodput (`reference`: plain vLLM in its turns), .../slowest_domain
(the median of its requests' speeds over plain vLLM's), .../tokens_per_forward, .../forward_ms (from
one forward to the next); likewise peers/final/...; peers/final/spindle.../cCLIENTS/over_best
(goodput over plain vLLM's; `reference`: that of vLLM's best). A contender that fails is listed with
its reason. Exits with 1 where Spindle is behind vLLM's best in the final, except with `--smoke`.
Suffix decoding needs the extra `peers` of pyproject.toml.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from statistics import median
from typing import Any, get_args

from transformers import GenerationConfig

from benchmarks.report import Record, parser, publish
from benchmarks.serving.contenders import PARAMS, Dtype, PeerRequest, Spindle, peer_args
from benchmarks.serving.contest import (
    Contender,
    MakeServer,
    PairedTurn,
    Results,
    final,
    goodput,
    goodput_ratio,
    heats,
    ratios_by_round,
)
from benchmarks.serving.requests import mixed_requests
from benchmarks.serving.vllm_contenders import ServedVllm, VllmLoop
from cluster.built_in_models import inflated_target, model_path

MAX_TOKENS = 128
DRAFTER = "tiny"
"""Of vLLM's draft_model, which at k = 3 is 8% to 17% faster with it than with `small`."""
FINALISTS = 2
"""Methods of vLLM in the final, besides plain decoding; and at most so many of Spindle's."""
DRAFT_LENGTHS = (1, 3, 5)
PLAIN, SPINDLE = "vllm", "spindle"
PEERS: Mapping[str, Mapping[str, Any]] = {
    f"vllm_{method}_k{k}": {"method": method, "num_speculative_tokens": k, **options}
    for method, options in (
        ("ngram", {"prompt_lookup_max": 4, "prompt_lookup_min": 2}),
        ("suffix", {}),
        ("draft_model", {"model": str(model_path(DRAFTER))}),
    )
    for k in DRAFT_LENGTHS
}
CONTENDERS = (*PEERS, SPINDLE)
SMOKE = ("vllm_ngram_k3", SPINDLE)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument("--rounds", type=int, default=2, help="of the heats")
    arguments.add_argument("--final-rounds", type=int, default=8)
    arguments.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    arguments.add_argument(
        "--dtype", choices=get_args(Dtype), default="bfloat16", help="of the target"
    )
    arguments.add_argument("--served", action="store_true")
    arguments.add_argument("--smoke", action="store_true", help="three contenders, one round")
    options = arguments.parse_args()
    if options.smoke:
        options.contenders, options.clients = SMOKE, [4]
        options.rounds = options.final_rounds = 1
    checkpoint = str(inflated_target(PARAMS))
    vllm = partial(ServedVllm if options.served else VllmLoop, checkpoint, dtype=options.dtype)
    spindle = partial(Spindle, peer_args(options.dtype, in_process=not options.served))
    others: dict[str, MakeServer] = {
        name: spindle if name == SPINDLE else partial(vllm, speculation=PEERS[name])
        for name in options.contenders
    }
    with closing(Contender(PLAIN, partial(vllm, speculation=None))) as plain:
        requests = peer_requests(checkpoint)
        first = heats(plain, others, requests, options.clients, options.rounds)
        finals: dict[tuple[str, int], Sequence[PairedTurn]] = {}
        for load in options.clients:
            finalists = {name: others[name] for name in finalists_of(first, load)}
            finals |= final(plain, finalists, requests, load, options.final_rounds)
    over_best, behind = compared_with_best(finals, "peers/final")
    publish([*report(first, "peers"), *report(finals, "peers/final"), *over_best], options.json)
    sys.exit("\n".join(behind) if behind and not options.smoke else 0)


def peer_requests(checkpoint: str) -> Iterator[PeerRequest]:
    """An endless stream without repetition, in which domains and temperatures 0 and 1 alternate."""
    stop = GenerationConfig.from_pretrained(checkpoint).eos_token_id
    for seed in count(1):
        for number, request in enumerate(mixed_requests(240, seed=seed)):
            temperature = float(number // 3 % 2)
            yield PeerRequest(request.prompt, temperature, MAX_TOKENS, (stop,), request.domain)


def finalists_of(results: Results, load: int) -> list[str]:
    """The best of Spindle's contenders and of the others in the heats."""
    at_load = {name: turns for (name, clients), turns in results.items() if clients == load}
    ratios = {name: goodput_ratio(turns) for name, turns in at_load.items()}
    best_first = sorted(ratios, key=ratios.__getitem__, reverse=True)
    ours = [name for name in best_first if _is_ours(name)]
    theirs = [name for name in best_first if not _is_ours(name)]
    return ours[:FINALISTS] + theirs[:FINALISTS]


def _is_ours(name: str) -> bool:
    return name.startswith(SPINDLE)


def report(results: Results, prefix: str) -> list[Record]:
    records = []
    for clients in dict.fromkeys(clients for _, clients in results):
        by_name = {name: turns for (name, load), turns in results.items() if load == clients}
        by_name[PLAIN] = [_plain(turn) for turns in by_name.values() for turn in turns]
        for name, turns in by_name.items():
            records += _contender_records(f"{prefix}/{name}/c{clients}", turns)
    return records


def compared_with_best(finals: Results, prefix: str) -> tuple[list[Record], list[str]]:
    """Spindle over the best of vLLM's, plain decoding included; and a line where it is behind."""
    records, behind = [], []
    for (name, clients), turns in finals.items():
        if not _is_ours(name):
            continue
        theirs = {
            other: other_turns
            for (other, load), other_turns in finals.items()
            if load == clients and not _is_ours(other)
        }
        theirs[PLAIN] = [_plain(turn) for turn in turns]
        best = max(theirs, key=lambda other: goodput_ratio(theirs[other]))
        ours, reference = goodput_ratio(turns), goodput_ratio(theirs[best])
        over = f"{prefix}/{name}/c{clients}/over_best"
        records.append(Record.over(reference, over, ours, "x plain"))
        if ours <= reference:
            behind.append(
                f"{name} at {clients} clients: behind {best}, {ours / reference:.2f} of its "
                f"goodput (over plain {ratios_by_round(turns)} for "
                f"{ratios_by_round(theirs[best])} by round)"
            )
    return records, behind


def slowest_domain(turns: Sequence[PairedTurn]) -> float:
    """The lowest of the domains' medians of their requests' speeds over plain vLLM's: long drafts
    for some requests lengthen the forwards that others share."""
    speeds: dict[str, list[float]] = {}
    for ours, plain, domains in turns:
        for domain, ours_s, plain_s in zip(
            domains, ours.latencies_s, plain.latencies_s, strict=True
        ):
            speeds.setdefault(domain, []).append(plain_s / ours_s)
    return min(median(of_domain) for of_domain in speeds.values())


def _plain(turn: PairedTurn) -> PairedTurn:
    """Plain vLLM against itself."""
    return PairedTurn(turn.plain, turn.plain, turn.domains)


def _contender_records(name: str, turns: Sequence[PairedTurn]) -> list[Record]:
    ours, plain = [turn.ours for turn in turns], [turn.plain for turn in turns]
    forwards = sum(turn.forwards for turn in ours)
    tokens, seconds = sum(turn.tokens for turn in ours), sum(turn.seconds for turn in ours)
    return [
        Record(f"{name}/goodput", goodput(ours), "tokens/s", goodput(plain), goodput_ratio(turns)),
        Record(f"{name}/slowest_domain", slowest_domain(turns), "x plain"),
        Record(f"{name}/tokens_per_forward", tokens / forwards, "tokens"),
        Record(f"{name}/forward_ms", 1000 * seconds / forwards, "ms"),
    ]


if __name__ == "__main__":
    main()
