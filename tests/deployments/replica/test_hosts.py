"""From the config to the drafters that it describes."""

from pathlib import Path

from actors.hosts.direct import make_lookup
from cluster.config import AppConfig
from deployments.replica.hosts import limits_of
from engine.drafters.lookup import SuffixDrafter
from engine.scopes import SHARED
from tests.cluster.test_config import write_zoo_head
from tests.engine.drafters.orders import Stream


def test_limits_arrive_as_the_config_says() -> None:
    limits = {"slow_drafter_s": 0.2}
    config = AppConfig.model_validate({"limits": limits})
    arrived = limits_of(config)
    assert arrived.kv_tokens == config.target.kv_tokens
    assert arrived.model_dump() | config.limits.model_dump() == arrived.model_dump()


def test_the_suffix_drafter_keeps_as_many_tokens_as_configured() -> None:
    suffix = {"name": "suffix", "kind": "suffix", "past_tokens": 10}
    config = AppConfig.model_validate({"drafters": [suffix]})
    drafter = make_lookup(config.drafters[0])
    assert isinstance(drafter, SuffixDrafter)
    for first in (100, 200, 300):
        drafter.past.add(SHARED, range(first, first + 5))
    known = [
        first
        for first in (100, 200, 300)
        if len(Stream(f"asks {first}", [first, first + 1]).draft(drafter, depth=1))
    ]
    assert known == [200, 300]


def test_heads_and_copies_keep_as_many_tokens_as_the_target_by_default(tmp_path: Path) -> None:
    head, copy = write_zoo_head(tmp_path / "head"), {"name": "copy", "kind": "quantized"}
    target = {"model": "zoo/target", "kv_tokens": 70_000}
    drafters = [head, copy, {"name": "a", "model": "zoo/tiny"}]
    config = AppConfig.model_validate({"target": target, "drafters": drafters})
    kept = [drafter.kv_capacity(config.target) for drafter in config.drafters]
    assert kept == [70_000, 70_000, 32_768]
