"""How the benchmark works, with sides on the native backend, which are up in seconds."""

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

from benchmarks.contenders import Asked, Served
from benchmarks.peers import (
    EACH,
    FEWEST_CLIENTS,
    PLAIN,
    SPINDLE,
    Contender,
    Turn,
    compete,
    questions,
    report,
)
from benchmarks.vllm_contenders import ServedVllm, VllmLoop, mend_temperatures
from cluster.zoo import TARGET, model_path
from engine.drafters.lookup import NgramDrafter
from engine.generate import Rejected, generate
from engine.model import PackedModel
from engine.params import SamplingParams
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
        results = compete(plain, others, few_tokens(checkpoint), LOADS, rounds=1)
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


@pytest.mark.parametrize("kind", [VllmLoop, ServedVllm])
def test_vllm_itself_serves_and_ends_with_its_process(
    kind: type[VllmLoop] | type[ServedVllm],
) -> None:
    """Slow, for vLLM compiles the model. Numba, which comes with our packages, once kept it from
    starting, and nobody saw that until the table was wanted."""
    checkpoint = str(model_path(TARGET))
    with closing(Contender(PLAIN, partial(kind, checkpoint, None, "float32"))) as plain:
        assert plain.refused is None
        (process,) = multiprocessing.active_children()
        its_own = psutil.Process(process.pid).children(recursive=True)
        asked = list(islice(few_tokens(checkpoint), 2))
        served = plain.serve([replace(one, stop=()) for one in asked], clients=2)
    assert served is not None
    assert served.lengths == (MOST, MOST)
    assert 0 < served.forwards <= MOST + 2
    _, alive = psutil.wait_procs(its_own, timeout=10)
    assert not alive


def test_questions_are_greedy_and_sampled_in_every_domain_and_never_come_twice() -> None:
    asked = list(islice(questions(str(model_path(TARGET))), 60))
    assert [one.temperature for one in asked[:EACH]] == [0, 0, 0, 1, 1, 1]
    assert len({one.prompt for one in asked}) > 50


def turn(ours_s: float, plain_s: float) -> Turn:
    ours, plain = (Served((100,), (took_s,), took_s, 10) for took_s in (ours_s, plain_s))
    return Turn(ours, plain, ("code",))


def test_the_report_holds_spindle_against_the_best_of_vllms() -> None:
    records, behind = report(
        {
            ("vllm_suffix_k3", 1): [turn(1.0, 1.0), turn(1.0, 3.0)],
            (SPINDLE, 1): [turn(1.0, 2.0), turn(1.5, 2.0)],
            (SPINDLE, 4): [turn(0.5, 1.0)],
        }
    )
    by_name = {record.name: record for record in records}
    suffix = by_name["peers/vllm_suffix_k3/c1/goodput"]
    assert (suffix.value, suffix.reference, suffix.ratio) == (100, 50, 2)
    over = by_name["peers/spindle/c1/over_best"]
    assert (over.value, over.reference, over.ratio) == (1.6, 2, 0.8)
    assert by_name["peers/spindle/c4/over_best"].ratio == 2
    assert by_name["peers/spindle/c4/tokens_per_forward"].value == 10
    assert by_name["peers/spindle/c4/forward_ms"].value == 50
    assert by_name[f"peers/{PLAIN}/c1/goodput"].value == 50
    (line,) = behind
    assert line.startswith("spindle at 1 clients: behind vllm_suffix_k3")


def test_the_slowest_domain_is_the_one_that_gains_least_for_most_of_its_requests() -> None:
    plain, ours = (
        Served((1,) * 4, took_s, 1.0, 1) for took_s in ((4.0, 4.0, 4.0, 2.0), (1.0, 2.0, 8.0, 2.5))
    )
    records, _ = report({(SPINDLE, 4): [Turn(ours, plain, ("code", "code", "code", "prose"))]})
    (slowest,) = (one for one in records if one.name == "peers/spindle/c4/slowest_domain")
    assert slowest.value == 2.0 / 2.5


def test_vllms_rejection_sampler_gets_the_temperature_of_each_token() -> None:
    rejection_sampler = pytest.importorskip("vllm.v1.sample.rejection_sampler")
    mend_temperatures()
    temperatures, ends = torch.tensor([0.5, 0.0, 0.7, 2.0]), torch.tensor([2, 3, 3, 6])
    spread = rejection_sampler.expand_batch_to_tokens(
        temperatures, ends.to(torch.int32), 6, replace_from=0, replace_to=1
    )
    assert spread.tolist() == pytest.approx([0.5, 0.5, 1.0, 2.0, 2.0, 2.0])
