"""`python -m cluster.plan`: what it plans is served, ranks as it must, and says what is wrong."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import check
from cluster.config.drafter_kinds import LOOKUPS
from cluster.plan import gpus
from cluster.plan.__main__ import main
from cluster.plan.acceptance import Fleet, Text, of_lookup
from cluster.plan.candidates import Option, Planned, candidates
from cluster.plan.gpus import GPUS, described
from cluster.plan.load import traced, usual
from cluster.plan.runs import outcome
from policies.request import Slo
from tests.cluster.checkpoints import write_models
from tests.smollm2 import needs_smollm2

SHORT = ["--clients", "8"]
ALL_LOOKUPS = " + ".join(LOOKUPS)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


def plan(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """All candidates, best first; the config is `folder`/plan.yaml."""
    files = ["--output", str(folder / "plan.yaml"), "--json", str(folder / "plan.json")]
    assert main([*arguments, *files]) == 0
    found: list[dict[str, Any]] = json.loads((folder / "plan.json").read_text())
    return found


@pytest.mark.parametrize(
    ("model", "machines", "others", "nodes"),
    [
        ("Qwen3-8B", "1xH100", ["--drafter", "Qwen3-0.6B"], ["GPU=1,gpu_memory=80GB"]),
        (
            "Qwen3-8B",
            "2xL40S",
            ["--head", "Qwen3-8B-speculator.eagle3=0.75", "--slo", "50"],
            ["GPU=2,gpu_memory=48GB"],
        ),
        (
            "Qwen3-32B",
            "4xH100,2xL4",
            ["--drafter", "Qwen3-0.6B=0.6", "--slo", "40"],
            [
                "GPU=4,gpu_memory=80GB,accelerator_type:H100=1",
                "GPU=2,gpu_memory=24GB,accelerator_type:L4=1",
            ],
        ),
        ("Llama-3.3-70B-Instruct", "8xH100", [], ["GPU=8,gpu_memory=80GB"]),
    ],
)
def test_a_check_accepts_the_planned_config(
    model: str,
    machines: str,
    others: Sequence[str],
    nodes: Sequence[str],
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Models like those of the recipes, on their GPUs."""
    known = {file.name for file in models.iterdir()}
    here = [str(models / one) if one.partition("=")[0] in known else one for one in others]
    found = plan(tmp_path, str(models / model), "--gpus", machines, *here, *SHORT)
    printed = capsys.readouterr().out
    assert "tokens/s" in printed
    assert "`-> " in printed
    for drafter in others[1::2][:1]:
        assert f"{ALL_LOOKUPS} + {drafter.partition('=')[0]}: " in printed
    cluster = [option for node in nodes for option in ("--node", f"CPU=64,memory=1000GB,{node}")]
    assert check.main([str(tmp_path / "plan.yaml"), *cluster]) == 0
    (application,) = yaml.safe_load((tmp_path / "plan.yaml").read_text())["applications"]
    assert application["args"] == found[0]["args"]


