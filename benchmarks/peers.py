"""vLLM's own speculation and Spindle on vLLM, side by side: `python -m benchmarks.peers`.

The zoo's target inflated to 90M, in bf16 or (`--dtype float32`) for a CPU that does not multiply
it. Contenders: vLLM plain; its ngram, suffix and draft_model at k = 1, 3, 5; Spindle with its
default policies, and once more under the planner's throughput objective: vLLM's methods do not see
to it that no request is slowed down either.

Each is in one process: vLLM's engine a loop that steps and nothing else, Spindle with all of its
models inline. That is the fastest that either gets here, and for vLLM nothing that one could serve
with. `--served` has everyone as it is served: vLLM behind AsyncLLM, which `vllm serve` puts HTTP
before, Spindle as cluster/vllm.yaml says, behind its coordinator; both with their models in
processes of their own.

Plain vLLM is there throughout. Each of the others is loaded, serves the same new requests in turns
with it, half of them sampled, to 1, 4 and 16 closed-loop clients, and goes. Who is not measured is
stopped, and all have two threads for the target. An answer is as long as plain vLLM's own was, so
everyone does equal work.

Names: peers/CONTENDER/cCLIENTS/goodput (`reference`: plain vLLM in its turns), .../slowest_domain
(the median of its requests' own speeds over plain vLLM's), .../tokens_per_forward, .../forward_ms
(from one to the next); peers/spindle.../cCLIENTS/over_best (goodput over plain vLLM's; `reference`:
that of the best of vLLM's). A contender that does not run is named with its reason. Exits with 1
where Spindle is behind the best of vLLM's; `--smoke` judges nothing. Suffix decoding needs the
extra `peers` of pyproject.toml.
"""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, NamedTuple, get_args

import psutil
from transformers import GenerationConfig

from benchmarks.contenders import PARAMS, THREADS, Asked, Dtype, Served, Side, Spindle
from benchmarks.processes import environment
from benchmarks.report import Record, parser, publish
from benchmarks.requests import mixed_requests
from benchmarks.vllm_contenders import ServedVllm, VllmLoop
from cluster.zoo import inflated_target, model_path
from engine.verifiers.vllm_environment import process_environment

MAX_TOKENS = 128
EACH = 6
"""Requests of each client and round: every domain greedy and sampled."""
FEWEST_CLIENTS = 4
"""Fewer send as many requests as these, for a turn is to take a while."""
LOAD_S, SERVE_S = 600.0, 120.0
"""A contender that takes longer is out."""
DRAFTER = "tiny"
"""Of vLLM's draft_model. At k = 3 it is 8% to 17% faster there than with `small`."""
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
ENVIRONMENT = {
    "OMP_NUM_THREADS": str(THREADS),
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # threads are wherever there is room
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}

MakeSide = Callable[[], Side]


@dataclass(frozen=True, slots=True)
class Refused:
    """What a contender says instead when it does not run."""

    reason: str


class Turn(NamedTuple):
    """The same requests by a contender and by plain vLLM, one right after the other."""

    ours: Served
    plain: Served
    domains: Sequence[str]
    """Of the requests."""


Results = Mapping[tuple[str, int], Sequence[Turn]]
"""By contender and clients, a `Turn` for each round."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    arguments.add_argument(
        "--dtype", choices=get_args(Dtype), default="bfloat16", help="of the target"
    )
    arguments.add_argument("--served", action="store_true")
    arguments.add_argument("--smoke", action="store_true", help="three of them, one round")
    chosen = arguments.parse_args()
    if chosen.smoke:
        chosen.contenders, chosen.clients, chosen.rounds = SMOKE, [4], 1
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
        results = compete(plain, others, questions(checkpoint), chosen.clients, chosen.rounds)
    records, behind = report(results)
    publish(records, chosen.json)
    sys.exit("\n".join(behind) if behind and not chosen.smoke else 0)


def questions(checkpoint: str) -> Iterator[Asked]:
    """Every domain greedy and sampled, in turns, without end and without repetition."""
    stop = GenerationConfig.from_pretrained(checkpoint).eos_token_id
    for seed in count(1):
        for number, request in enumerate(mixed_requests(240, seed=seed)):
            temperature = float(number // 3 % 2)
            yield Asked(request.prompt, temperature, MAX_TOKENS, (stop,), request.domain)


class Contender:
    """A side in a process of its own, with all the processes that it starts."""

    def __init__(self, name: str, make: MakeSide) -> None:
        """Returns when it is loaded, or known not to run."""
        self.name = name
        self.refused: Refused | None = None
        context = multiprocessing.get_context("spawn")
        self._connection, far = context.Pipe()
        with environment(ENVIRONMENT | process_environment()):
            self._process = context.Process(target=_work, args=(make, far))
            self._process.start()
        far.close()
        self._answer(LOAD_S)
        self._signal(signal.SIGSTOP)

    def serve(self, requests: Sequence[Asked], clients: int) -> Served | None:
        """None from the moment on when it does not run."""
        if self.refused:
            return None
        self._signal(signal.SIGCONT)
        self._connection.send((requests, clients))
        answer = self._answer(SERVE_S)
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        self._connection.close()
        self._signal(signal.SIGKILL)
        self._process.join()

    def _signal(self, number: signal.Signals) -> None:
        """To all of them, for an engine that has nothing to do still wakes up: gloo's threads,
        thirteen for each, every 10 ms."""
        if not self._process.is_alive():  # its number may be somebody else's by now
            return
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            for one in (first, *first.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(number)

    def _answer(self, within_s: float) -> Served | None:
        answer: Served | Refused | None
        try:
            late = not self._connection.poll(within_s)
            answer = Refused(f"no answer in {within_s:.0f} s") if late else self._connection.recv()
        except EOFError:
            self._process.join()
            answer = Refused(f"its process ended with {self._process.exitcode}")
        if isinstance(answer, Refused):
            self.refused = answer
            print(f"{self.name}: not run: {answer.reason}")
            self.close()
            return None
        return answer


def _work(make: MakeSide, connection: Connection) -> None:
    """In the contender's process."""
    try:
        side = make()
        connection.send(None)
        while True:
            requests, clients = connection.recv()
            connection.send(side.serve(requests, clients))
    except EOFError:
        pass  # the benchmark is over
    except Exception as error:
        connection.send(Refused(f"{type(error).__name__}: {error}"))


