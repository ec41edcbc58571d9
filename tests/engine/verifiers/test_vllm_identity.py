"""Speculation never changes the output on vLLM either: the suite of test_identity.py (grade F).

Instead of trees and swapped KV it has batches in two halves, each held while the other runs, and
requests that the host forgets midway.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.protocol import Failed, Missing, NoRoom, Verdict, VerifyOrder
from engine.sampling.sampler import Row, choose
from tests.engine.streams import DRAFTERS, Request, WrappedVerifier, check, reference_target, serve
from tests.engine.verifiers.backends import AMPLE, TIGHT, vllm
from tests.identity import Identity
from tests.pairwise import Case, covering, one_at_a_time

FACTORS = {
    "sampling": ("greedy", "0.7", "1.0", "top_p", "penalties", "schema", "mixed"),
    "drafter": (*DRAFTERS, "none"),
    "turns": ("whole", "halves"),
    "batch": ("3", "1", "8", "17"),
    "traffic": ("together", "joining"),
    "lane": ("kept", "switching"),
    "chunk": ("512", "7"),
    "prompts": ("own", "shared"),
    "memory": ("ample", "forgotten", "tight"),
}
CASES = {"/".join(case.values()): case for case in (*one_at_a_time(FACTORS), *covering(FACTORS))}


class Halves(WrappedVerifier):
    """Verifies a batch in two steps of vLLM; the requests of one are held in the other."""

    def verify(self, orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom | Failed]:
        answers: list[Verdict | Missing | NoRoom | Failed | None] = [None] * len(orders)
        for half in (0, 1):
            answers[half::2] = self._verifier.verify(orders[half::2])
        return [answer for answer in answers if answer is not None]


def serve_vllm(case: Case, seen: Counter[str]) -> dict[str, Request]:
    verifier = vllm(TIGHT if case["memory"] == "tight" else AMPLE)
    rounds = itertools.count(1)

    def after_round(name: str) -> None:
        # Rarely enough that a prompt in small chunks finishes its prefill.
        if case["memory"] == "forgotten" and next(rounds) % 31 == 0:
            verifier.forget([name])

    case = {**case, "shape": "chain"}
    turns: Any = Halves(verifier) if case["turns"] == "halves" else verifier
    requests = serve(case, turns, seen, after_round)
    blocks = verifier.blocks()
    assert blocks.used == 0, "a finished request still holds KV"
    assert blocks.free + blocks.cached == blocks.total
    return requests


@pytest.fixture(scope="module")
def identity() -> Iterator[Identity]:
    suite = Identity(reference_target())
    yield suite
    suite.finish()


@pytest.fixture(scope="module")
def seen() -> Iterator[Counter[str]]:
    counted: Counter[str] = Counter()
    yield counted
    events = ["pending", "Missing", "NoRoom"]
    events += [f"gained with {name}" for name in DRAFTERS]
    assert all(counted[event] for event in events), counted


@pytest.mark.parametrize("name", CASES)
def test_every_stream_equals_the_references(
    name: str, identity: Identity, seen: Counter[str]
) -> None:
    check(identity, list(serve_vllm(CASES[name], seen).values()))


@pytest.mark.parametrize("sampling", ["0.7", "penalties"])
def test_noise_shifted_by_one_token_is_detected(
    sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        return choose(logits, [replace(row, position=row.position + 1) for row in rows])

    monkeypatch.setattr("engine.verifiers.vllm.sampling.choose", shifted)
    requests = serve_vllm({**one_at_a_time(FACTORS)[0], "sampling": sampling}, Counter())
    with pytest.raises(AssertionError, match="the reference says"):
        check(Identity(reference_target()), list(requests.values()))


def test_a_requests_stream_is_the_same_with_any_drafter() -> None:
    """Exactly, also where the comparison with the reference would excuse a near-tie."""
    base = {**one_at_a_time(FACTORS)[0], "sampling": "1.0", "batch": "8"}
    streams = [
        [request.stream for request in serve_vllm({**base, **change}, Counter()).values()]
        for change in ({}, {"drafter": "none"}, {"drafter": "small", "turns": "halves"})
    ]
    assert streams[0] == streams[1] == streams[2]
    assert len({stream[0] for stream in streams[0]}) > 1, "requests do not differ"