def test_more_bandwidth_and_more_acceptance_are_not_slower(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def best(rate: float, acceptance: float) -> Mapping[str, float]:
        faster = replace(GPUS["H100"].gpu, bandwidth=rate * GPUS["H100"].gpu.bandwidth)
        monkeypatch.setitem(gpus.GPUS, "H100", replace(GPUS["H100"], gpu=faster))
        drafter = f"{models / 'Qwen3-0.6B'}={acceptance}"
        found = plan(
            tmp_path, str(models / "Qwen3-8B"), "--gpus", "1xH100", "--drafter", drafter, *SHORT
        )
        monkeypatch.undo()
        return {one["name"].partition(": ")[2]: one["goodput"] for one in found}

    slow, fast, better = best(1, 0.5), best(2, 0.5), best(1, 0.9)
    assert slow.keys() == fast.keys() == better.keys()
    assert all(fast[name] > slow[name] for name in slow)
    beside_lookups = f"{ALL_LOOKUPS} + Qwen3-0.6B"
    assert better[beside_lookups] > slow[beside_lookups]
    assert better["no drafts"] == slow["no drafts"]


def test_a_thousand_gpus_are_as_many_replicas(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(models / "Qwen3-8B")
    one = plan(tmp_path, model, "--gpus", "1xH100", "--clients", "2")
    many = plan(tmp_path, model, "--gpus", "1024xH100", "--clients", "2048")
    same = {found["name"].replace("1024 replicas", "1 replica"): found for found in many}
    for found in one:
        assert same[found["name"]]["goodput"] == pytest.approx(1024 * found["goodput"])
        assert same[found["name"]]["dollars"] == pytest.approx(found["dollars"])
    assert "verdicts a second pass the one ingress" in capsys.readouterr().out
    (application,) = yaml.safe_load((tmp_path / "plan.yaml").read_text())["applications"]
    assert application["args"]["scaling"]["min_replicas"] == many[0]["replicas"]


def test_requests_are_held_back_for_an_slo_as_when_they_are_served(
    models: Path, tmp_path: Path
) -> None:
    """All at once they would miss it."""
    machine = ("--gpus", "1xL40S", "--clients", "32", "--slo", "25")
    best = plan(tmp_path, str(models / "Qwen3-8B"), *machine)[0]
    assert best["attainment"] > 0.5


def test_replicas_with_fewer_clients_than_others_count_for_less(
    models: Path, tmp_path: Path
) -> None:
    """Three clients on two replicas: one replica has two of them."""
    asked = (str(models / "Qwen3-8B"), "--gpus", "2xH100", "--clients")
    three, four = ({one["name"]: one for one in plan(tmp_path, *asked, n)} for n in ("3", "4"))
    name = "2 replicas of 1 H100: no drafts"
    assert three[name]["goodput"] == pytest.approx(0.75 * four[name]["goodput"])


def test_a_layout_whose_kv_holds_no_whole_request_is_out(models: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"prompt_tokens": 38000, "output_tokens": 100}')
    machines = ("--gpus", "1xL4,1xH100", "--trace", str(trace), "--clients", "1")
    found = plan(tmp_path, str(models / "Qwen3-8B"), *machines)
    assert {one["name"].partition(":")[0] for one in found} == {"1 replica of 1 H100"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/no/such/model"], "neither a directory with a Hugging Face checkpoint"),
        (["MODEL", "--gpus", "4xH1000"], "--gpus: there is no H1000 in the table, which has V100"),
        (["MODEL", "--gpus", "four"], "--gpus: 'four' is not COUNTxTYPE, as in 4xH100,2xL4"),
        (
            ["MODEL", "--gpus", "1xL4", "--price", "L4=free"],
            "--price: 'L4=free' is not TYPE=DOLLARS",
        ),
        (
            ["MODEL", "--gpus", "1xL4", "--head", "MODEL=2"],
            "--head: '2' is no share between 0 and 1",
        ),
        (["MODEL", "--gpus", "1xL4", "--trace", "none.csv"], "--trace: none.csv cannot be read"),
        (["LARGE", "--gpus", "1xL4"], "141.1 GB leave no room for KV of 4,096 tokens on 1 x 24"),
        (["BAD", "--gpus", "1xL4"], "has no hidden_size: is it a causal LM's?"),
    ],
)
def test_what_is_wrong_is_named(
    arguments: Sequence[str],
    said: str,
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 10, "max_position_embeddings": 64}')
    named = {
        "MODEL": str(models / "Qwen3-8B"),
        "LARGE": str(models / "Llama-3.3-70B-Instruct"),
        "BAD": str(tmp_path),
    }
    filled = [
        word.replace(name, path, 1) if word.startswith(name) else word
        for word in arguments
        for name, path in [next(((n, p) for n, p in named.items() if word.startswith(n)), ("", ""))]
    ]
    assert main([*filled, "--output", str(tmp_path / "plan.yaml")]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "plan.yaml").exists()


def test_a_model_of_the_hub_that_cannot_be_fetched_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["nobody/never-fetched", "--gpus", "1xH100"]) == 1
    error = capsys.readouterr().err
    assert "HF_HUB_OFFLINE is set" in error
    assert "python -m cluster.fetch nobody/never-fetched" in error


