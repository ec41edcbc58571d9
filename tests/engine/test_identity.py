"""Speculation never changes the output: the losslessness suite on the built-in models (grade F).

Slow for a reason: this is the project's strongest oracle. Every stream is compared with a stock
model that recomputes everything, under each factor alone and each pair of factors together.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from cluster.zoo import TARGET, model_path
from engine.attention.layouts import LayoutName
from engine.drafters.lookup import NgramDrafter
from engine.drafters.model import ModelDrafter, make_runner
from engine.drafters.runner import PackedRunner
from engine.drafters.suffix import SuffixDrafter
from engine.drafters.tiny import TinyRunner
from engine.generate import DraftPlan, Generation, generate
from engine.model import PackedModel, Segment
from engine.params import SamplingParams
from engine.protocol import Commit, Drafter, Missing, NoRoom, Verdict, VerifyOrder
from engine.sampling import Row, choose
from engine.verifiers.native import NativeVerifier
from tests.identity import Identity
from tests.pairwise import Case, covering, one_at_a_time

END = 4
FACTORS = {
    "sampling": ("greedy", "0.7", "1.0", "top_p", "penalties", "mixed"),
    "drafter": ("tiny", "small", "ngram", "suffix", "none"),
    "shape": ("chain", "tree"),
    "layout": ("packed", "decomposed", "padded"),
    "batch": ("3", "1", "8", "17"),
    "traffic": ("together", "joining"),
    "lane": ("kept", "switching"),
    "chunk": ("512", "7"),
    "prompts": ("own", "shared"),
    "memory": ("ample", "swapped", "tight"),
}
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
}
SHAPES = {"chain": (4, 1), "tree": (3, 3)}
AMPLE, TIGHT = 8192, 320
"""Tokens of KV. The tight pool holds one request of this suite, not two of the longer ones."""
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
def zoo_model(name: str) -> PreTrainedModel:
    path = model_path(name)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@cache
def target(layout: LayoutName, kv_tokens: int) -> PackedModel:
    return PackedModel.load(
        model_path(TARGET),
        dtype=torch.float32,
        device="cpu",
        kv_tokens=kv_tokens,
        layout=layout,
        swap_tokens=kv_tokens,
    )


def make_drafters() -> list[Drafter]:
    tiny, small = make_runner(zoo_model("tiny"), kv_tokens=AMPLE), zoo_model("small")
    assert isinstance(tiny, TinyRunner)
    vocab_size = small.config.vocab_size
    # Too small a pool for a batch of 17, so that drafters run out of room as well.
    eager = PackedRunner(PackedModel(small, kv_tokens=2048))
    return [
        ModelDrafter("tiny", tiny, target_vocab_size=vocab_size),
        ModelDrafter("small", eager, target_vocab_size=vocab_size, chunk=64),
        NgramDrafter("ngram"),
        SuffixDrafter("suffix"),
    ]


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


class Watched(NativeVerifier):
    """Counts what happens on the way, to see that each factor does what its name says."""

    def __init__(self, model: PackedModel, seen: Counter[str]) -> None:
        super().__init__(model)
        self._seen = seen

    def verify(self, orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom]:
        answers = super().verify(orders)
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


def serve(case: Case, seen: Counter[str]) -> dict[str, Request]:
    """Runs one case to its end. In `joining` one more request leaves before it is done."""
    layout: LayoutName = case["layout"]  # type: ignore[assignment]  # one of FACTORS
    model = target(layout, TIGHT if case["memory"] == "tight" else AMPLE)
    verifier = Watched(model, seen)
    drafters = make_drafters()
    lanes = [None, *(drafter.name for drafter in drafters)]
    depth, width = SHAPES[case["shape"]]

    def plan(request: str, round_number: int) -> DraftPlan:
        name = None if case["drafter"] == "none" else case["drafter"]
        if case["lane"] == "switching":
            name = lanes[(int(request) + round_number // 2) % len(lanes)]
        return DraftPlan(name, depth, width)

    session = Generation(
        verifier, drafters, plan, max_batch=len(FACTORS["batch"]) * 5, chunk=int(case["chunk"])
    )
    requests = make_requests(case)
    waiting = list(requests.items())
    impatient = Request(*_like(requests["0"]))
    rounds = 0
    while waiting or session.active:
        joining = 1 if case["traffic"] == "joining" else len(waiting)
        for name, request in waiting[:joining]:
            session.add(name, request.prompt, request.params)
        waiting = waiting[joining:]
        if case["traffic"] == "joining" and rounds == 1:
            session.add("99", impatient.prompt, impatient.params)
        if case["traffic"] == "joining" and rounds == 5:
            session.cancel("99")
        for commit in session.step():
            (impatient if commit.request == "99" else requests[commit.request]).take(commit)
            seen[f"gained with {case['drafter']}"] += len(commit.token_ids) - 1
        rounds += 1
        if case["memory"] == "swapped" and (name := str(rounds % len(requests))) in model.kv:
            verifier.swap_out(name)
            seen["swapped"] += 1
        model.kv.check()
    assert model.kv.used_blocks == 0, "a finished request still holds KV"
    assert all(request.finished for request in requests.values())
    if impatient.stream and not impatient.finished:
        impatient.params = replace(impatient.params, max_tokens=len(impatient.stream))
        requests["99"] = impatient
    return requests


def _like(request: Request) -> tuple[list[int], SamplingParams, int]:
    return request.prompt, request.params, request.seed


def check(identity: Identity, requests: Sequence[Request]) -> None:
    for request in requests:
        identity.check(request.prompt, request.stream, request.params, request.seed)


@pytest.fixture(scope="module")
def reference_model() -> PreTrainedModel:
    path = model_path(TARGET)
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="module")
def identity(reference_model: PreTrainedModel) -> Iterator[Identity]:
    suite = Identity(reference_model)
    yield suite
    suite.finish()


@pytest.fixture(scope="module")
def seen() -> Iterator[Counter[str]]:
    counted: Counter[str] = Counter()
    yield counted
    events = ["pending", "accepted beside the first child", "Missing", "NoRoom", "swapped"]
    events += [f"gained with {name}" for name in FACTORS["drafter"] if name != "none"]
    assert all(counted[event] for event in events), counted


CASES = {"/".join(case.values()): case for case in (*one_at_a_time(FACTORS), *covering(FACTORS))}


def test_the_cases_are_few_and_cover_every_pair() -> None:
    assert len(CASES) <= 60
    for one in FACTORS:
        for other in FACTORS:
            seen = {(case[one], case[other]) for case in CASES.values()}
            wanted = len(FACTORS[one]) * (1 if one == other else len(FACTORS[other]))
            assert len(seen) == wanted


@pytest.mark.parametrize("name", CASES)
def test_every_stream_is_the_references(name: str, identity: Identity, seen: Counter[str]) -> None:
    check(identity, list(serve(CASES[name], seen).values()))


# What must make the suite fail.

MUTATED = {**one_at_a_time(FACTORS)[0], "sampling": "0.7", "shape": "tree", "batch": "8"}


def _assert_found(reference_model: PreTrainedModel) -> None:
    requests = serve(MUTATED, Counter())
    with pytest.raises(AssertionError, match="the reference says"):
        check(Identity(reference_model), list(requests.values()))


def _mutate_segments(
    monkeypatch: pytest.MonkeyPatch, mutate: Callable[[Segment, int], Segment]
) -> None:
    """`mutate(segment, entering)` sees each segment on its way into the forward."""
    honest = NativeVerifier._segment

    def mutated(verifier: NativeVerifier, work) -> Segment:  # type: ignore[no-untyped-def]
        return mutate(honest(verifier, work), len(work.entering))

    monkeypatch.setattr(NativeVerifier, "_segment", mutated)


def test_a_tree_one_position_too_far_is_found(
    monkeypatch: pytest.MonkeyPatch, reference_model: PreTrainedModel
) -> None:
    def shift(segment: Segment, entering: int) -> Segment:
        positions = segment.positions.copy()
        positions[entering:] += 1
        return replace(segment, positions=positions)

    _mutate_segments(monkeypatch, shift)
    _assert_found(reference_model)


def test_one_flipped_mask_bit_is_found(
    monkeypatch: pytest.MonkeyPatch, reference_model: PreTrainedModel
) -> None:
    def flip(segment: Segment, entering: int) -> Segment:
        if segment.mask is None or len(segment.tokens) == entering:
            return segment
        mask = segment.mask.copy()
        mask[entering, entering - 1] ^= True  # the first node and the last committed token
        return replace(segment, mask=mask)

    _mutate_segments(monkeypatch, flip)
    _assert_found(reference_model)


def test_noise_shifted_by_one_token_is_found(
    monkeypatch: pytest.MonkeyPatch, reference_model: PreTrainedModel
) -> None:
    def shifted(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        return choose(logits, [replace(row, position=row.position + 1) for row in rows])

    monkeypatch.setattr("engine.verifiers.native.choose", shifted)
    _assert_found(reference_model)


def test_the_same_request_gets_the_same_stream_whoever_drafts() -> None:
    """Also where the reference would excuse a near-tie: one backend's own runs agree."""
    base = {**one_at_a_time(FACTORS)[0], "sampling": "1.0", "batch": "8"}
    streams = [
        [request.stream for request in serve({**base, **change}, Counter()).values()]
        for change in ({}, {"drafter": "none"}, {"shape": "tree", "drafter": "small"})
    ]
    assert streams[0] == streams[1] == streams[2]
    assert len(np.unique([stream[0] for stream in streams[0]])) > 1, "requests do not differ"


def test_a_known_prefix_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor `prompts` relies on it: equal prompts share KV, and their streams stay right."""
    model = PackedModel.load(model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=AMPLE)
    rows: list[int] = []
    forward = model.forward

    def counting(segments: Sequence[Segment]) -> torch.Tensor:
        rows.append(sum(len(segment.tokens) for segment in segments))
        return forward(segments)

    monkeypatch.setattr(model, "forward", counting)
    prompt = questions(shared=True)[0]
    params = SamplingParams(temperature=0, max_tokens=1)
    streams = [list(generate(NativeVerifier(model), [prompt], params)) for _ in range(2)]
    assert streams[0] == streams[1]
    assert rows[0] == len(prompt)
    assert rows[1] == len(prompt) - (len(prompt) - 1) // 16 * 16
