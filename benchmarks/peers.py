"""vLLM's own speculation and Spindle on vLLM, side by side: `python -m benchmarks.peers`.

The zoo's target inflated to 90M, in bf16 or (`--dtype float32`) for a CPU that does not multiply
it. Contenders: vLLM plain; its ngram, suffix and draft_model at k = 1, 3, 5; Spindle with its
default policies, all in one process, and once more under the planner's throughput objective: vLLM's
methods do not see to it that no request is slowed down either. Each is loaded once, in a process of
its own with two threads, and is stopped while others work: in every round each of them serves the
same new requests, half of them sampled, to 1, 4 and 16 closed-loop clients. An answer is as long as
plain vLLM's own was, so everyone does equal work.

Names: peers/CONTENDER/cCLIENTS/goodput (`reference`: plain vLLM), .../slowest_domain (the median of
its requests' own speeds over plain vLLM's), .../tokens_per_forward,
.../forward_ms and .../between_ms (vLLM drafts within its steps, Spindle between and beside them);
peers/spindle.../cCLIENTS/over_best (`reference`: the best of vLLM's). A contender that does not run
is named with its reason. Exits with 1 where Spindle is behind the best of vLLM's; `--smoke` judges
nothing. Suffix decoding needs the extra `peers` of pyproject.toml.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, get_args

from transformers import GenerationConfig

from benchmarks.contenders import (
    PARAMS,
    THREADS,
    Asked,
    Dtype,
    Served,
    Side,
    Spindle,
    Vllm,
)
from benchmarks.processes import environment
from benchmarks.report import Record, parser, publish
from benchmarks.requests import mixed_requests
from cluster.zoo import inflated_target, model_path
from engine.verifiers.vllm_environment import process_environment

MAX_TOKENS = 128
EACH = 6
"""Requests of each client and round: every domain greedy and sampled."""
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
CONTENDERS = (PLAIN, *PEERS, *SPINDLES)
SMOKE = (PLAIN, "vllm_ngram_k3", SPINDLE)
ENVIRONMENT = {
    "OMP_NUM_THREADS": str(THREADS),
    "OMP_WAIT_POLICY": "PASSIVE",
    # The engine core in the contender's own process, its threads wherever there is room.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, slots=True)
class Refused:
    """What a contender says instead when it does not run."""

    reason: str


Results = Mapping[tuple[str, int], Sequence[Served]]
"""By contender and clients, a `Served` for each round."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument(
        "--seconds", type=float, default=420.0, help="after which no round begins (420)"
    )
    arguments.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    arguments.add_argument(
        "--dtype", choices=get_args(Dtype), default="bfloat16", help="of the target"
    )
    arguments.add_argument("--smoke", action="store_true", help="three of them, one round")
    chosen = arguments.parse_args()
    if chosen.smoke:
        chosen.contenders, chosen.clients, chosen.seconds = SMOKE, [4], 0.0
    checkpoint = str(inflated_target(PARAMS))
    names = dict.fromkeys((PLAIN, *chosen.contenders))
    contenders: list[Contender] = []
    try:
        for name in names:
            if name not in SPINDLES:
                make = partial(Vllm, checkpoint, PEERS.get(name), chosen.dtype)
                contenders.append(Contender(name, make))
        for contender in contenders:
            contender.wait()
        for name in names:
            if name in SPINDLES:  # by itself, because it measures what its forwards cost
                contenders.append(Contender(name, partial(Spindle, SPINDLES[name], chosen.dtype)))
                contenders[-1].wait()
        results = compete(contenders, questions(checkpoint), chosen.clients, chosen.seconds)
    finally:
        for contender in contenders:
            contender.close()
    for contender in contenders:
        if contender.refused:
            print(f"{contender.name}: not run: {contender.refused.reason}")
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
    """A side in a process of its own, which begins to load at once."""

    def __init__(self, name: str, make: Callable[[], Side]) -> None:
        self.name = name
        self.refused: Refused | None = None
        context = multiprocessing.get_context("spawn")
        self._connection, far = context.Pipe()
        with environment(ENVIRONMENT | process_environment()):
            self._process = context.Process(target=_work, args=(make, far), daemon=True)
            self._process.start()
        far.close()

    def wait(self) -> None:
        """Until it is loaded, or known not to run."""
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
        self._process.kill()
        self._process.join()

    def _signal(self, number: signal.Signals) -> None:
        """An engine that has nothing to do still wakes up: gloo's threads, thirteen for each, every
        10 ms. A dozen of them would take a quarter of a core from whoever is measured."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, number)

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
            self.close()
            return None
        return answer


def _work(make: Callable[[], Side], connection: Connection) -> None:
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
    contenders: Sequence[Contender],
    questions: Iterator[Asked],
    loads: Sequence[int],
    seconds: float,
) -> Results:
    """The first contender is plain vLLM. One round at least."""
    plain = contenders[0]
    most = max(loads)
    warm_up = as_long_as_answered(plain, list(islice(questions, 2 * EACH)), most)
    for contender in contenders:
        contender.serve(warm_up, most)
    results: dict[tuple[str, int], list[Served]] = {}
    end = time.monotonic() + seconds
    order = deque(contenders)
    while not results or time.monotonic() < end:
        asked = list(islice(questions, EACH * sum(loads)))
        requests = iter(as_long_as_answered(plain, asked, most))
        for clients in loads:
            part = list(islice(requests, EACH * clients))
            lengths = tuple(one.max_tokens for one in part)
            domains = tuple(one.domain for one in part)
            for contender in order:
                served = contender.serve(part, clients)
                if served is not None:
                    assert served.lengths == lengths, f"{contender.name} did other work"
                    rounds = results.setdefault((contender.name, clients), [])
                    rounds.append(replace(served, domains=domains))
        order.rotate(1)
    return results


def as_long_as_answered(plain: Contender, asked: Sequence[Asked], clients: int) -> list[Asked]:
    """The same requests, each with the length of its answer for all."""
    answered = plain.serve(asked, clients)
    if answered is None:
        raise SystemExit(f"{plain.name}, the reference, does not run: {plain.refused}")
    return [
        replace(one, max_tokens=length, stop=())
        for one, length in zip(asked, answered.lengths, strict=True)
    ]


def report(results: Results) -> tuple[list[Record], list[str]]:
    """The records, and where Spindle is behind the best of vLLM's."""
    records, behind = [], []
    for clients in dict.fromkeys(clients for _, clients in results):
        rounds = {name: served for (name, load), served in results.items() if load == clients}
        goodputs = {name: goodput(served) for name, served in rounds.items()}
        for name, served in rounds.items():
            records += _of_one(f"peers/{name}/c{clients}", served, rounds[PLAIN])
        theirs = {name: rate for name, rate in goodputs.items() if name not in SPINDLES}
        best = max(theirs, key=theirs.__getitem__)
        for name in (name for name in SPINDLES if name in goodputs):
            ratio = goodputs[name] / theirs[best]
            over = f"peers/{name}/c{clients}/over_best"
            records.append(Record(over, goodputs[name], "tokens/s", theirs[best], ratio))
            each = [
                goodput([a]) / goodput([b])
                for a, b in zip(rounds[name], rounds[best], strict=False)
            ]
            if ratio <= 1:
                behind.append(
                    f"{name} at {clients} clients: behind {best}, {ratio:.2f} of its goodput "
                    f"({min(each):.2f} to {max(each):.2f} in {len(each)} rounds)"
                )
    return records, behind