def test_a_drafter_of_another_family_is_out_with_the_reason(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(models / "Llama-3.2-1B-Instruct")
    plan(tmp_path, str(models / "Qwen3-8B"), "--gpus", "1xH100", "--drafter", other, *SHORT)
    line = next(x for x in capsys.readouterr().out.splitlines() if "Llama-3.2-1B-Instruct: " in x)
    assert "out, drafters.2.model: " in line


def test_gpus_of_this_machine_are_found_with_their_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = ["NVIDIA A100-SXM4-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA L40S", "Tesla V100-PCIE"]
    for number, model in enumerate(printed):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
    monkeypatch.setattr(gpus, "_AS_PRINTED", tmp_path)
    assert described(None, []).gpus == {"A100-40G": 1, "A100": 1, "L40S": 1, "V100": 1}


def test_lookups_are_replayed_on_the_texts_of_a_trace(tmp_path: Path) -> None:
    """A text that repeats itself is drafted, one that does not is not."""
    again, anew = [7, 8, 9, 10, 11] * 20, list(range(100, 200))
    assert of_lookup("ngram", [Text([1, 2, 3], again)]).acceptance > 0.8
    assert of_lookup("ngram", [Text([1, 2, 3], anew)]).acceptance == 0.0
    file = tmp_path / "trace.jsonl"
    rows = [
        {"arrival_s": 0.5, "prompt": "three words here", "output": [1, 2]},
        {"arrival_s": 0.0, "prompt_tokens": 5, "output_tokens": 6},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    load = traced(file, lambda text: [0] * len(text.split()), Slo(), 2048, None)
    assert [(one.prompt_tokens, one.output_tokens) for one in load.arrivals] == [(5, 6), (3, 2)]
    assert load.texts == [Text([0, 0, 0], [1, 2])]
    assert [len(load.share(replicas)[0]) for replicas in (1, 2)] == [2, 1]
    file.write_text('{"prompt_tokens": 2000, "output_tokens": 10}')
    (long,) = traced(file, lambda text: [0], Slo(), 2048, 1).arrivals
    assert (long.prompt_tokens, long.output_tokens) == (2000, 10), "it fits: nothing is cut"
    never = '{"arrival_s": NaN, "prompt_tokens": 1, "output_tokens": 1}'
    for bad in ('{"prompt": "a"}', "[]", "{", '{"prompt_tokens": 0, "output_tokens": 1}', never):
        file.write_text(bad)
        with pytest.raises(ValueError, match=r"--trace: .*trace.jsonl"):
            traced(file, lambda text: [0], Slo(), 2048, None)


def test_lookups_that_agree_are_not_counted_twice(models: Path) -> None:
    lookup, machines = of_lookup("ngram", []), described("1xH100", [])
    asked = Planned(str(models / "Qwen3-8B"), machines, 8, None, None, 4096)
    fleets = [Fleet({name: lookup for name in LOOKUPS[:count]}) for count in (1, 2)]
    one, both = (
        outcome(option, usual(8, Slo(), 4096), machines)
        for option in candidates(asked, fleets)
        if isinstance(option, Option)
    )
    assert 1 < both.tokens_per_round == one.tokens_per_round


@needs_smollm2
def test_this_machine_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real default model, loaded and timed: worth its minute, for nothing else runs it."""
    monkeypatch.setattr("cluster.plan.candidates.find_spec", lambda name: None)  # vLLM: a minute
    found = plan(tmp_path, "SmolLM2-135M-Instruct", "--clients", "1")
    layouts = {one["name"].partition(": ")[0] for one in found}
    assert layouts == {"native, as in the file", "native, float32"}
    assert found[0]["args"]["target"].get("quantize") is None
    assert check.main([str(tmp_path / "plan.yaml")]) == 0
    assert "copy: out" in capsys.readouterr().out
