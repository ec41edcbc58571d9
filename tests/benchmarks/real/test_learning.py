"""The curve of a head that learns: lookups and both heads are judged on the same requests."""

from pathlib import Path

import pytest
import torch

from benchmarks.real import learning
from benchmarks.real.learning import Answered, records_of, run_order
from engine.learning import training
from policies.learning.judging import ratio
from tests.checkpoints import VOCAB
from tests.engine.drafters.eagle3_heads import random_weights, write_head
from tests.engine.learning.test_training import lessons, trainable


def test_what_was_learned_and_what_was_seen_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "_STEP_TOKENS", 256)
    monkeypatch.setattr(training, "has_bf16_products", lambda: False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    stream = [Answered("counting", one) for one in lessons(200)]
    seen, learner, spent_s = run_order(
        trainable(write_head(tmp_path, random_weights())), stream, VOCAB
    )
    torch.set_num_threads(threads)
    assert len(seen) == len(stream)
    assert learner.tokens == sum(one.lesson.answered for one in stream)
    assert spent_s > 0
    last = seen[-50:]
    assert {one.frozen.tokens for one in last} == {one.lookup.tokens for one in last}
    assert ratio(one.learning for one in last) > 1.05 * ratio(one.frozen for one in last)
    assert ratio(one.lookup for one in last) > 4  # all of it was seen before
    frozen, learned, _ = records_of("name", last)
    assert learned.reference == frozen.value
