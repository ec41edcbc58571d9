"""Contenders that take turns, with servers on the native backend, which load in seconds."""

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice

import psutil
import pytest
import torch

from benchmarks.serving.contenders import PeerRequest, TurnResult
from benchmarks.serving.contest import FEWEST_CLIENTS, REQUESTS_PER_CLIENT, Contender, final, heats
from benchmarks.serving.peers import PLAIN, peer_requests
from cluster.zoo import TARGET, model_path
from engine.drafters.ngram import NgramDrafter
from engine.generate import Rejected, generate
from engine.model import PackedModel
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier

MAX_TOKENS = 12
"""Output tokens of a request."""
LOADS = (1, 2)


class NativeServer:
    """The zoo's target, not inflated; made in the contender's process."""

    def __init__(self, checkpoint: str, drafts: bool = False, batches: int = 100) -> None:
        model = PackedModel.load(checkpoint, dtype=torch.float32, device="cpu", kv_tokens=4096)
        self._verifier = NativeVerifier(model)
        self._drafter = NgramDrafter("ngram") if drafts else None
        self._batches_left = batches

    def serve(self, requests: Sequence[PeerRequest], clients: int) -> TurnResult:
        if not self._batches_left:
            os._exit(3)
        self._batches_left -= 1
        params = [
            SamplingParams(
                request.temperature,
                max_tokens=request.max_tokens,
                stop_token_ids=request.stop,
                ignore_eos=True,
                seed=0,
            )
            for request in requests
        ]
        prompts = [request.prompt for request in requests]
        lengths = [0] * len(requests)
        commits = list(
            generate(self._verifier, prompts, params, drafter=self._drafter, max_batch=clients)
        )
        for commit in commits:
            assert not isinstance(commit, Rejected)
            lengths[int(commit.request)] += len(commit.token_ids)
        return TurnResult(tuple(lengths), (1.0,) * len(lengths), 1.0, len(commits))


def short_requests(checkpoint: str) -> Iterator[PeerRequest]:
    return (replace(request, max_tokens=MAX_TOKENS) for request in peer_requests(checkpoint))


def test_all_contenders_serve_the_same_requests_and_failures_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = str(model_path(TARGET))
    others = {
        "drafting": partial(NativeServer, checkpoint, drafts=True),
        "dying": partial(NativeServer, checkpoint, batches=2),
        "missing": partial(NativeServer, "/no/such/checkpoint"),
    }
    with closing(Contender(PLAIN, partial(NativeServer, checkpoint))) as plain:
        results = heats(plain, others, short_requests(checkpoint), LOADS, rounds=1)
    printed = capsys.readouterr().out
    assert "dying: not run: its process ended with 3" in printed
    assert "missing: not run:" in printed
    assert "/no/such/checkpoint" in printed
    assert set(results) == {*(("drafting", load) for load in LOADS), ("dying", LOADS[0])}
    lengths: list[int] = []
    for load in LOADS:
        (turn,) = results["drafting", load]
        assert turn.ours.lengths == turn.plain.lengths
        assert len(turn.ours.lengths) == REQUESTS_PER_CLIENT * FEWEST_CLIENTS
        assert turn.ours.forwards < turn.plain.forwards
        lengths += turn.plain.lengths
    assert min(lengths) < max(lengths) == MAX_TOKENS, "outputs end where the target ends them"


def test_all_contenders_of_a_final_serve_the_requests_of_each_round(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = str(model_path(TARGET))
    others = {
        "drafting": partial(NativeServer, checkpoint, drafts=True),
        "plain_too": partial(NativeServer, checkpoint),
        "dying": partial(NativeServer, checkpoint, batches=2),
    }
    with closing(Contender(PLAIN, partial(NativeServer, checkpoint))) as plain:
        results = final(plain, others, short_requests(checkpoint), load=2, rounds=2)
    assert {name: len(turns) for name, turns in results.items()} == {
        ("drafting", 2): 2,
        ("plain_too", 2): 2,
        ("dying", 2): 1,
    }
    for drafting, plain_too in zip(results["drafting", 2], results["plain_too", 2], strict=True):
        assert drafting.plain is plain_too.plain
        assert drafting.ours.lengths == plain_too.ours.lengths == plain_too.plain.lengths
    assert "dying: not run: its process ended with 3" in capsys.readouterr().out


def is_stopped(process: psutil.Process) -> bool:
    """Waits, for a signal takes some time to arrive."""
    end = time.monotonic() + 5.0
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < end:
        time.sleep(0.01)
    return bool(process.status() == psutil.STATUS_STOPPED)


def test_contenders_are_stopped_between_their_turns() -> None:
    checkpoint = str(model_path(TARGET))
    with closing(Contender(PLAIN, partial(NativeServer, checkpoint))) as plain:
        (process,) = multiprocessing.active_children()
        waiting = psutil.Process(process.pid)
        assert is_stopped(waiting)
        assert plain.serve(list(islice(short_requests(checkpoint), 2)), clients=2) is not None
        assert is_stopped(waiting)
    assert not waiting.is_running()
