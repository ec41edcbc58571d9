"""vLLM's own speculation and Spindle on vLLM, side by side: `python -m benchmarks.serving.peers`.

The zoo's target inflated to 90M, in bf16 or (`--dtype float32`) for a CPU that does not multiply
it. Contenders: vLLM plain; its ngram, suffix and draft_model at k = 1, 3, 5; Spindle with its
default policies, and once more under the planner's throughput objective: vLLM's methods do not see
to it that no request is slowed down either.

Each is in one process: vLLM's engine a loop that steps and nothing else, Spindle with all of its
models inline. That is the fastest that either gets here, and for vLLM nothing that one could serve
with. `--served` has everyone as it is served: vLLM behind AsyncLLM, which `vllm serve` puts HTTP
before, Spindle as cluster/vllm.yaml says, behind its coordinator; both with their models in
processes of their own.

Plain vLLM is there throughout. In the heats each of the others is loaded, serves the same new
requests in turns with it, half of them sampled, to 1, 4 and 16 closed-loop clients, and goes. Heats
are minutes apart, on machines whose pace drifts, and the best of many is partly luck. So the final,
of each number of clients, has Spindle, plain vLLM and the best of vLLM's in the heats, all loaded
anew, in turns in the same rounds. Who is not measured is stopped, and all have two threads for the
target. An answer is as long as plain vLLM's own was, so everyone does equal work.

Names: peers/CONTENDER/cCLIENTS/goodput (`reference`: plain vLLM in its turns), .../slowest_domain
(the median of its requests' own speeds over plain vLLM's), .../tokens_per_forward, .../forward_ms
(from one to the next); likewise peers/final/...; peers/final/spindle.../cCLIENTS/over_best (goodput
over plain vLLM's; `reference`: that of the best of vLLM's). A contender that does not run is named
with its reason. Exits with 1 where Spindle is behind the best of vLLM's in the final; `--smoke`
judges nothing. Suffix decoding needs the extra `peers` of pyproject.toml.
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
from benchmarks.serving.contenders import PARAMS, Asked, Dtype, Spindle
from benchmarks.serving.contest import (
    Contender,
    MakeSide,
    Results,
    Turn,
    by_round,
    final,
    goodput,
    heats,
    speed,
)
from benchmarks.serving.requests import mixed_requests
from benchmarks.serving.vllm_contenders import ServedVllm, VllmLoop
from cluster.zoo import inflated_target, model_path

MAX_TOKENS = 128
DRAFTER = "tiny"
"""Of vLLM's draft_model. At k = 3 it is 8% to 17% faster there than with `small`."""
FINALISTS = 2
"""Of vLLM's, besides plain decoding."""
KS = (1, 3, 5)
PLAIN, SPINDLE, THROUGHPUT = "vllm", "spindle", "spindle_throughput"
SPINDLES = {SPINDLE: "fair", THROUGHPUT: "throughput"}
"""By the planner's objective."""
PEERS: Mapping[str, Mapping[str, Any]] = {
    f"vllm_{method}_k{k}": {"method": method, "num_speculative_tokens": k, **options}
    for method, options in (
        ("ngram", {"prompt_lookup_max": 4, "prompt_lookup_min": 2}),
        ("suffix", {}),
        ("draft_model", {"model": str(model_path(DRAFTER))}),
    )
    for k in KS
}
CONTENDERS = (*PEERS, *SPINDLES)
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
    arguments.add_argument("--smoke", action="store_true", help="three of them, one round")
    chosen = arguments.parse_args()
    if chosen.smoke:
        chosen.contenders, chosen.clients = SMOKE, [4]
        chosen.rounds = chosen.final_rounds = 1
    checkpoint = str(inflated_target(PARAMS))
    vllm = partial(ServedVllm if chosen.served else VllmLoop, checkpoint, dtype=chosen.dtype)
    spindle = partial(Spindle, dtype=chosen.dtype, in_process=not chosen.served)
    others: dict[str, MakeSide] = {
        name: partial(spindle, SPINDLES[name])
        if name in SPINDLES
        else partial(vllm, speculation=PEERS[name])
        for name in chosen.contenders
    }
    with closing(Contender(PLAIN, partial(vllm, speculation=None))) as plain:
        asked = questions(checkpoint)
        first = heats(plain, others, asked, chosen.clients, chosen.rounds)
        finals: dict[tuple[str, int], Sequence[Turn]] = {}
        for load in chosen.clients:
            finalists = {name: others[name] for name in finalists_of(first, load)}
            finals |= final(plain, finalists, asked, load, chosen.final_rounds)
    over_best, behind = judged(finals)
    publish([*report(first, "peers"), *report(finals, "peers/final"), *over_best], chosen.json)
    sys.exit("\n".join(behind) if behind and not chosen.smoke else 0)


