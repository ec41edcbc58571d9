"""The simulator predicts what the zoo really does in this process."""

from pathlib import Path

import torch

from actors.fleet import load
from actors.specs import TargetSpec
from benchmarks.local import KV_TOKENS, drafter
from benchmarks.requests import mixed_requests
from benchmarks.simulator.reality import compare
from cluster.zoo.paths import TARGET, model_path

MOST_OFF = 0.25
ATTEMPTS = 3
"""Between recording and serving a shared machine may change its pace; one quiet attempt will do."""


def test_predictions_are_within_a_quarter_of_reality(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    target = TargetSpec(model_path(TARGET), torch.float32, KV_TOKENS)
    fleet = load(target, [drafter("tiny"), drafter("ngram")], tmp_path)
    recorded, requests = mixed_requests(18, seed=2), mixed_requests(18)
    off = []
    for _ in range(ATTEMPTS):
        records = compare(fleet, recorded, requests, [4])
        off.append({one.name: one.ratio for one in records if abs((one.ratio or 0) - 1) > MOST_OFF})
        if not off[-1]:
            return
    raise AssertionError(off)
