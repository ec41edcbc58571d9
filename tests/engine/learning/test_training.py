"""A head that learns is judged before it has learned, as it drafts, and drafts as it learned."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.eagle3_head import Eagle3Head
from engine.learning import training
from engine.learning.lessons import Lesson
from engine.learning.training import DEPTH, Learner, agreements
from engine.learning.versions import Version, packed
from engine.sampling.params import SamplingParams
from policies.learning.judging import Agreement, ratio
from tests.checkpoints import VOCAB
from tests.engine.drafters.eagle3_heads import (
    HIDDEN,
    LAYERS,
    attention_biases,
    config,
    random_weights,
    target_ids,
    write_head,
)
from tests.engine.drafters.test_eagle3 import FedStream

PROMPT = 6
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(autouse=True)
def _fp32_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So small a head takes twenty times as long on threads that share their cores."""
    monkeypatch.setattr(training, "has_bf16_products", lambda: False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def lessons(count: int, length: int = 40, seed: int = 0) -> list[Lesson]:
    """Each goes round in a dozen tokens, which can be learned."""
    ids, random = target_ids(), np.random.default_rng(seed)
    made = []
    for _ in range(count):
        tokens = ids[(int(random.integers(12)) + np.arange(length)) % 12].tolist()
        features = random.normal(size=(length - 1, len(LAYERS) * HIDDEN)).astype(np.float32)
        made.append(Lesson(tokens, PROMPT, features))
    return made


def trainable(path: Path) -> Eagle3Head:
    return Eagle3Head.load(path, "cpu", torch.float32, trainable=True)


def as_served(drafter: Eagle3Drafter, name: str, lesson: Lesson) -> Agreement:
    """What the drafter's own greedy chains achieve where the text is what the target accepts."""
    tokens = [*lesson.tokens]
    stream = FedStream(name, tokens[: PROMPT + 1], GREEDY, 0)
    stream.prompt_len, stream.features = PROMPT, lesson.features
    forwards = 0
    while (at := len(stream.committed)) < len(tokens):
        chain = stream.draft(drafter, DEPTH).tokens.tolist()
        right = 0
        while right < DEPTH and tokens[at + right : at + right + 1] == [chain[right]]:
            right += 1
        stream.committed.extend(tokens[at : at + right + 1])
        forwards += 1
    return Agreement(len(tokens) - PROMPT - 1, forwards)


@pytest.mark.parametrize("changes", [{}, {"norm_before_residual": False}], ids=["usual", "other"])
def test_a_head_is_judged_by_what_it_drafts_and_drafts_what_it_learned(
    changes: dict[str, bool], tmp_path: Path
) -> None:
    settings = config(**changes)
    settings["transformer_layer_config"]["attention_bias"] = True
    path = write_head(tmp_path, random_weights() | attention_biases(), settings)
    learner = Learner(trainable(path), memory_tokens=4096)
    first = learner.learn(lessons(16))
    assert [served for served, _ in first] == [candidate for _, candidate in first]
    for step in range(1, 40):
        last = learner.learn(lessons(16, seed=step))
    before, after = (ratio(pair[which] for pair in last) for which in (0, 1))
    assert after > 1.2 * before

    served = Eagle3Drafter(
        "head", Eagle3Head.load(path, "cpu", torch.float32), kv_tokens=4096, target_vocab_size=VOCAB
    )
    some = lessons(4, seed=99)
    frozen = trainable(path)
    assert [as_served(served, f"{n}", one) for n, one in enumerate(some)] == agreements(
        frozen, some
    )
    served.renew(packed(Version(learner.weights(), {"version": 1})))
    frozen_again = trainable(path)
    training.load_learned(frozen_again, learner.weights())
    achieved = [as_served(served, f"again {n}", one) for n, one in enumerate(some)]
    assert achieved == agreements(frozen_again, some)
    assert ratio(achieved) > 1.2 * ratio(agreements(frozen, some))


def test_nothing_is_learned_where_there_is_nothing_to_learn(tmp_path: Path) -> None:
    """Tokens outside of the head's vocabulary, and states that have overflowed."""
    learner = Learner(trainable(write_head(tmp_path, random_weights())), memory_tokens=4096)
    before = learner.weights()
    outside = next(token for token in range(VOCAB) if token not in target_ids())
    (usual,) = lessons(1)
    learner.learn([usual._replace(tokens=[outside] * len(usual.tokens))])
    learner.learn([usual._replace(features=np.full_like(usual.features, np.inf))])
    assert all(torch.equal(weight, before[name]) for name, weight in learner.weights().items())
