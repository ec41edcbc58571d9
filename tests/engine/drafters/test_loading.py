"""What a config names as a kind of drafter is what runs."""

import inspect
from pathlib import Path

import pytest

from cluster.built_in_models import model_path
from cluster.config import DrafterConfig
from cluster.config.drafter_kinds import DRAFTER_KINDS, drafter_kind
from engine.drafters.loading import load_model_drafter


@pytest.mark.parametrize("name", DRAFTER_KINDS)
def test_the_options_of_a_kind_are_config_fields_that_its_maker_takes(name: str) -> None:
    kind = drafter_kind(name)
    assert {*kind.options} <= {*DrafterConfig.model_fields}
    assert {*kind.options} <= {*inspect.signature(kind.maker()).parameters}


def test_a_drafter_that_was_measured_before_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, kv_tokens = "cpu", 2048
    drafter = load_model_drafter(
        "tiny",
        model_path("tiny"),
        dtype=None,
        device=device,
        kv_tokens=kv_tokens,
        target_vocab_size=2048,
        target=model_path("target"),
    )
    first = drafter.measure(tmp_path, 0.01)
    assert first.step.predict(100, 4) > 0
    monkeypatch.setattr(drafter.drafter, "draft", None)
    assert drafter.measure(tmp_path, 0.01) == first
