"""Serves the requests of one test case to their end, on any verifier with the zoo's drafters."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from benchmarks.generation import DraftPlan, Generation
from cluster.built_in_models import TARGET, model_path
from cluster.config.drafter_kinds import LOOKUPS, drafter_kind
from engine.drafters.loading import load_model_drafter, load_quantized
from engine.drafters.model import ModelDrafter, make_runner
from engine.drafters.runner import PackedRunner
from engine.grammar.spec import OutputGrammar
from engine.model import PackedModel
from engine.protocol import Commit, Drafter, Failed, Missing, NoRoom, Verdict, Verifier, VerifyOrder
from engine.sampling.params import SamplingParams
from tests.engine.grammar.oracle import grammars
from tests.identity import Identity
from tests.other_tokenizer import write_renamed
from tests.pairwise import Case

END = 4
MAX_BATCH = 20
_ANIMAL = """{
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "legs": {"type": "integer", "minimum": 0, "maximum": 100},
        "kind": {"enum": ["mammal", "bird", "fish"]},
        "food": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3}
    },
    "required": ["name", "legs", "kind"]
}"""
DRAFTERS = ("tiny", "small", "renamed", "quantized", *LOOKUPS)
SAMPLING = {
    "greedy": SamplingParams(temperature=0),
    "0.7": SamplingParams(temperature=0.7),
    "1.0": SamplingParams(temperature=1),
    "top_p": SamplingParams(temperature=1, top_p=0.9),
    "penalties": SamplingParams(
        temperature=0.8,
        top_k=50,
        min_p=0.02,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.2,
        logit_bias={100: 3.0, 7: -5.0},
        min_tokens=6,
    ),
    "schema": SamplingParams(
        temperature=0.9, top_p=0.95, min_tokens=6, grammar=OutputGrammar("json_schema", _ANIMAL)
    ),
    "pattern": SamplingParams(
        temperature=0,
        repetition_penalty=1.3,
        grammar=OutputGrammar("regex", "([a-z ]{2,12}, ){3}[a-z]{3,}[.]"),
    ),
}
SHAPES = {"chain": (4, 1), "tree": (3, 3)}
AMPLE, TIGHT = 8192, 320
"""Tokens of KV. The tight pool holds one request of this suite, but not two of the longer ones."""
QUESTIONS = (
    "Count to 9.",
    "List 6 animals.",
    "Make a table of 5 rivers with length.",
    'Repeat "blue cup" 4 times.',
    "What does os.path.join do?",
    "Write the Python function `def walk(top, topdown=True)`: Directory tree generator.",
)
SYSTEM = "Answer in few words. " * 6


@cache
def reference_target() -> PreTrainedModel:
    path = model_path(TARGET)
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@cache
def zoo_model(name: str) -> PreTrainedModel:
    path = model_path(name)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def make_drafters() -> list[Drafter]:
    tiny, small = make_runner(zoo_model("tiny"), kv_tokens=AMPLE), zoo_model("small")
    vocab_size = small.config.vocab_size
    # A pool too small for a batch of 17, so that drafters run out of memory too.
    eager = PackedRunner(PackedModel(small, kv_tokens=2048))
    return [
        ModelDrafter("tiny", tiny, target_vocab_size=vocab_size, grammars=grammars()),
        ModelDrafter("small", eager, target_vocab_size=vocab_size, chunk=64, grammars=grammars()),
        with_another_tokenizer(),
        copy_of_target(),
        *(drafter_kind(kind).maker()(kind, grammars=grammars()) for kind in LOOKUPS),
    ]


@cache
def with_another_tokenizer() -> Drafter:
    """The small model without a tenth of its tokens. Made once, as `copy_of_target`."""
    with TemporaryDirectory() as folder:
        return load_model_drafter(
            "renamed",
            write_renamed("small", Path(folder) / "renamed", kept=0.9),
            dtype=torch.float32,
            device="cpu",
            kv_tokens=AMPLE,
            target_vocab_size=reference_target().config.vocab_size,
            target=model_path(TARGET),
        ).drafter


@cache
def copy_of_target() -> Drafter:
    """Made once: each case forgets its requests."""
    vocab_size = reference_target().config.vocab_size
    return load_quantized(
        "quantized",
        model_path(TARGET),
        dtype=None,
        device="cpu",
        kv_tokens=AMPLE,
        target_vocab_size=vocab_size,
    ).drafter


@cache
def questions(shared: bool) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(model_path(TARGET))
    system = SYSTEM if shared else ""
    texts = [f"<|user|>{system}{question}<|end|><|assistant|>" for question in QUESTIONS]
    ids: list[list[int]] = tokenizer(texts)["input_ids"]
    return ids


@dataclass(slots=True)
class Request:
    prompt: list[int]
    params: SamplingParams
    seed: int
    stream: list[int] = field(default_factory=list)
    finished: bool = False

    def take(self, commit: Commit) -> None:
        assert not self.finished
        assert commit.first_index == len(self.stream), "a gap or a repeat in the stream"
        self.stream.extend(commit.token_ids)
        self.finished = commit.finish is not None


def make_requests(case: Case) -> dict[str, Request]:
    prompts = questions(case["prompts"] == "shared")
    names = list(SAMPLING) if case["sampling"] == "mixed" else [case["sampling"]]
    requests = {}
    for index in range(int(case["batch"])):
        # Lengths differ, so that requests leave one by one.
        params = replace(
            SAMPLING[names[index % len(names)]],
            max_tokens=40 + 8 * (index % 3),
            stop_token_ids=(END,),
            seed=1000 + index,
        )
        prompt = prompts[index % len(prompts)]
        requests[str(index)] = Request(prompt, params, 1000 + index)
    return requests


class WrappedVerifier:
    """Passes everything on to another one; subclasses change `verify`."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def __getattr__(self, name: str) -> Any:
        return getattr(self._verifier, name)


