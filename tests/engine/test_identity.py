"""Speculation never changes the output: the losslessness suite on the built-in models (grade F).

Every stream is compared with a stock model that recomputes everything, under each factor alone and
each pair of factors together. Slow, as it is the project's strongest oracle.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from cluster.built_in_models import TARGET, model_path
from engine.model import PackedModel, Segment
from engine.sampling.sampler import Row, choose
from engine.verifiers.native import NativeVerifier
from tests.engine.grammar.oracle import grammars
from tests.engine.kv import integrity
from tests.engine.streams import AMPLE, DRAFTERS, TIGHT, Request, check, reference_target, serve
from tests.identity import Identity
from tests.pairwise import Case, covering, one_at_a_time

FACTORS = {
    "sampling": ("greedy", "0.7", "1.0", "top_p", "penalties", "schema", "mixed"),
    "drafter": (*DRAFTERS, "none"),
    "shape": ("chain", "tree"),
    "batch": ("3", "1", "8", "17"),
    "traffic": ("together", "joining"),
    "lane": ("kept", "switching"),
    "chunk": ("512", "7"),
    "prompts": ("own", "shared"),
    "memory": ("ample", "tight"),
}


@cache
def target(kv_tokens: int) -> PackedModel:
    return PackedModel.load(
        model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=kv_tokens
    )


def serve_native(case: Case, seen: Counter[str]) -> dict[str, Request]:
    model = target(TIGHT if case["memory"] == "tight" else AMPLE)
    verifier = NativeVerifier(model, grammars())
    rounds = itertools.count(1)

    def after_round(name: str) -> None:
        # Rarely enough that a prompt in small chunks finishes its prefill.
        if case["memory"] == "tight" and next(rounds) % 31 == 0:
            verifier.forget([name])
        integrity.check(model.kv)

    requests = serve(case, verifier, seen, after_round)
    assert model.kv.used_blocks == 0, "a finished request still holds KV"
    return requests


@pytest.fixture(scope="module")
def reference_model() -> PreTrainedModel:
    return reference_target()


@pytest.fixture(scope="module")
def identity(reference_model: PreTrainedModel) -> Iterator[Identity]:
    suite = Identity(reference_model)
    yield suite
    suite.finish()


@pytest.fixture(scope="module")
def seen() -> Iterator[Counter[str]]:
    counted: Counter[str] = Counter()
    yield counted
    events = ["pending", "accepted beside the first child", "Missing", "NoRoom"]
    events += [f"gained with {name}" for name in FACTORS["drafter"] if name != "none"]
    assert all(counted[event] for event in events), counted


CASES = {"/".join(case.values()): case for case in (*one_at_a_time(FACTORS), *covering(FACTORS))}


def test_few_cases_cover_every_pair_of_levels() -> None:
    fewest = len(FACTORS["sampling"]) * len(FACTORS["drafter"])  # the pairs of the largest factors
    assert len(CASES) <= len(one_at_a_time(FACTORS)) + fewest
    for one in FACTORS:
        for other in FACTORS:
            seen = {(case[one], case[other]) for case in CASES.values()}
            wanted = len(FACTORS[one]) * (1 if one == other else len(FACTORS[other]))
            assert len(seen) == wanted


@pytest.mark.parametrize("name", CASES)
def test_every_stream_equals_the_references(
    name: str, identity: Identity, seen: Counter[str]
) -> None:
    check(identity, list(serve_native(CASES[name], seen).values()))


# Faults that the suite must detect.

MUTATED = {**one_at_a_time(FACTORS)[0], "sampling": "0.7", "shape": "tree", "batch": "8"}


def _assert_detected(reference_model: PreTrainedModel) -> None:
    requests = serve_native(MUTATED, Counter())
    with pytest.raises(AssertionError, match="the reference says"):
        check(Identity(reference_model), list(requests.values()))


def _mutate_segments(
    monkeypatch: pytest.MonkeyPatch, mutate: Callable[[Segment, int], Segment]
) -> None:
    """Replaces each segment of a forward by `mutate(segment, entering)`."""
    original = NativeVerifier._segment

    def mutated(verifier: NativeVerifier, work) -> Segment:  # type: ignore[no-untyped-def]
        return mutate(original(verifier, work), len(work.entering))

    monkeypatch.setattr(NativeVerifier, "_segment", mutated)


def test_a_tree_shifted_by_one_position_is_detected(
    monkeypatch: pytest.MonkeyPatch, reference_model: PreTrainedModel
) -> None:
    def shift(segment: Segment, entering: int) -> Segment:
        positions = segment.positions.copy()
        positions[entering:] += 1
        return replace(segment, positions=positions)

    _mutate_segments(monkeypatch, shift)
    _assert_detected(reference_model)


def test_one_flipped_mask_bit_is_detected(
    monkeypatch: pytest.MonkeyPatch, reference_model: PreTrainedModel
) -> None:
    def flip(segment: Segment, entering: int) -> Segment:
        if segment.mask is None or len(segment.tokens) == entering:
            return segment
        mask = segment.mask.copy()
        mask[entering, entering - 1] ^= True  # the first node and the last committed token
        return replace(segment, mask=mask)

    _mutate_segments(monkeypatch, flip)
    _assert_detected(reference_model)


def test_noise_shifted_by_one_token_is_detected(
    monkeypatch: pytest.MonkeyPatch, reference_model: PreTrainedModel
) -> None:
    def shifted(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        return choose(logits, [replace(row, position=row.position + 1) for row in rows])

    monkeypatch.setattr("engine.verifiers.native.choose", shifted)
    _assert_detected(reference_model)


def test_a_requests_stream_is_the_same_with_any_drafter() -> None:
    """Exactly, also where the comparison with the reference would excuse a near-tie."""
    base = {**one_at_a_time(FACTORS)[0], "sampling": "1.0", "batch": "8"}
    streams = [
        [request.stream for request in serve_native({**base, **change}, Counter()).values()]
        for change in ({}, {"drafter": "none"}, {"shape": "tree", "drafter": "small"})
    ]
    assert streams[0] == streams[1] == streams[2]
    assert len(np.unique([stream[0] for stream in streams[0]])) > 1, "requests do not differ"
