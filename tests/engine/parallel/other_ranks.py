"""The other ranks of a test: follower processes, while the test's own process leads."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event

import torch
from transformers import PreTrainedModel

from engine.model import PackedModel
from engine.parallel.lockstep import LeadingModel, PoolState, follow, split
from engine.parallel.ranks import Place, leave_ranks

TIMEOUT_S = 60.0
"""For tests in which no rank is lost; long enough for a busy machine."""

Build = Callable[[], PreTrainedModel]

# A fork server loads torch once for the ranks of all tests.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


@dataclass(frozen=True, slots=True)
class Rank:
    process: BaseProcess
    answers: Connection

    def answer(self) -> object:
        """A follower's final pool state, or its error's name and text; what a leader sends."""
        assert self.answers.poll(TIMEOUT_S), "it hangs"
        return self.answers.recv()

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def places_at(meeting_point: Path, ranks: int, timeout_s: float) -> list[Place]:
    secret = b"of these ranks"
    at = f"file://{meeting_point}"
    return [Place(rank, ranks, at, timeout_s, secret) for rank in range(ranks)]


def start_follower(build: Build, place: Place, kv_tokens: int, swap_tokens: int = 0) -> Rank:
    return _start(_follow, build, place, kv_tokens, swap_tokens)


def start_idle_leader(build: Build, place: Place, kv_tokens: int) -> Rank:
    """Sends "leads" once it leads, then runs no forward."""
    return _start(_lead_and_wait, build, place, kv_tokens)


@contextmanager
def leading(
    build: Build,
    meeting_point: Path,
    *,
    ranks: int = 2,
    kv_tokens: int = 2048,
    swap_tokens: int = 0,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[LeadingModel]:
    """Leads `ranks` - 1 followers; on exit checks that the KV pools of all ranks are equal."""
    places = places_at(meeting_point, ranks, timeout_s)
    followers = [start_follower(build, place, kv_tokens, swap_tokens) for place in places[1:]]
    try:
        model = LeadingModel(
            split(build(), places[0], "cpu"),
            places[0],
            kv_tokens=kv_tokens,
            swap_tokens=swap_tokens,
        )
        with closing(model):
            yield model
        model.kv.check()
        for follower in followers:
            assert follower.answer() == PoolState.of(model.kv)
    finally:
        leave_ranks()
        for follower in followers:
            follower.stop()


def _start(role: Callable[..., None], *args: object) -> Rank:
    ours, theirs = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_run, args=(theirs, role, *args), daemon=True)
    process.start()
    rank = Rank(process, ours)
    rank.answer()  # the first one loads torch, which may take longer than the timeout
    return rank


def _run(answers: Connection, role: Callable[..., None], *args: object) -> None:
    torch.set_num_threads(1)
    answers.send("started")
    role(answers, *args)


def _follow(
    answers: Connection, build: Build, place: Place, kv_tokens: int, swap_tokens: int
) -> None:
    try:
        model = PackedModel(
            split(build(), place, "cpu"), kv_tokens=kv_tokens, swap_tokens=swap_tokens
        )
        follow(model, place)
        model.kv.check()
        answers.send(PoolState.of(model.kv))
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")


def _lead_and_wait(answers: Connection, build: Build, place: Place, kv_tokens: int) -> None:
    LeadingModel(split(build(), place, "cpu"), place, kv_tokens=kv_tokens)
    answers.send("leads")
    Event().wait()
