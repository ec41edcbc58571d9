"""What a check says of LoRA adapters before anything is loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.adapters import adapter_rank
from cluster.built_in_models import TARGET, model_path
from cluster.config import AppConfig, ValidationError, problems
from cluster.footprint import footprints
from cluster.placement import plan
from tests.adapters import write_adapter


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "mine"
    return write_adapter(folder, model_path(TARGET), seed=0, rank=9)


def problem(lora_modules: dict[str, str], **target: Any) -> str:
    given = {"model": "zoo/target", "backend": "vllm", "lora_modules": lora_modules, **target}
    with pytest.raises(ValidationError) as refused:
        AppConfig.model_validate({"target": given})
    (line,) = problems(refused.value)
    return line


def altered(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))


BROKEN: list[tuple[Callable[[Path], Any], str]] = [
    (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no adapter_model"),
    (lambda folder: altered(folder, use_dora=True), "is DoRA; only LoRA is supported"),
    (lambda folder: altered(folder, peft_type="IA3"), "is IA3; only LoRA is supported"),
    (lambda folder: altered(folder, modules_to_save=["lm_head"]), "has modules_to_save, which"),
    (lambda folder: altered(folder, init_lora_weights="pissa"), "has init_lora_weights, which"),
    (lambda folder: altered(folder, r="x"), "cannot be read"),
    (lambda folder: altered(folder, rank_pattern={"q_proj": 513}), "has rank 513, vLLM at most"),
]


@pytest.mark.parametrize(("breaks", "message"), BROKEN)
def test_a_folder_that_cannot_be_served_is_refused_by_name(
    breaks: Callable[[Path], Any], message: str, adapter: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(adapter, folder)
    breaks(folder)
    line = problem({"mine": str(folder)})
    assert line.startswith(f"target.lora_modules.mine: {folder}")
    assert message in line


def test_a_plan_counts_a_place_for_each_adapter_and_one_more(adapter: Path) -> None:
    def weights(**target: Any) -> int:
        given = {"model": "zoo/target", "backend": "vllm", "dtype": "bfloat16", **target}
        config = AppConfig.model_validate({"target": given})
        return footprints(config, plan(config))[1].weights_bytes

    # 4 layers of 256, 4 heads of 64 that share 2, and 768: by matrix its inputs and outputs.
    ends = 2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 768)
    both = {"one": str(adapter), "two": str(adapter)}
    assert weights(lora_modules=both) - weights() == 3 * 4 * 16 * ends * 2


def test_an_adapter_of_another_model_or_name_or_backend_is_refused(adapter: Path) -> None:
    assert adapter_rank(adapter) == 16
    given = {"model": "zoo/target", "backend": "vllm", "lora_modules": {"mine": str(adapter)}}
    assert AppConfig.model_validate({"target": given}).model_names == ("target", "mine")
    line = problem({"mine": str(adapter)}, model="zoo/small")
    assert line.startswith(f"target.lora_modules.mine: {adapter} was made for another model")
    assert problem({"target": str(adapter)}).startswith("target.lora_modules: target is the ")
    line = problem({"mine": str(adapter)}, backend="native")
    assert line.endswith("or set target.backend: vllm")
    assert "write the whole path" in problem({"mine": "adapters/mine"})
    assert problem({"": str(adapter)}).startswith("target.lora_modules.")
