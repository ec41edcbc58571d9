"""From the config to the drafters that it describes."""

import subprocess
import sys
from pathlib import Path

from actors.hosts.direct import make_lookup
from cluster.config import AppConfig
from cluster.placement import plan
from deployments.replica.host_specs import drafter_specs, limits_of, target_spec
from engine.drafters.lookup import SuffixDrafter
from engine.scopes import SHARED
from tests.cluster.test_config import write_zoo_head
from tests.engine.drafters.orders import Stream


def test_limits_arrive_as_the_config_says() -> None:
    limits = {"slow_drafter_s": 0.2, "suspect_host_s": 1.5, "probe_after_s": 9}
    config = AppConfig.model_validate({"limits": limits})
    arrived = limits_of(config)
    assert arrived.kv_tokens == config.target.kv_tokens
    assert arrived.model_dump() | config.limits.model_dump() == arrived.model_dump()


def test_the_suffix_drafter_keeps_as_many_tokens_as_configured() -> None:
    suffix = {"name": "suffix", "kind": "suffix", "past_tokens": 10}
    config = AppConfig.model_validate({"drafters": [suffix]})
    (spec,) = drafter_specs(config, plan(config))
    drafter = make_lookup(spec)
    assert isinstance(drafter, SuffixDrafter)
    for first in (100, 200, 300):
        drafter._past.add(SHARED, range(first, first + 5))
    known = [
        first
        for first in (100, 200, 300)
        if len(Stream(f"asks {first}", [first, first + 1]).draft(drafter, depth=1))
    ]
    assert known == [200, 300]


def test_heads_are_given_the_target_and_the_target_their_layers(
    tmp_path: Path,
) -> None:
    target = {"model": "zoo/target"}
    drafters = [write_zoo_head(tmp_path / "head"), {"name": "a", "model": "zoo/tiny"}]
    config = AppConfig.model_validate({"target": target, "drafters": drafters})
    head, model = drafter_specs(config, plan(config))
    assert head.target == target_spec(config, plan(config)).checkpoint
    assert target_spec(config, plan(config)).feature_layers == (1, 2, 3)
    assert model.target is None


def test_only_heads_keep_as_many_tokens_as_the_target_by_default(tmp_path: Path) -> None:
    head, model = write_zoo_head(tmp_path / "head"), {"name": "a", "model": "zoo/tiny"}
    target = {"model": "zoo/target", "kv_tokens": 70_000}
    config = AppConfig.model_validate({"target": target, "drafters": [head, model]})
    assert [spec.kv_tokens for spec in drafter_specs(config, plan(config))] == [70_000, 32_768]


def test_a_replica_imports_no_model_code_itself() -> None:
    """Which takes seconds of its start, and its actors import it anyway."""
    modules = "deployments.replica.host_specs, deployments.replica.service"
    heavy = {"torch", "transformers", "scipy.optimize"}
    check = f"import sys, {modules}; print({heavy} & {{*sys.modules}})"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
