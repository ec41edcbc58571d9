"""vLLM as a contender, and how Spindle is compared with it."""

import multiprocessing
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch

from benchmarks.real import served_vllm
from benchmarks.real.contenders import PLAIN
from benchmarks.real.contest import Contender, PairedTurn
from benchmarks.real.results import (
    SPINDLE,
    compared_with_best,
    finalists_of,
    report,
)
from benchmarks.real.served_vllm import (
    FixedWorker,
    ServedVllm,
    mend_temperatures,
)
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


def test_the_report_compares_each_contender_with_plain_vllm_in_its_turns() -> None:
    records = report(
        {
            ("vllm_suffix_k3", 1): [turn(1.0, 1.0), turn(1.0, 3.0)],
            (SPINDLE, 4): [turn(0.5, 1.0)],
        },
        "peers",
    )
    by_name = {record.name: record for record in records}
    suffix = by_name["peers/vllm_suffix_k3/c1/goodput"]
    assert (suffix.value, suffix.reference, suffix.ratio) == (100, 50, 2)
    assert by_name["peers/spindle/c4/tokens_per_forward"].value == 10
    assert by_name["peers/spindle/c4/forward_ms"].value == 50
    assert by_name[f"peers/{PLAIN}/c1/goodput"].value == 50


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


def test_the_final_of_a_load_has_spindle_and_the_best_of_vllms_at_it() -> None:
    heats = {
        (name, load): [turn(1.0, plain_s)]
        for load in (1, 4)
        for name, plain_s in (
            ("vllm_ngram_k1", 1.1),
            ("vllm_suffix_k3", 1.3 / load),
            ("vllm_suffix_k5", 1.2),
            (SPINDLE, 1.0),
        )
    }
    assert finalists_of(heats, 1) == [SPINDLE, "vllm_suffix_k3", "vllm_suffix_k5"]
    assert finalists_of(heats, 4) == [SPINDLE, "vllm_suffix_k5", "vllm_ngram_k1"]


def test_the_slowest_domain_has_the_lowest_median_speed_over_plain() -> None:
    plain, ours = (
        TurnResult((1,) * 4, latencies_s, 1.0, 1)
        for latencies_s in ((4.0, 4.0, 4.0, 2.0), (1.0, 2.0, 8.0, 2.5))
    )
    turns = [PairedTurn(ours, plain, ("code", "code", "code", "prose"))]
    records = report({(SPINDLE, 4): turns}, "peers")
    (slowest,) = (r for r in records if r.name == "peers/spindle/c4/slowest_domain")
    assert slowest.value == 2.0 / 2.5


def test_vllms_rejection_sampler_uses_the_temperature_of_each_token() -> None:
    rejection_sampler = pytest.importorskip("vllm.v1.sample.rejection_sampler")
    mend_temperatures()
    temperatures, ends = torch.tensor([0.5, 0.0, 0.7, 2.0]), torch.tensor([2, 3, 3, 6])
    spread = rejection_sampler.expand_batch_to_tokens(
        temperatures, ends.to(torch.int32), 6, replace_from=0, replace_to=1
    )
    assert spread.tolist() == pytest.approx([0.5, 0.5, 1.0, 2.0, 2.0, 2.0])


def test_vllms_worker_says_how_long_its_drafts_have_taken_since_the_last_question() -> None:
    worker = FixedWorker()
    worker.model_runner = SimpleNamespace(propose_draft_token_ids=lambda first, *, k: first + k)
    worker.time_drafting()
    assert worker.model_runner.propose_draft_token_ids(1, k=2) == 3
    assert worker.take_draft_s() > 0
    assert worker.take_draft_s() == 0
