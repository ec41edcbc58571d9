"""What only the vLLM backend does: it holds requests, verifies chains only, and refuses configs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cluster.built_in_models import TARGET, model_path
from engine.errors import InvalidEngineArgs, RankLost, UnsupportedVLLM
from engine.protocol import Verdict
from engine.sampling.params import SamplingParams
from engine.verifiers.vllm.loading import TYPICAL_DRAFT, VllmSpec, engine_config, load_vllm
from policies.tree import ROOT, DraftTree
from tests import reference
from tests.engine.streams import questions, reference_target
from tests.engine.verifiers.backends import AMPLE, EAGER, TIGHT, vllm
from tests.engine.verifiers.orders import SEED, order, verdict

if TYPE_CHECKING:  # imports vLLM, which takes every process that collects tests seconds
    from engine.verifiers.vllm.verifier import VllmVerifier


@pytest.fixture
def ample() -> "Iterator[VllmVerifier]":
    verifier = vllm(AMPLE)
    yield verifier
    verifier.forget("abcd")
    assert verifier.blocks().used == 0


@pytest.fixture
def tight() -> "Iterator[VllmVerifier]":
    verifier = vllm(TIGHT)
    yield verifier
    verifier.forget("abcd")
    assert verifier.blocks().used == 0


def test_a_held_request_keeps_its_kv_while_others_run(ample: "VllmVerifier") -> None:
    prompts = {name: [token] * 70 for name, token in (("a", 21), ("b", 22))}
    answers = ample.verify([order(name, prompt) for name, prompt in prompts.items()])
    held = answers[1]
    assert isinstance(held, Verdict)
    used = ample.blocks().used
    tokens = [*prompts["a"], *answers[0].tokens]  # type: ignore[union-attr]  # a Verdict
    for _ in range(5):
        tokens += verdict(ample, order("a", tokens, base=len(tokens))).tokens
    assert ample.blocks().used == used, "76 tokens lie in as many blocks as 71"
    committed = [*prompts["b"], *held.tokens]
    # A chunk of one token is enough, as nothing has to be computed again.
    again = verdict(ample, order("b", committed, base=len(committed), chunk=1))
    assert len(again.tokens) == 1


def test_the_least_recently_run_request_is_evicted(tight: "VllmVerifier") -> None:
    prompts = {name: [token] * 100 for name, token in (("a", 31), ("b", 32), ("c", 33))}
    chosen = {name: verdict(tight, order(name, prompts[name])).tokens for name in "ab"}
    verdict(tight, order("c", prompts["c"]))
    for name, lost in (("b", False), ("a", True)):
        committed = [*prompts[name], *chosen[name]]
        one = order(name, committed, base=len(committed), chunk=1)
        assert (verdict(tight, one).pending > 0) == lost, "only `a` has lost its KV"


def test_a_draft_longer_than_the_typical_one_is_verified_whole(ample: "VllmVerifier") -> None:
    prompt = questions(False)[0]
    params = SamplingParams(temperature=0, max_tokens=TYPICAL_DRAFT + 6)
    expected = reference.generate(reference_target(), prompt, params, SEED)
    first = verdict(ample, order("a", prompt))
    committed = [*prompt, *first.tokens]
    draft = DraftTree.chain(expected[1 : TYPICAL_DRAFT + 5])
    answer = verdict(ample, order("a", committed, draft, base=len(committed)))
    assert list(answer.tokens) == expected[1:]
    assert len(answer.accepted) == TYPICAL_DRAFT + 4


def test_steps_may_run_in_another_thread_than_loading(ample: "VllmVerifier") -> None:
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(verdict, ample, order("a", [21] * 40)).result()
    assert answer.tokens == verdict(ample, order("b", [21] * 40)).tokens


def test_an_error_in_a_step_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = load_vllm(VllmSpec(model_path(TARGET), "float32", 256, engine_args=EAGER))
    assert verdict(verifier, order("a", [21] * 40)).tokens

    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as changed:
        changed.setattr("engine.verifiers.vllm.adapter.worker.choose_tokens", broken)
        with pytest.raises(RankLost, match="no memory"):
            verifier.verify([order("b", [22] * 40)])
    with pytest.raises(RankLost, match="no memory"):
        verifier.verify([order("c", [23] * 40)])


PRINT_THREADS_AT_EXIT = """
import atexit, os
@atexit.register  # registered first, so it is called last
def print_threads():
    print([open(f"/proc/self/task/{one}/comm").read() for one in os.listdir("/proc/self/task")])
from tests.engine.verifiers.backends import TIGHT, vllm
vllm(TIGHT)
"""


def test_no_gloo_thread_outlives_the_interpreter() -> None:
    """Threads that run during the interpreter's teardown can crash at exit. Needs a process of its
    own, as it shows only when one ends."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    ended = subprocess.run(
        [sys.executable, "-c", PRINT_THREADS_AT_EXIT],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    threads = next(line for line in ended.stdout.splitlines() if line.startswith("["))
    assert "python" in threads
    assert "gloo" not in threads


def test_a_tree_that_branches_raises_an_error(ample: "VllmVerifier") -> None:
    tree = DraftTree.build([5, 6], [ROOT, ROOT], [0.5, 0.5])
    with pytest.raises(ValueError, match="chains"):
        ample.verify([order("a", [1, 2, 3], tree)])
    assert verdict(ample, order("a", [1, 2, 3])).tokens, "the verifier is unusable afterwards"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}, "scheduler_cls"),
        ({"speculative_config": {"method": "ngram"}}, "speculative_config"),
        ({"gpu_memory_utilization": 0.5}, "gpu_memory_utilization"),
        ({"no_such_argument": 1}, "no_such_argument"),
        ({"max_model_len": 1 << 20}, "max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
    ],
)
def test_engine_args_that_cannot_be_honoured_are_refused(
    arguments: dict[str, object], name: str
) -> None:
    with pytest.raises(InvalidEngineArgs, match=name):
        engine_config(VllmSpec(model_path(TARGET), "float32", 2048, engine_args=arguments))


def test_another_vllm_is_refused_with_the_supported_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import vllm as vllm_package
    from vllm.v1.core.sched.scheduler import Scheduler

    from engine.verifiers.vllm.adapter.support import check

    config = engine_config(VllmSpec(model_path(TARGET), "float32", 2048))
    check(config)
    with monkeypatch.context() as changed:
        changed.setattr(vllm_package, "__version__", "0.33.0")
        with pytest.raises(UnsupportedVLLM, match=r"0\.33\.0.*supported is vLLM 0\.32"):
            check(config)
    monkeypatch.delattr(Scheduler, "_preempt_request")
    with pytest.raises(UnsupportedVLLM, match="_preempt_request"):
        check(config)