def goodput(rounds: Sequence[Served]) -> float:
    return sum(one.tokens for one in rounds) / sum(one.seconds for one in rounds)


def slowest_domain(rounds: Sequence[Served], plain: Sequence[Served]) -> float:
    """Over plain vLLM, request by request: the median of the domain that has the lowest. What a
    method gains on some it may take from others, who share their forwards."""
    speeds: dict[str, list[float]] = {}
    for one, reference in zip(rounds, plain, strict=False):  # who falls out has fewer
        for domain, took_s, plain_s in zip(one.domains, one.took_s, reference.took_s, strict=True):
            speeds.setdefault(domain, []).append(plain_s / took_s)
    return min(median(ones) for ones in speeds.values())


def _of_one(name: str, rounds: Sequence[Served], plain: Sequence[Served]) -> list[Record]:
    ours, theirs, slowest = goodput(rounds), goodput(plain), slowest_domain(rounds, plain)
    seconds = sum(one.seconds for one in rounds)
    forwards = sum(one.forwards for one in rounds)
    tokens = sum(one.tokens for one in rounds)
    verifying_s = sum(one.verifying_s for one in rounds)
    return [
        Record(f"{name}/goodput", ours, "tokens/s", theirs, ours / theirs),
        Record(f"{name}/slowest_domain", slowest, "x plain"),
        Record(f"{name}/tokens_per_forward", tokens / forwards, "tokens"),
        Record(f"{name}/forward_ms", 1000 * verifying_s / forwards, "ms"),
        Record(f"{name}/between_ms", 1000 * (seconds - verifying_s) / forwards, "ms"),
    ]


if __name__ == "__main__":
    main()
