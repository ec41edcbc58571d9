"""Contenders that serve the same requests in turns on one machine.

Each runs in processes of its own, which are stopped between its turns.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection
from typing import NamedTuple

import psutil

from benchmarks.processes import environment
from benchmarks.real.spindle import THREADS, PeerRequest, Server, TurnResult
from engine.verifiers.vllm.environment import process_environment

LOAD_S, SERVE_S = 600.0, 600.0
"""A contender that takes longer counts as failed."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": str(THREADS),
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the scheduler places threads
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}

MakeServer = Callable[[], Server]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a contender does not run."""

    reason: str


class PairedTurn(NamedTuple):
    """The same requests, served by a contender and by plain vLLM in one round."""

    ours: TurnResult
    plain: TurnResult
    domains: Sequence[str]
    """The domain of each request."""


Results = Mapping[tuple[str, int], Sequence[PairedTurn]]
"""By contender and number of clients, one turn per round."""


class Contender:
    """A server in a process of its own, with all the processes that it starts."""

    def __init__(self, name: str, make: MakeServer) -> None:
        """Returns when it is loaded or has failed."""
        self.name = name
        self.failure: Failure | None = None
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        with environment(ENVIRONMENT | process_environment()):
            self._process = context.Process(target=_serve_requests, args=(make, theirs))
            self._process.start()
        theirs.close()
        self._answer(LOAD_S)
        self._signal(signal.SIGSTOP)

    def serve(self, requests: Sequence[PeerRequest], clients: int) -> TurnResult | None:
        """None once it has failed."""
        if self.failure:
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
        """Sends it to all its processes: an idle engine is not quite idle, for its 13 threads of
        gloo wake up every 10 ms."""
        if not self._process.is_alive():  # the system may have given its id to another process
            return
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            for process in (first, *first.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def _answer(self, within_s: float) -> TurnResult | None:
        answer: TurnResult | Failure | None
        try:
            late = not self._connection.poll(within_s)
            answer = Failure(f"no answer in {within_s:.0f} s") if late else self._connection.recv()
        except EOFError:
            self._process.join()
            answer = Failure(f"its process ended with {self._process.exitcode}")
        if isinstance(answer, Failure):
            self.failure = answer
            print(f"{self.name}: not run: {answer.reason}")
            self.close()
            return None
        return answer


def _serve_requests(make: MakeServer, connection: Connection) -> None:
    """In the contender's process."""
    try:
        server = make()
        connection.send(None)
        while True:
            requests, clients = connection.recv()
            connection.send(server.serve(requests, clients))
    except EOFError:
        pass  # the benchmark has ended
    except Exception as error:
        connection.send(Failure(f"{type(error).__name__}: {error}"))


def heats(
    plain: Contender,
    others: Mapping[str, MakeServer],
    stream: Iterator[PeerRequest],
    loads: Sequence[int],
    rounds: int,
    count: Callable[[int], int],
) -> Results:
    """Each of the others in turns with plain vLLM, loaded one after the other. `count`: of requests
    in a round of so many clients."""
    most = max(loads)
    warm_up = new_requests(plain, stream, most, count)
    batches = [new_requests(plain, stream, load, count) for _ in range(rounds) for load in loads]
    results: dict[tuple[str, int], list[PairedTurn]] = {}
    for name, make in others.items():
        with closing(Contender(name, make)) as contender:
            contender.serve(warm_up, most)
            for number, requests in enumerate(batches):
                load = loads[number % len(loads)]
                turns = run_round(plain, [contender], requests, load, number)
                if contender.failure:
                    break
                results.setdefault((name, load), []).append(turns[name])
                ratio = ratios_by_round([turns[name]])
                print(f"{name} at {load} clients: {ratio} of plain", flush=True)
    return results


def final(
    plain: Contender,
    others: Mapping[str, MakeServer],
    stream: Iterator[PeerRequest],
    load: int,
    rounds: int,
    count: Callable[[int], int],
) -> Results:
    """All in turns in the same rounds, loaded together."""
    results: dict[tuple[str, int], list[PairedTurn]] = {}
    with ExitStack() as loaded:
        contenders = [
            loaded.enter_context(closing(Contender(name, make))) for name, make in others.items()
        ]
        warm_up = new_requests(plain, stream, load, count)
        for contender in contenders:
            contender.serve(warm_up, load)
        for number in range(rounds):
            requests = new_requests(plain, stream, load, count)
            turns = run_round(plain, contenders, requests, load, number)
            for name, turn in turns.items():
                results.setdefault((name, load), []).append(turn)
            ratios = ", ".join(f"{name} {ratios_by_round([turn])}" for name, turn in turns.items())
            print(f"final at {load} clients: {ratios} of plain", flush=True)
    return results


def run_round(
    plain: Contender,
    others: Sequence[Contender],
    requests: Sequence[PeerRequest],
    load: int,
    number: int,
) -> dict[str, PairedTurn]:
    """One round; its number rotates the order. A failed contender has no turn."""
    contenders = [plain, *others]
    first = number % len(contenders)
    order = contenders[first:] + contenders[:first]
    served = {contender.name: contender.serve(requests, load) for contender in order}
    theirs = _of_reference(plain, served[plain.name])
    domains = [request.domain for request in requests]
    turns = {}
    for contender in others:
        ours = served[contender.name]
        if ours is not None:
            assert ours.lengths == theirs.lengths, f"{contender.name} served other lengths"
            turns[contender.name] = PairedTurn(ours, theirs, domains)
    return turns


def new_requests(
    plain: Contender, stream: Iterator[PeerRequest], load: int, count: Callable[[int], int]
) -> list[PeerRequest]:
    """The next requests of the stream, each limited to the length of plain vLLM's output."""
    requests = list(islice(stream, count(load)))
    return limited(requests, served_by(plain, requests, load))


def limited(requests: Sequence[PeerRequest], served: TurnResult) -> list[PeerRequest]:
    """Each ends where it did when it was served, and nowhere before."""
    return [
        replace(request, max_tokens=length, stop=())
        for request, length in zip(requests, served.lengths, strict=True)
    ]


def served_by(plain: Contender, requests: Sequence[PeerRequest], load: int) -> TurnResult:
    return _of_reference(plain, plain.serve(requests, load))


def _of_reference(plain: Contender, served: TurnResult | None) -> TurnResult:
    if served is None:
        raise SystemExit(f"{plain.name}, the reference, does not run")
    return served


def goodput_ratio(turns: Sequence[PairedTurn]) -> float:
    """Goodput over plain vLLM's."""
    return goodput([turn.ours for turn in turns]) / goodput([turn.plain for turn in turns])


def goodput(turns: Sequence[TurnResult]) -> float:
    """Output tokens per second over all turns."""
    return sum(turn.tokens for turn in turns) / sum(turn.seconds for turn in turns)


def ratios_by_round(turns: Sequence[PairedTurn]) -> str:
    return ", ".join(f"{goodput_ratio([turn]):.2f}" for turn in turns)