def questions(checkpoint: str) -> Iterator[Asked]:
    """Every domain greedy and sampled, in turns, without end and without repetition."""
    stop = GenerationConfig.from_pretrained(checkpoint).eos_token_id
    for seed in count(1):
        for number, request in enumerate(mixed_requests(240, seed=seed)):
            temperature = float(number // 3 % 2)
            yield Asked(request.prompt, temperature, MAX_TOKENS, (stop,), request.domain)


def finalists_of(results: Results, load: int) -> list[str]:
    """Spindle, and the best of vLLM's to hold it against."""
    speeds = {name: speed(turns) for (name, clients), turns in results.items() if clients == load}
    spindles = [name for name in speeds if name in SPINDLES]
    theirs = sorted(set(speeds).difference(SPINDLES), key=speeds.__getitem__, reverse=True)
    return spindles + theirs[:FINALISTS]


def report(results: Results, prefix: str) -> list[Record]:
    records = []
    for clients in dict.fromkeys(clients for _, clients in results):
        turns = {name: ones for (name, load), ones in results.items() if load == clients}
        # Plain vLLM against itself, in all its turns.
        turns[PLAIN] = [
            Turn(one.plain, one.plain, one.domains) for ones in turns.values() for one in ones
        ]
        for name, ones in turns.items():
            records += _of_one(f"{prefix}/{name}/c{clients}", ones)
    return records


def judged(finals: Results) -> tuple[list[Record], list[str]]:
    """Spindle over the best of vLLM's, plain decoding being one of them, and where it is behind."""
    records, behind = [], []
    for (name, clients), ones in finals.items():
        if name not in SPINDLES:
            continue
        theirs = {
            other: turns
            for (other, load), turns in finals.items()
            if load == clients and other not in SPINDLES
        }
        theirs[PLAIN] = [Turn(one.plain, one.plain, one.domains) for one in ones]
        best = max(theirs, key=lambda other: speed(theirs[other]))
        ours, reference = speed(ones), speed(theirs[best])
        over = f"peers/final/{name}/c{clients}/over_best"
        records.append(Record(over, ours, "x plain", reference, ours / reference))
        if ours <= reference:
            behind.append(
                f"{name} at {clients} clients: behind {best}, {ours / reference:.2f} of its "
                f"goodput (over plain {by_round(ones)} for {by_round(theirs[best])} by round)"
            )
    return records, behind


def slowest_domain(turns: Sequence[Turn]) -> float:
    """Over plain vLLM, request by request: the median of the domain that has the lowest. What a
    method gains on some it may take from others, who share their forwards."""
    speeds: dict[str, list[float]] = {}
    for ours, plain, domains in turns:
        for domain, took_s, plain_s in zip(domains, ours.took_s, plain.took_s, strict=True):
            speeds.setdefault(domain, []).append(plain_s / took_s)
    return min(median(ones) for ones in speeds.values())


def _of_one(name: str, turns: Sequence[Turn]) -> list[Record]:
    ours, plain = [one.ours for one in turns], [one.plain for one in turns]
    forwards = sum(one.forwards for one in ours)
    tokens, seconds = sum(one.tokens for one in ours), sum(one.seconds for one in ours)
    return [
        Record(f"{name}/goodput", goodput(ours), "tokens/s", goodput(plain), speed(turns)),
        Record(f"{name}/slowest_domain", slowest_domain(turns), "x plain"),
        Record(f"{name}/tokens_per_forward", tokens / forwards, "tokens"),
        Record(f"{name}/forward_ms", 1000 * seconds / forwards, "ms"),
    ]


if __name__ == "__main__":
    main()
