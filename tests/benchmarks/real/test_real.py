"""The benchmark on real prompts, run on the zoo with a folder of few prompts."""

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.real.__main__ import main, real_requests
from benchmarks.real.contenders import servers, spindle_args
from benchmarks.real.contest import Contender, heats
from benchmarks.real.options import options_of
from benchmarks.real.prompts import CATEGORIES
from benchmarks.real.results import real_records
from benchmarks.real.spindle import Spindle
from cluster.built_in_models import TARGET, model_path
from cluster.config.drafter_kinds import LOOKUPS
from lab.zoo.head_model import TrainedHead

MODEL = f"zoo/{TARGET}"
MAX_TOKENS = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts of each category."""
    folder = tmp_path_factory.mktemp("data")
    named = ("writing", "coding", *CATEGORIES[1:-2])
    spec_bench = [
        {"category": category, "turns": [f"Explain {category} {number}.", "Shorter."]}
        for number in range(2)
        for category in named[number:]
    ]
    lines: dict[str, list[dict[str, Any]]] = {
        "spec_bench_questions": spec_bench,
        "gsm8k_questions": [{"question": f"What is {number} + 2?"} for number in range(2)],
        "human_eval_prompts": [{"prompt": f"def add_{number}(a):\n"} for number in range(2)],
    }
    for name, content in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))
    return folder


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained: what it drafts is hardly ever right."""
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_pretrained(model_path(TARGET), dtype=torch.float32)
    untrained = TrainedHead(target, torch.arange(0, target.config.vocab_size, 8))
    untrained.aux_layers = (1, 2, 3)
    path = tmp_path_factory.mktemp("heads") / "untrained"
    untrained.save(path, 3, MODEL)
    return path


def test_what_needs_a_head_is_left_out_or_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert not [name for name in options_of(None, []).contenders if "eagle3" in name]
    assert "vllm_eagle3_k3" in options_of(None, ["--head", "somewhere"]).contenders
    with pytest.raises(SystemExit):
        options_of(None, ["--contenders", "spindle_native_eagle3"])
    assert "spindle_native_eagle3 needs --head" in capsys.readouterr().err


def test_drafters_are_measured_on_the_engine(data: Path, head: Path, tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    other = tmp_path / "other"
    copytree(head, other)
    chosen = ["--model", MODEL, "--data", str(data), "--json", str(file)]
    chosen += ["--head", str(head), str(other), "--drafter", str(model_path("tiny"))]
    main(["--engine", *chosen, "--depths", "3", "--requests", "8", "--max-tokens", "24"])
    values = {record["name"]: record["value"] for record in json.loads(file.read_text())}
    for drafter in ("ngram", "suffix", "eagle3", "eagle3:other", "model"):
        name = f"real/engine/{drafter}/k3"
        per_forward = values[f"{name}/tokens_per_forward"]
        assert 1 <= per_forward <= 4
        assert (per_forward > 1) == (values[f"{name}/accepted/1"] > 0)
        assert values[f"{name}/draft_cpu_ms"] > 0
        assert f"{name}/gsm8k/tokens_per_forward" in values
        assert values["real/engine/in_hindsight/k3/tokens_per_forward"] >= per_forward
    assert values["real/engine/suffix/k3/tokens_per_forward"] > 1


def test_contenders_serve_the_prompts_in_turns(data: Path) -> None:
    checkpoint = model_path(TARGET)
    options = options_of(None, ["--data", str(data), "--max-tokens", str(MAX_TOKENS)])
    made = servers(MODEL, checkpoint, None, None, "float32")
    args = spindle_args("native", LOOKUPS, MODEL, None, "float32")
    # The planner drafts nothing where this machine's pace makes drafts a loss.
    fixed = {"speculation": {"name": "fixed"}}
    with closing(Contender("vllm", made["spindle_native_plain"])) as plain:
        others = {"spindle_native": partial(Spindle, {**args, "policies": fixed})}
        results = heats(plain, others, real_requests(options, checkpoint), [1], 1, lambda _: 8)
    values = {record.name: record.value for record in real_records(results, "real")}
    (turn,) = results["spindle_native", 1]
    assert turn.ours.lengths == turn.plain.lengths
    assert tuple(map(sum, turn.ours.rounds)) == turn.ours.lengths
    assert values["real/spindle_native/c1/tokens_per_round"] > 1
    assert "real/spindle_native/c1/humaneval/tokens_per_round" in values
    assert 0 < values["real/spindle_native/c1/accepted/1"] <= 1
    assert turn.ours.drafted > 0
    assert 0 < values["real/spindle_native/c1/acceptance"] < 1
    assert values["real/spindle_native/c1/draft_ms"] > 0


def test_a_head_named_by_a_relative_path_is_served() -> None:
    head = model_path("smollm2-general")
    relative = head.relative_to(Path.cwd())
    args = spindle_args("native", ["eagle3"], "zoo/target", relative, "float32")
    assert args["drafters"][0]["model"] == str(head)
