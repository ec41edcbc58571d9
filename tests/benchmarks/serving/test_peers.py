"""vLLM's own sides, what they are asked, and how Spindle is judged."""

import multiprocessing
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice

import psutil
import pytest
import torch

from benchmarks.serving.contenders import Served
from benchmarks.serving.contest import EACH, Contender, Turn
from benchmarks.serving.peers import PLAIN, SPINDLE, finalists_of, judged, questions, report
from benchmarks.serving.vllm_contenders import ServedVllm, VllmLoop, mend_temperatures
from cluster.zoo import TARGET, model_path

MOST = 12
"""Tokens of an answer."""


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
        asked = list(islice(questions(checkpoint), 2))
        short = [replace(one, max_tokens=MOST, stop=()) for one in asked]
        served = plain.serve(short, clients=2)
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


def test_the_report_has_everyone_over_plain_vllm_in_their_turns() -> None:
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


def test_spindle_is_held_against_the_best_of_vllms_in_the_final_be_it_plain_decoding() -> None:
    records, behind = judged(
        {
            ("vllm_suffix_k3", 1): [turn(1.0, 1.0), turn(1.0, 3.0)],
            ("vllm_ngram_k3", 1): [turn(1.0, 1.0), turn(1.0, 1.0)],
            (SPINDLE, 1): [turn(1.0, 2.0), turn(1.5, 2.0)],
            ("vllm_suffix_k3", 4): [turn(2.0, 1.0)],
            (SPINDLE, 4): [turn(0.5, 1.0)],
            ("vllm_suffix_k3", 16): [turn(2.0, 1.0)],
            (SPINDLE, 16): [turn(1.25, 1.0)],
        }
    )
    over = {one.name: (one.value, one.reference, one.ratio) for one in records}
    assert over["peers/final/spindle/c1/over_best"] == (1.6, 2, 0.8)
    assert over["peers/final/spindle/c4/over_best"] == (2, 1, 2)
    assert over["peers/final/spindle/c16/over_best"] == (0.8, 1, 0.8)
    assert [line.split(",")[0] for line in behind] == [
        "spindle at 1 clients: behind vllm_suffix_k3",
        "spindle at 16 clients: behind vllm",
    ]


def test_the_best_of_vllms_at_a_load_come_into_its_final_with_spindle() -> None:
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


def test_the_slowest_domain_is_the_one_that_gains_least_for_most_of_its_requests() -> None:
    plain, ours = (
        Served((1,) * 4, took_s, 1.0, 1) for took_s in ((4.0, 4.0, 4.0, 2.0), (1.0, 2.0, 8.0, 2.5))
    )
    turns = [Turn(ours, plain, ("code", "code", "code", "prose"))]
    records = report({(SPINDLE, 4): turns}, "peers")
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