class CountingVerifier(WrappedVerifier):
    """Counts events, so that a suite can assert that each factor had its effect."""

    def __init__(self, verifier: Verifier, seen: Counter[str]) -> None:
        super().__init__(verifier)
        self._seen = seen

    def verify(
        self, orders: Sequence[VerifyOrder]
    ) -> Sequence[Verdict | Missing | NoRoom | Failed]:
        answers = self._verifier.verify(orders)
        for order, answer in zip(orders, answers, strict=True):
            if isinstance(answer, Verdict):
                self._seen["pending"] += answer.pending > 0
                self._seen["accepted"] += len(answer.accepted)
                branches = len(answer.accepted) and not order.tree.is_chain
                self._seen["accepted beside the first child"] += bool(
                    branches and answer.accepted != tuple(range(len(answer.accepted)))
                )
            else:
                self._seen[type(answer).__name__] += 1
        return answers


def serve(
    case: Case, verifier: Verifier, seen: Counter[str], after_round: Callable[[str], None]
) -> dict[str, Request]:
    """Runs one case to its end; with `joining` traffic one more request is cancelled midway.

    `after_round` is called with the name of one request, in rotation.
    """
    counting: Any = CountingVerifier(verifier, seen)
    drafters = make_drafters()
    lanes = [None, *(drafter.name for drafter in drafters)]
    depth, width = SHAPES[case["shape"]]

    def plan(request: str, round_number: int) -> DraftPlan:
        name = None if case["drafter"] == "none" else case["drafter"]
        if case["lane"] == "switching":
            name = lanes[(int(request) + round_number // 2) % len(lanes)]
        return DraftPlan(name, depth, width)

    session = Generation(counting, drafters, plan, max_batch=MAX_BATCH, chunk=int(case["chunk"]))
    requests = make_requests(case)
    waiting = list(requests.items())
    cancelled = Request(*_like(requests["0"]))
    rounds = 0
    while waiting or session.active:
        joining = 1 if case["traffic"] == "joining" else len(waiting)
        for name, request in waiting[:joining]:
            session.add(name, request.prompt, request.params)
        waiting = waiting[joining:]
        if case["traffic"] == "joining" and rounds == 1:
            session.add("99", cancelled.prompt, cancelled.params)
        if case["traffic"] == "joining" and rounds == 5:
            session.cancel("99")
        for commit in session.step():
            (cancelled if commit.request == "99" else requests[commit.request]).take(commit)
            seen[f"gained with {case['drafter']}"] += len(commit.token_ids) - 1
        rounds += 1
        after_round(str(rounds % len(requests)))
    assert all(request.finished for request in requests.values())
    if cancelled.stream and not cancelled.finished:
        cancelled.params = replace(cancelled.params, max_tokens=len(cancelled.stream))
        requests["99"] = cancelled
    return requests


def _like(request: Request) -> tuple[list[int], SamplingParams, int]:
    return request.prompt, request.params, request.seed


def check(identity: Identity, requests: Sequence[Request]) -> None:
    for request in requests:
        identity.check(request.prompt, request.stream, request.params, request.seed)
