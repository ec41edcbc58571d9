"""`python -m cluster.check`: the plan that it prints, and what it says is missing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.built_in_models import model_path
from cluster.check import main
from cluster.config import AppConfig
from cluster.fitting import Node, missing, parse_node
from tests.cluster.checkpoints import write
from tests.cluster.test_config import write_zoo_head
from tests.other_tokenizer import write_renamed

TINY = {"name": "tiny", "model": "zoo/tiny"}
TWO_GPUS = {"CPU": 8.0, "GPU": 2.0, "memory": 64e9}
TWO_RANKS = {"backend": "vllm", "gpus": 1, "tensor_parallel": 2}
THREE_REPLICAS = {"target": {"gpus": 1}, "scaling": {"max_replicas": 3}}
TWO_TENANTS = {"api_keys": {"a": "one", "b": "two"}}


def serve_config(folder: Path, args: dict[str, Any]) -> str:
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"name": "mine", "args": args}]}))
    return str(path)


def rows(table: str) -> dict[str, list[str]]:
    lines = [line.split() for line in table.splitlines()[2:] if line]
    return {cells[0]: cells[1:] for cells in lines}


def test_a_note_says_how_many_tokens_a_drafter_with_another_tokenizer_shares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renamed = write_renamed("tiny", tmp_path / "renamed", kept=0.5)
    drafters = [TINY, {"name": "half", "model": str(renamed)}]
    assert main([serve_config(tmp_path, {"drafters": drafters}), "--node", "CPU=8"]) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if "tokenizer" in line]
    assert note.startswith(f"note  drafters.1: {renamed} has another tokenizer")
    assert "the 1,026 of the target's 2,048 tokens" in note


def test_weights_without_a_kernel_on_this_processor_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_path("target"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    file = serve_config(tmp_path, {"target": {"model": str(folder), "backend": "vllm"}})
    monkeypatch.setattr("cluster.check.processor_flags", lambda: {"avx2"})
    assert main([file]) == 1
    assert "processor: target.model: this processor lacks AVX-512" in capsys.readouterr().err
    assert main([file, "--node", "CPU=8"]) == 0, "another one may have it"


def test_what_learning_takes_is_asked_of_the_nodes(tmp_path: Path) -> None:
    """Three layers of the target in float32 for each token of a lesson."""
    head = write_zoo_head(tmp_path / "head")
    width = AppConfig().target.architecture().hidden_size

    def lacking(tokens: int) -> list[str]:
        drafters = [{**head, "learn": {"memory_tokens": tokens}}]
        return missing(AppConfig.model_validate({"drafters": drafters}), [TWO_GPUS])

    assert lacking(2048) == []
    (line,) = lacking(int(64e9 / (3 * width * 4)))
    assert line.startswith("memory: trainer needs memory 6")


def test_the_table_shows_every_process_and_what_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A known model: 1000 parameters; a token takes 2·4 layers·2 heads·8 = 128 numbers of KV."""
    model = write(
        tmp_path / "model",
        1_000_000,
        vocab_size=2048,
        max_position_embeddings=2048,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    target = {"model": str(model), "dtype": "bfloat16", "threads": 3}
    target |= {"backend": "vllm", "tensor_parallel": 2}
    args = {
        "target": target | {"kv_tokens": 10_000},
        "drafters": [
            {"name": "a", "model": str(model), "kv_tokens": 20_000, "instances": 2},
            {"name": "ngram", "kind": "ngram"},
            {"name": "copy", "kind": "quantized", "quantize": "int8", "kv_tokens": 10_000},
        ],
    }
    node = "CPU=16,memory=8GB"
    assert main([serve_config(tmp_path, args), "--node", node]) == 0
    table = rows(capsys.readouterr().out)
    # bundle, GPU, CPU, threads, weights, KV, memory; the bfloat16 target, and float32 drafters.
    assert table["replica"] == ["0", "0", "0.05", "1", "0.0", "0.0", "600.0"]
    assert table["verifier"] == ["0", "0", "0.05", "6", "2.0", "2.6", "604.6"]
    assert table["a/0"] == table["a/1"] == ["0", "0", "0.05", "1", "4.0", "10.2", "614.2"]
    # 4 bytes a weight while it is loaded and 8.5 bits after; keys and values of 2 bytes.
    assert table["copy"] == ["0", "0", "0.05", "1", "5.1", "2.6", "607.6"]
    assert table["sum"] == ["0", "0.25", "10", "15.1", "25.6", "3,040.7"]
    assert "note" not in table


def test_a_bad_field_and_a_bad_file_end_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([serve_config(tmp_path, {"target": {"dtype": "int8"}})]) == 1
    assert capsys.readouterr().err.startswith("mine: target.dtype: ")
    for text in ("[", "a: 1", "applications: []", "applications: [{}]"):
        (tmp_path / "bad.yaml").write_text(text)
        assert main([str(tmp_path / "bad.yaml")]) == 1
        assert "bad.yaml" in capsys.readouterr().err
    assert main([str(tmp_path / "none.yaml")]) == 1


def test_applications_of_others_are_left_to_them_and_equal_names_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.yaml"
    mine = {"name": "mine", "import_path": "deployments.app:build", "args": {}}
    other = {"name": "other", "import_path": "other:app", "args": {"color": "red"}}
    file.write_text(yaml.safe_dump({"applications": [other, mine]}))
    assert main([str(file)]) == 0
    file.write_text(yaml.safe_dump({"applications": [other]}))
    assert main([str(file)]) == 1
    bad = {**mine, "args": {"target": {"dtype": "int8"}}}
    file.write_text(yaml.safe_dump({"applications": [bad, mine]}))
    assert main([str(file)]) == 1
    assert "two have one name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "nodes", "expected"),
    [
        ({"target": TWO_RANKS}, [TWO_GPUS], None),
        (
            {"target": TWO_RANKS},
            [TWO_GPUS | {"GPU": 1.0}] * 2,
            "GPU: verifier needs GPU 2 on one node, and none has more left than GPU 1",
        ),
        (
            {"target": {"gpus": 3}},
            [{"CPU": 8.0}],
            "GPU: verifier needs GPU 3 on one node, and none has more left than GPU 0",
        ),
        ({"target": {"cpus": 9}}, [TWO_GPUS], "CPU: replica, verifier needs CPU 9.05 on one node"),
        ({"target": {"kv_tokens": 10**9}}, [TWO_GPUS], "memory: replica, verifier needs"),
        ({"target": {"kv_tokens": 10**9}}, [{"CPU": 8.0}], None),
        (
            {"target": {"gpus": 1}, "scaling": {"min_replicas": 3, "max_replicas": 3}},
            [TWO_GPUS],
            "GPU: verifier needs GPU 1 on one node, and none has more left than GPU 0",
        ),
        (
            {"target": {"gpus": 1, "accelerator": "H100"}},
            [TWO_GPUS | {"accelerator_type:L4": 1.0}],
            "accelerator_type:H100: verifier needs accelerator_type:H100 1 on one node",
        ),
        (
            # Each resource would do by itself, but the CPUs are on the other node.
            {"target": {"gpus": 2, "cpus": 4}},
            [{"CPU": 1.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 0.0}],
            "CPU, GPU: verifier needs CPU 4, GPU 2 on one node, and none has all of it left",
        ),
        (
            {"target": {"gpus": 2}, "drafters": [TINY | {"gpus": 1, "instances": 2}]},
            [TWO_GPUS, TWO_GPUS],
            None,
        ),
        (
            # Four GPUs in all, but halves of two do not make the two of one node.
            {"target": {"gpus": 2}, "drafters": [TINY | {"gpus": 2}]},
            [TWO_GPUS, TWO_GPUS | {"GPU": 1.0}, TWO_GPUS | {"GPU": 1.0}],
            "GPU: tiny needs GPU 2 on one node, and none has more left than GPU 1",
        ),
        (
            # The first one is the head, where the ingress goes and nothing else has to.
            {},
            [TWO_GPUS | {"CPU": 0.0}, TWO_GPUS],
            "node:__internal_head__, CPU: ingress needs",
        ),
        ({}, [TWO_GPUS | {"CPU": 0.0}, TWO_GPUS | {"node:__internal_head__": 1.0}], None),
        (
            # A replica on the head would leave no room for the ingress, which comes first.
            {"target": {"cpus": 0.95}},
            [TWO_GPUS | {"CPU": 1.0}, TWO_GPUS | {"CPU": 1.0}],
            None,
        ),
        (
            {"target": {"gpus": 0.5, "kv_tokens": 3 * 10**6}},
            [TWO_GPUS | {"gpu_memory": 8e9}],
            "gpu_memory: verifier needs 6,",
        ),
        (
            {"target": {"gpus": 0.5, "kv_tokens": 3 * 10**6}},
            [TWO_GPUS | {"gpu_memory": 16e9}],
            None,
        ),
    ],
)
def test_what_does_not_fit_is_named(
    args: dict[str, Any], nodes: list[Node], expected: str | None
) -> None:
    lacking = missing(AppConfig.model_validate(args), nodes)
    if expected is None:
        assert lacking == []
    else:
        (line,) = lacking
        assert line.startswith(expected)


