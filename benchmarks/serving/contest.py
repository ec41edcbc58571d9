"""Who serves what, when, and beside whom: contenders that take turns on one machine.

Each is in processes of its own, stopped but for its turns.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from typing import NamedTuple

import psutil

from benchmarks.processes import environment
from benchmarks.serving.contenders import THREADS, Asked, Served, Side
from engine.verifiers.vllm.environment import process_environment

EACH = 6
"""Requests of each client and round."""
FEWEST_CLIENTS = 4
"""Fewer send as many requests as these, for a turn is to take a while."""
LOAD_S, SERVE_S = 600.0, 120.0
"""A contender that takes longer is out."""
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
    """The same requests by a contender and by plain vLLM, in one round."""

    ours: Served
    plain: Served
    domains: Sequence[str]
    """Of the requests."""


Results = Mapping[tuple[str, int], Sequence[Turn]]
"""By contender and clients, a `Turn` for each round."""


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


def heats(
    plain: Contender,
    others: Mapping[str, MakeSide],
    questions: Iterator[Asked],
    loads: Sequence[int],
    rounds: int,
) -> Results:
    """Each of the others alone with plain vLLM."""
    most = max(loads)
    warm_up = new_work(plain, questions, most)
    work = [new_work(plain, questions, load) for _ in range(rounds) for load in loads]
    results: dict[tuple[str, int], list[Turn]] = {}
    for name, make in others.items():
        with closing(Contender(name, make)) as contender:
            contender.serve(warm_up, most)
            for number, requests in enumerate(work):
                load = loads[number % len(loads)]
                turns = in_turn(plain, [contender], requests, load, number)
                if contender.refused:
                    break
                results.setdefault((name, load), []).append(turns[name])
                print(f"{name} at {load} clients: {by_round([turns[name]])} of plain", flush=True)
    return results


def final(
    plain: Contender,
    others: Mapping[str, MakeSide],
    questions: Iterator[Asked],
    load: int,
    rounds: int,
) -> Results:
    """All of them at once."""
    results: dict[tuple[str, int], list[Turn]] = {}
    with ExitStack() as loaded:
        contenders = [
            loaded.enter_context(closing(Contender(name, make))) for name, make in others.items()
        ]
        warm_up = new_work(plain, questions, load)
        for contender in contenders:
            contender.serve(warm_up, load)
        for number in range(rounds):
            requests = new_work(plain, questions, load)
            turns = in_turn(plain, contenders, requests, load, number)
            for name, turn in turns.items():
                results.setdefault((name, load), []).append(turn)
            each = ", ".join(f"{name} {by_round([turn])}" for name, turn in turns.items())
            print(f"final at {load} clients: {each} of plain", flush=True)
    return results


def in_turn(
    plain: Contender,
    others: Sequence[Contender],
    requests: Sequence[Asked],
    load: int,
    number: int,
) -> dict[str, Turn]:
    """One round, in which another one begins than in the last. Who does not run has no turn."""
    everyone = [plain, *others]
    first = number % len(everyone)
    order = everyone[first:] + everyone[:first]
    served = {contender.name: contender.serve(requests, load) for contender in order}
    theirs = served[plain.name]
    if theirs is None:
        raise SystemExit(f"{plain.name}, the reference, does not run any more")
    domains = [one.domain for one in requests]
    turns = {}
    for contender in others:
        ours = served[contender.name]
        if ours is not None:
            assert ours.lengths == theirs.lengths, f"{contender.name} did other work"
            turns[contender.name] = Turn(ours, theirs, domains)
    return turns


def new_work(plain: Contender, questions: Iterator[Asked], load: int) -> list[Asked]:
    """New requests, each with the length of plain vLLM's answer for all."""
    asked = list(islice(questions, EACH * max(load, FEWEST_CLIENTS)))
    answered = plain.serve(asked, load)
    if answered is None:
        raise SystemExit(f"{plain.name}, the reference, does not run")
    return [
        Asked(one.prompt, one.temperature, length, domain=one.domain)
        for one, length in zip(asked, answered.lengths, strict=True)
    ]


def speed(turns: Sequence[Turn]) -> float:
    """Goodput over plain vLLM's."""
    return goodput([one.ours for one in turns]) / goodput([one.plain for one in turns])


def goodput(rounds: Sequence[Served]) -> float:
    return sum(one.tokens for one in rounds) / sum(one.seconds for one in rounds)


def by_round(turns: Sequence[Turn]) -> str:
    return ", ".join(f"{speed([one]):.2f}" for one in turns)
