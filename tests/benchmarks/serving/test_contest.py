"""Contenders in turns, with sides on the native backend, which are up in seconds."""

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

from benchmarks.serving.contenders import Asked, Served
from benchmarks.serving.contest import EACH, FEWEST_CLIENTS, Contender, final, heats
from benchmarks.serving.peers import PLAIN, questions
from cluster.zoo import TARGET, model_path
from engine.drafters.ngram import NgramDrafter
from engine.generate import Rejected, generate
from engine.model import PackedModel
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier

MOST = 12
"""Tokens of an answer."""
LOADS = (1, 2)


class Native:
    """The zoo's target as it was trained; made in the contender's process."""

    def __init__(self, checkpoint: str, drafts: bool = False, dies_at: int = 100) -> None:
        model = PackedModel.load(checkpoint, dtype=torch.float32, device="cpu", kv_tokens=4096)
        self._verifier = NativeVerifier(model)
        self._drafter = NgramDrafter("ngram") if drafts else None
        self._batches_left = dies_at

    def serve(self, requests: Sequence[Asked], clients: int) -> Served:
        if not self._batches_left:
            os._exit(3)
        self._batches_left -= 1
        params = [
            SamplingParams(
                one.temperature,
                max_tokens=one.max_tokens,
                stop_token_ids=one.stop,
                ignore_eos=True,
                seed=0,
            )
            for one in requests
        ]
        prompts = [one.prompt for one in requests]
        lengths = [0] * len(requests)
        commits = list(
            generate(self._verifier, prompts, params, drafter=self._drafter, max_batch=clients)
        )
        for commit in commits:
            assert not isinstance(commit, Rejected)
            lengths[int(commit.request)] += len(commit.token_ids)
        return Served(tuple(lengths), (1.0,) * len(lengths), 1.0, len(commits))


def few_tokens(checkpoint: str) -> Iterator[Asked]:
    return (replace(one, max_tokens=MOST) for one in questions(checkpoint))


def test_everyone_serves_the_same_work_and_who_does_not_run_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = str(model_path(TARGET))
    others = {
        "drafting": partial(Native, checkpoint, drafts=True),
        "dying": partial(Native, checkpoint, dies_at=2),
        "missing": partial(Native, "/no/such/checkpoint"),
    }
    with closing(Contender(PLAIN, partial(Native, checkpoint))) as plain:
        results = heats(plain, others, few_tokens(checkpoint), LOADS, rounds=1)
    said = capsys.readouterr().out
    assert "dying: not run: its process ended with 3" in said
    assert "missing: not run:" in said
    assert "/no/such/checkpoint" in said
    assert set(results) == {*(("drafting", load) for load in LOADS), ("dying", LOADS[0])}
    lengths: list[int] = []
    for load in LOADS:
        (turn,) = results["drafting", load]
        assert turn.ours.lengths == turn.plain.lengths
        assert len(turn.ours.lengths) == EACH * FEWEST_CLIENTS
        assert turn.ours.forwards < turn.plain.forwards
        lengths += turn.plain.lengths
    assert min(lengths) < max(lengths) == MOST, "answers end where the target ends them"


def test_in_a_final_all_serve_each_rounds_requests_and_plain_is_one_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = str(model_path(TARGET))
    others = {
        "drafting": partial(Native, checkpoint, drafts=True),
        "also": partial(Native, checkpoint),
        "dying": partial(Native, checkpoint, dies_at=2),
    }
    with closing(Contender(PLAIN, partial(Native, checkpoint))) as plain:
        results = final(plain, others, few_tokens(checkpoint), load=2, rounds=2)
    assert {name: len(turns) for name, turns in results.items()} == {
        ("drafting", 2): 2,
        ("also", 2): 2,
        ("dying", 2): 1,
    }
    for drafting, also in zip(results["drafting", 2], results["also", 2], strict=True):
        assert drafting.plain is also.plain
        assert drafting.ours.lengths == also.ours.lengths == also.plain.lengths
    assert "dying: not run: its process ended with 3" in capsys.readouterr().out


def stops(process: psutil.Process) -> bool:
    """A signal takes a moment to arrive."""
    end = time.monotonic() + 5.0
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < end:
        time.sleep(0.01)
    return bool(process.status() == psutil.STATUS_STOPPED)


def test_only_who_serves_takes_processor_time() -> None:
    checkpoint = str(model_path(TARGET))
    with closing(Contender(PLAIN, partial(Native, checkpoint))) as plain:
        (process,) = multiprocessing.active_children()
        waiting = psutil.Process(process.pid)
        assert stops(waiting)
        assert plain.serve(list(islice(few_tokens(checkpoint), 2)), clients=2) is not None
        assert stops(waiting)
    assert not waiting.is_running()