@pytest.mark.parametrize(
    ("args", "node", "note", "noted"),
    [
        ({"target": {"threads": 4}}, "CPU=4,memory=8GB", "5 threads on 4 cores", True),
        ({"target": {"threads": 4}}, "CPU=5,memory=8GB", "threads on", False),
        (THREE_REPLICAS, "CPU=8,GPU=2", "3 replicas need more nodes: GPU: verifier needs", True),
        (TWO_TENANTS | {"sharing": "all"}, "CPU=8", "in what lookups draft", True),
        (TWO_TENANTS | {"sharing": "tenant"}, "CPU=8", "in what lookups draft", False),
    ],
)
def test_what_a_check_lets_pass_is_noted(
    args: dict[str, Any],
    node: str,
    note: str,
    noted: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([serve_config(tmp_path, args), "--node", node]) == 0
    assert (note in capsys.readouterr().out) == noted


def test_a_node_is_stated_in_units() -> None:
    assert parse_node("CPU=8, GPU=2,memory=64GB,gpu_memory=80GiB,accelerator_type:L4=1") == {
        "CPU": 8,
        "GPU": 2,
        "memory": 64e9,
        "gpu_memory": 80 * 2**30,
        "accelerator_type:L4": 1,
    }
    for bad in ("CPU", "CPU=many", "memory=3XB"):
        with pytest.raises(ValueError, match="RESOURCE=AMOUNT"):
            parse_node(bad)


@pytest.mark.parametrize(
    ("user_config", "field"),
    [
        ({"schedule": {"name": "fcfs"}}, None),
        ({"scedule": {"name": "fcfs"}}, "policies.scedule: there is no such field"),
        ({"pipeline": {"mode": "fast"}}, "policies.pipeline.mode: "),
        (
            {"selection": {"name": "fixed", "options": {"drafter": "huge"}}},
            "policies.selection.options.drafter: no 'huge'",
        ),
    ],
)
def test_policies_for_the_running_application_are_checked_like_those_at_its_start(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    user_config: dict[str, Any],
    field: str | None,
) -> None:
    deployments = [{"name": "Ingress"}, {"name": "Replica", "user_config": user_config}]
    file = tmp_path / "serve.yaml"
    application = {"name": "mine", "args": {}, "deployments": deployments}
    file.write_text(yaml.safe_dump({"applications": [application]}))
    assert main([str(file), "--node", "CPU=4,memory=8GB"]) == (0 if field is None else 1)
    if field is not None:
        printed = capsys.readouterr().err
        assert printed.startswith(f"mine: user_config of Replica: {field}")