def compete(
    plain: Contender,
    others: Mapping[str, MakeSide],
    questions: Iterator[Asked],
    loads: Sequence[int],
    rounds: int,
) -> Results:
    most = max(loads)
    warm_up = as_long_as_answered(plain, list(islice(questions, EACH * most)), most)
    work = [
        as_long_as_answered(plain, list(islice(questions, EACH * max(load, FEWEST_CLIENTS))), most)
        for _ in range(rounds)
        for load in loads
    ]
    results: dict[tuple[str, int], list[Turn]] = {}
    for name, make in others.items():
        with closing(Contender(name, make)) as contender:
            contender.serve(warm_up, most)
            for number, requests in enumerate(work):
                load = loads[number % len(loads)]
                turn = in_turn(plain, contender, requests, load, plain_first=number % 2 == 0)
                if turn is None:
                    break
                results.setdefault((name, load), []).append(turn)
                print(f"{name} at {load} clients: {speed([turn]):.3f} of plain", flush=True)
    return results


def in_turn(
    plain: Contender, other: Contender, requests: Sequence[Asked], load: int, plain_first: bool
) -> Turn | None:
    """None where the other one does not run."""
    order = (plain, other) if plain_first else (other, plain)
    served = {contender.name: contender.serve(requests, load) for contender in order}
    ours, theirs = served[other.name], served[plain.name]
    if ours is None:
        return None
    if theirs is None:
        raise SystemExit(f"{plain.name}, the reference, does not run any more")
    assert ours.lengths == theirs.lengths, f"{other.name} did other work"
    return Turn(ours, theirs, [one.domain for one in requests])


def as_long_as_answered(plain: Contender, asked: Sequence[Asked], clients: int) -> list[Asked]:
    """The same requests, each with the length of its answer for all."""
    answered = plain.serve(asked, clients)
    if answered is None:
        raise SystemExit(f"{plain.name}, the reference, does not run")
    return [
        Asked(one.prompt, one.temperature, length, domain=one.domain)
        for one, length in zip(asked, answered.lengths, strict=True)
    ]


def report(results: Results) -> tuple[list[Record], list[str]]:
    """The records, and where Spindle is behind the best of vLLM's."""
    records, behind = [], []
    for clients in dict.fromkeys(clients for _, clients in results):
        turns = {name: ones for (name, load), ones in results.items() if load == clients}
        # Plain vLLM against itself, in all its turns.
        turns[PLAIN] = [
            Turn(one.plain, one.plain, one.domains) for ones in turns.values() for one in ones
        ]
        for name, ones in turns.items():
            records += _of_one(f"peers/{name}/c{clients}", ones)
        theirs = {name: speed(ones) for name, ones in turns.items() if name not in SPINDLES}
        best = max(theirs, key=theirs.__getitem__)
        for name in (name for name in SPINDLES if name in turns):
            ours = speed(turns[name])
            ratio = ours / theirs[best]
            over = f"peers/{name}/c{clients}/over_best"
            records.append(Record(over, ours, "x plain", theirs[best], ratio))
            if ratio <= 1:
                behind.append(
                    f"{name} at {clients} clients: behind {best}, {ratio:.2f} of its goodput "
                    f"(over plain {_each(turns[name])} for {_each(turns[best])} by round)"
                )
    return records, behind


def speed(turns: Sequence[Turn]) -> float:
    """Goodput over plain vLLM's."""
    return goodput([one.ours for one in turns]) / goodput([one.plain for one in turns])


def goodput(rounds: Sequence[Served]) -> float:
    return sum(one.tokens for one in rounds) / sum(one.seconds for one in rounds)


def slowest_domain(turns: Sequence[Turn]) -> float:
    """Over plain vLLM, request by request: the median of the domain that has the lowest. What a
    method gains on some it may take from others, who share their forwards."""
    speeds: dict[str, list[float]] = {}
    for ours, plain, domains in turns:
        for domain, took_s, plain_s in zip(domains, ours.took_s, plain.took_s, strict=True):
            speeds.setdefault(domain, []).append(plain_s / took_s)
    return min(median(ones) for ones in speeds.values())


def _each(turns: Sequence[Turn]) -> str:
    return ", ".join(f"{speed([one]):.2f}" for one in turns)


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
