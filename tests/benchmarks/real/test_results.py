"""vLLM as a contender, and how Spindle is compared with it."""

import multiprocessing
from contextlib import closing
from functools import partial
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch

from benchmarks.real import served_vllm
from benchmarks.real.contenders import PLAIN
from benchmarks.real.contest import Contender, PairedTurn
from benchmarks.real.results import SPINDLE, compared_with_best
from benchmarks.real.served_vllm import ServedVllm, mend_temperatures
from benchmarks.real.spindle import PeerRequest, TurnResult
from cluster.built_in_models import model_path

MAX_TOKENS = 12
KV_TOKENS = 8192


def uncompiled(checkpoint: str) -> ServedVllm:
    """Called in the contender's process; loads in a third of the time."""
    arguments = served_vllm._arguments

    def eager(*given: Any) -> dict[str, Any]:
        return {**arguments(*given), "enforce_eager": True}

    with patch.object(served_vllm, "_arguments", eager):
        return ServedVllm(checkpoint, None, "float32", KV_TOKENS)


def test_vllm_serves_and_its_processes_end_with_the_contender() -> None:
    """Numba among our packages once kept vLLM from starting."""
    with closing(Contender(PLAIN, partial(uncompiled, str(model_path("tiny"))))) as plain:
        assert plain.failure is None
        (process,) = multiprocessing.active_children()
        children = psutil.Process(process.pid).children(recursive=True)
        requests = [
            PeerRequest((5, 6, number), temperature, MAX_TOKENS)
            for number, temperature in ((7, 0.0), (8, 1.0))
        ]
        served = plain.serve(requests, clients=2)
    assert served is not None
    assert served.lengths == (MAX_TOKENS, MAX_TOKENS)
    assert tuple(map(sum, served.rounds)) == served.lengths
    assert 0 < served.forwards <= MAX_TOKENS + 2
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def turn(ours_s: float, plain_s: float) -> PairedTurn:
    ours, plain = (TurnResult((100,), (taken_s,), taken_s, 10) for taken_s in (ours_s, plain_s))
    return PairedTurn(ours, plain, ("code",))


def test_spindle_is_compared_with_the_best_of_vllms_in_the_final_plain_included() -> None:
    records, behind = compared_with_best(
        {
            ("vllm_suffix_k3", 1): [turn(1.0, 1.0), turn(1.0, 3.0)],
            ("vllm_ngram_k3", 1): [turn(1.0, 1.0), turn(1.0, 1.0)],
            (SPINDLE, 1): [turn(1.0, 2.0), turn(1.5, 2.0)],
            ("vllm_suffix_k3", 4): [turn(2.0, 1.0)],
            (SPINDLE, 4): [turn(0.5, 1.0)],
            ("vllm_suffix_k3", 16): [turn(2.0, 1.0)],
            (SPINDLE, 16): [turn(1.25, 1.0)],
        },
        "peers/final",
    )
    over = {r.name: (r.value, r.reference, r.ratio) for r in records}
    assert over["peers/final/spindle/c1/over_best"] == (1.6, 2, 0.8)
    assert over["peers/final/spindle/c4/over_best"] == (2, 1, 2)
    assert over["peers/final/spindle/c16/over_best"] == (0.8, 1, 0.8)
    assert [line.split(",")[0] for line in behind] == [
        "spindle at 1 clients: behind vllm_suffix_k3",
        "spindle at 16 clients: behind vllm",
    ]


def test_vllms_rejection_sampler_uses_the_temperature_of_each_token() -> None:
    rejection_sampler = pytest.importorskip("vllm.v1.sample.rejection_sampler")
    mend_temperatures()
    temperatures, ends = torch.tensor([0.5, 0.0, 0.7, 2.0]), torch.tensor([2, 3, 3, 6])
    spread = rejection_sampler.expand_batch_to_tokens(
        temperatures, ends.to(torch.int32), 6, replace_from=0, replace_to=1
    )
    assert spread.tolist() == pytest.approx([0.5, 0.5, 1.0, 2.0, 2.0, 2.0])
