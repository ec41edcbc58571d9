"""What a config may say, and what every refusal names."""

import json
import re
import shutil
from datetime import date
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from cluster.built_in_models import model_path
from cluster.checkpoint_files import QUANTIZED
from cluster.checkpoints import architecture
from cluster.config import AppConfig, ValidationError, problems
from cluster.config.keys import resolved
from cluster.footprint import footprints
from cluster.placement import plan
from tests.cluster.checkpoints import write
from tests.other_tokenizer import write_renamed

TINY = {"name": "tiny", "model": "zoo/tiny"}
NGRAM = {"name": "ngram", "kind": "ngram"}
SUFFIX = {"name": "suffix", "kind": "suffix"}
COPY = {"name": "copy", "kind": "quantized"}
VLLM = {"backend": "vllm"}


def refused(args: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as error:
        AppConfig.model_validate(args)
    return list(problems(error.value))


def policy(kind: str, name: str, **options: Any) -> dict[str, Any]:
    return {"policies": {kind: {"name": name, "options": options}}}


def speculation(name: str, **options: Any) -> dict[str, Any]:
    return policy("speculation", name, **options)


@pytest.mark.parametrize(
    ("field", "args"),
    [
        ("targett", {"targett": {}}),
        ("target.model", {"target": {"model": "zoo/nothing"}}),
        ("target.model", {"target": {"model": "/no/such/folder"}}),
        ("target.dtype", {"target": {"dtype": "int8"}}),
        ("inflate_to: only zoo/target", {"target": {"model": "zoo/tiny", "inflate_to": 10**7}}),
        ("target.backend", {"target": {"backend": "sglang"}}),
        ("target.gpus", {"target": {"gpus": -1}}),
        ("target.gpus: 1.5 is more than one GPU", {"target": {"gpus": 1.5}}),
        ("target.threads", {"target": {"threads": 0}}),
        ("target.threads", {"target": {"threads": 2**63}}),
        ("target.kv_tokens", {"target": {"kv_tokens": 2**63}}),
        ("target.gpus", {"target": {"gpus": float("inf")}}),
        ("limits.max_batch", {"limits": {"max_batch": 2**31}}),
        ("limits.recovery_s", {"limits": {"recovery_s": 1e308}}),
        ("limits.stalled_s", {"limits": {"stalled_s": float("nan")}}),
        ("slo_classes.fast.tpot_ms", {"slo_classes": {"fast": {"tpot_ms": 1e-320}}}),
        ("policies.seed", {"policies": {"seed": -1}}),
        ("policies.seed", {"policies": {"seed": 2**64}}),
        ("engine_args: backend native", {"target": {"engine_args": {"a": 1}}}),
        ("accelerator: L4 without a GPU", {"target": {"accelerator": "L4"}}),
        (
            "placement: .* set actor",
            {"target": VLLM | {"placement": "inline", "tensor_parallel": 2}},
        ),
        ("threads: an inline model", {"target": {"placement": "inline", "threads": 2}}),
        (
            "target.tensor_parallel: 3 .* possible are 1, 2",
            {"target": VLLM | {"tensor_parallel": 3}},
        ),
        ("target.tensor_parallel: 4 ", {"target": VLLM | {"tensor_parallel": 4}}),
        ("tensor_parallel: .* backend: vllm", {"target": {"tensor_parallel": 2}}),
        ("target.kv_tokens: 1024 .* 2048", {"target": {"kv_tokens": 1024}}),
        ("drafters.0.model", {"drafters": [{"name": "a", "model": "zoo/nothing"}]}),
        ("drafters.0: model: ", {"drafters": [{"name": "a"}]}),
        ("drafters.0.name: 'off' is reserved", {"drafters": [TINY | {"name": "off"}]}),
        ("drafters.0.name", {"drafters": [TINY | {"name": "a/b"}]}),
        ("drafters.1: max_batch: ngram", {"drafters": [TINY, NGRAM | {"max_batch": 4}]}),
        ("drafters.0: past_tokens: .* not ngram", {"drafters": [NGRAM | {"past_tokens": 9}]}),
        ("drafters.0: past_tokens: .* not model", {"drafters": [TINY | {"past_tokens": 9}]}),
        ("drafters.0.past_tokens", {"drafters": [SUFFIX | {"past_tokens": -1}]}),
        ("past_outputs_folder: no drafter", {"past_outputs_folder": "/kept", "drafters": [NGRAM]}),
        ("past_outputs_folder: 'kept' ", {"past_outputs_folder": "kept", "drafters": [SUFFIX]}),
        ("drafters.0: quantize: .* not model", {"drafters": [TINY | {"quantize": "int8"}]}),
        ("drafters.0.quantize: ", {"drafters": [COPY | {"quantize": "none"}]}),
        ("model: quantized copies the target", {"drafters": [TINY | COPY]}),
        ("dtype: quantized copies the target", {"drafters": [COPY | {"dtype": "float32"}]}),
        (
            "drafters.0.kind: .* set target.quantize: none",
            {"target": {"quantize": "int8"}, "drafters": [COPY]},
        ),
        ("model: ngram runs no model", {"drafters": [NGRAM | {"model": "zoo/tiny"}]}),
        ("placement: ngram .* set inline", {"drafters": [NGRAM | {"placement": "actor"}]}),
        ("instances: ", {"drafters": [TINY | {"placement": "inline", "instances": 2}]}),
        ("drafters: two of them are named 'ngram'", {"drafters": [NGRAM] * 2}),
        (
            "drafters.gpus: .* 1.1 GPUs together",
            {
                "target": {"placement": "inline", "gpus": 1},
                "drafters": [TINY | {"placement": "inline", "gpus": 0.1}],
            },
        ),
        ("policies: selection: there is no 'best'", {"policies": {"selection": {"name": "best"}}}),
        ("speculation.planner: there is no option 'x'", speculation("planner", x=1)),
        ("speculation.options.max_depth", speculation("planner", max_depth="8")),
        ("speculation.options.shape.max_width", speculation("adaserve", shape={"max_width": 0.5})),
        ("policies.pipeline.mode", {"policies": {"pipeline": {"mode": "fastest"}}}),
        ("fairness.starve_after_s", {"policies": {"fairness": {"starve_after_s": "long"}}}),
        ("starve_after_s is above 0", {"policies": {"fairness": {"starve_after_s": nan}}}),
        ("policies.pipeline: parts", {"policies": {"pipeline": {"parts": 10**9}}}),
        ("switch_weight", policy("selection", "lbss", switch_weight=inf)),
        ("growth above 1", policy("schedule", "laps_sd", growth=nan)),
        ("timeout_s", policy("schedule", "self_ranked", timeout_s=nan)),
        ("max_depth", speculation("planner", max_depth=10**12)),
        ("max_width", speculation("planner", max_width=-1)),
        ("max_width", speculation("adaserve", shape={"max_width": 0})),
        ("most_for_slo", speculation("adaserve", most_for_slo=-1)),
        ("max_length", speculation("specserve", max_length=0)),
        ("speculation.options.length", speculation("fixed", length=-1)),
        ("selection.options", policy("selection", "fixed", drafter=date(2020, 1, 1))),
        (
            "policies.selection.options.drafter: ngram is a lookup",
            {"drafters": [TINY, NGRAM]} | policy("selection", "fixed", drafter="ngram"),
        ),
        (
            "policies.selection.options.drafter: no 'huge'; there are tiny",
            {"drafters": [TINY]} | policy("selection", "fixed", drafter="huge"),
        ),
        ("slo_classes.chat: ttft_ms or tpot_ms", {"slo_classes": {"chat": {}}}),
        ("slo_classes.chat.tpot_ms", {"slo_classes": {"chat": {"tpot_ms": 0}}}),
        ("limits: forward_tokens", {"limits": {"max_batch": 8, "forward_tokens": 4}}),
        ("limits.recovery_s", {"limits": {"recovery_s": 0}}),
        ("scaling: max_replicas", {"scaling": {"min_replicas": 2}}),
        ("api_keys.a", {"api_keys": {"a": ""}}),
        ("api_keys.a: after env:", {"api_keys": {"a": "env:MY KEY"}}),
        ("api_keys: a and b", {"api_keys": {"a": "k-secret", "b": "k-secret", "c": "other"}}),
        ("priority_for: 'b'", {"api_keys": {"a": "k-secret"}, "priority_for": ["a", "b"]}),
        ("limits.client_share", {"limits": {"client_share": 0}}),
        ("grpc.port", {"grpc": {"port": 0}}),
        ("log_format: there is no such field", {"log_format": "json"}),
    ],
)
def test_a_bad_config_names_its_field(field: str, args: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        AppConfig.model_validate(args)
    (problem,) = problems(refused.value)
    assert re.search(field, problem), problem
    assert "secret" not in str(refused.value)


def test_every_bad_field_has_a_line_and_nothing_else_has() -> None:
    """Defaults that follow from a bad field are not reported on top of it."""
    args = {"target": {"dtype": "int8"}, "drafters": [{"name": "a", "kind": "bigram"}], "x": 1}
    fields = [line.partition(":")[0] for line in refused(args)]
    assert fields == ["target.dtype", "drafters.0.kind", "x"]


def test_defaults_follow_from_what_is_said(tmp_path: Path) -> None:
    shutil.copytree(model_path("target"), tmp_path / "mine")
    config = AppConfig.model_validate(
        {"target": {"model": str(tmp_path / "mine")}, "drafters": [TINY, NGRAM]}
    )
    assert config.served_name == "mine"
    assert [drafter.placement for drafter in config.drafters] == ["actor", "inline"]
    assert AppConfig().served_name == "target"


def test_keys_stay_out_of_logs() -> None:
    assert "s3cret" not in repr(AppConfig.model_validate({"api_keys": {"a": "s3cret"}}))


def test_keys_are_read_from_the_environment_where_they_say_so() -> None:
    keys = {"a": "env:KEY_OF_A", "b": "plain"}
    config = AppConfig.model_validate({"api_keys": keys})
    assert config.api_keys == keys, "the config holds no more than it was given"
    environment = {"KEY_OF_A": "s3cret"}
    assert resolved("api_keys", config.api_keys, environment) == {"a": "s3cret", "b": "plain"}
    for unset in ({}, {"KEY_OF_A": ""}):
        with pytest.raises(ValueError, match=r"api_keys\.a: .* KEY_OF_A is not set"):
            resolved("api_keys", config.api_keys, unset)
    with pytest.raises(ValueError, match="api_keys: a and b have the same key"):
        resolved("api_keys", config.api_keys, {"KEY_OF_A": "plain"})


def test_policies_change_alone_and_are_checked_anew() -> None:
    config = AppConfig.model_validate(
        {"target": VLLM, "drafters": [TINY, NGRAM], "limits": {"max_batch": 4}}
    )
    changed = config.with_policies({"speculation": {"name": "specserve"}})
    assert changed.policies.speculation.name == "specserve"
    assert changed == config.model_copy(update={"policies": changed.policies})
    with pytest.raises(ValidationError, match="no 'huge'; there are tiny"):
        config.with_policies({"selection": {"name": "fixed", "options": {"drafter": "huge"}}})


def with_config(path: Path, **changes: Any) -> str:
    """A copy of the zoo's target whose config.json says something else."""
    shutil.copytree(model_path("target"), path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))
    return str(path)


def test_quantized_weights_are_refused_where_they_are_not_read(tmp_path: Path) -> None:
    quantized = with_config(tmp_path / "awq", quantization_config={"quant_method": "awq"})
    target = {"model": quantized}
    (line,) = refused({"target": target})
    assert "are quantized (awq), which backend native does not read" in line
    assert "target.backend: vllm" in line
    target_on_vllm = target | {"backend": "vllm"}
    AppConfig.model_validate({"target": target_on_vllm})
    (line,) = refused({"target": target_on_vllm | {"dtype": "float32"}})
    assert line.startswith("target.dtype: vLLM runs weights that are quantized")
    other = with_config(tmp_path / "bnb", quantization_config={"quant_method": "bitsandbytes"})
    (line,) = refused({"target": {"model": other, "backend": "vllm"}})
    assert line.startswith("target.model: vLLM has no kernel for a CPU")
    AppConfig.model_validate({"target": {"model": other, "backend": "vllm", "gpus": 1}})
    (line,) = refused({"target": target | {"backend": "vllm"}, "drafters": [COPY]})
    assert line.startswith("drafters.0.kind: quantized rounds floats")
    drafter = {"name": "small", "model": quantized}
    (line,) = refused({"target": {"model": "zoo/target"}, "drafters": [drafter]})
    assert line.startswith("drafters.0.model: the weights of")


def test_a_relative_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_config(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    (line,) = refused({"target": {"model": "mine"}})
    assert f"target.model: mine: write the whole path, {tmp_path / 'mine'}" in line


def test_vllms_own_limit_of_the_context_counts(tmp_path: Path) -> None:
    long = with_config(tmp_path / "long", max_position_embeddings=1_000_000)
    target = {"model": long, "backend": "vllm"}
    (line,) = refused({"target": target})
    assert line.startswith("target.kv_tokens")
    AppConfig.model_validate({"target": target | {"engine_args": {"max_model_len": 2048}}})


def test_sizes_that_a_config_leaves_to_its_class_are_the_classs(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    sizes = architecture(tmp_path)
    assert (sizes.hidden_size, sizes.num_hidden_layers) == (2560, 34)
    assert (sizes.vocab_size, sizes.head_dim) == (262_208, 256)


def test_a_drafter_with_another_vocabulary_needs_a_tokenizer_to_compare(tmp_path: Path) -> None:
    sizes = {
        "max_position_embeddings": 2048,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    other = write(tmp_path / "other", 300_000, vocab_size=2049, **sizes)
    (other / "tokenizer.json").unlink()
    with pytest.raises(ValidationError, match=r"drafters.1.model: .* has no tokenizer.json, by"):
        AppConfig.model_validate({"drafters": [TINY, {"name": "a", "model": str(other)}]})


def write_zoo_head(path: Path, **changes: Any) -> dict[str, Any]:
    """An EAGLE-3 head for zoo/target, as far as a config check reads it."""
    sizes = AppConfig().target.architecture()
    layer = {
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": 2048,
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    head = {"speculators_model_type": "eagle3", "target_hidden_size": sizes.hidden_size}
    head |= {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "transformer_layer_config": layer}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(head | changes))
    return {"name": "head", "kind": "eagle3", "model": str(path)}


@pytest.mark.parametrize(
    ("message", "changes", "target"),
    [
        ("layer 0, .* vllm .*backend: native", {"eagle_aux_hidden_state_layer_ids": [0, 2]}, VLLM),
        ("layers 1, 2, 4 .* has 4 layers", {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, {}),
        ("hidden states of 65", {"target_hidden_size": 65}, {}),
        ("no EAGLE-3 head", {"speculators_model_type": "dflash"}, {}),
        ("fc_norm: this variant", {"fc_norm": True}, {}),
    ],
)
def test_a_head_that_does_not_fit_the_target_is_refused(
    message: str, changes: dict[str, Any], target: dict[str, Any], tmp_path: Path
) -> None:
    head = write_zoo_head(tmp_path / "head", **changes)
    with pytest.raises(ValidationError, match=r"drafters\.0\.(kind|model): .*" + message):
        AppConfig.model_validate({"target": target, "drafters": [head]})


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (r"0\.learn: only kind eagle3 learns, not model", [{"kind": "model", "model": "zoo/tiny"}]),
        (r"1\.learn: another drafter learns", [{}, {"name": "other"}]),
        (r"0\.learn\.tenants: 'beta' has no key", [{"learn": {"tenants": ["beta"]}}]),
        (r"0\.learn\.share: ", [{"learn": {"share": 0}}]),
        (r"0\.learn\.gpus: 1\.5 is more than one GPU", [{"learn": {"gpus": 1.5}}]),
        (r"0\.learn\.folder: 'here' depends on where", [{"learn": {"folder": "here"}}]),
    ],
)
def test_learning_that_cannot_be_is_refused(
    problem: str, changes: list[dict[str, Any]], tmp_path: Path
) -> None:
    head = {**write_zoo_head(tmp_path / "head"), "learn": {}}
    args = {"drafters": [{**head, **some} for some in changes], "api_keys": {"alpha": "key"}}
    (line,) = refused(args)
    assert re.search(r"drafters\." + problem, line)


@pytest.mark.parametrize(
    ("keys", "named", "teaching"),
    [
        ([], [], {"", "alpha", "beta"}),
        (["alpha", "beta"], [], set()),
        (["alpha", "beta"], ["alpha"], {"alpha"}),
        (["alpha", "beta"], ["*"], {"", "alpha", "beta"}),
    ],
)
def test_with_keys_only_tenants_that_are_named_teach_a_head(
    keys: list[str], named: list[str], teaching: set[str], tmp_path: Path
) -> None:
    head = {**write_zoo_head(tmp_path / "head"), "learn": {"tenants": named}}
    args = {"drafters": [head], "api_keys": {tenant: f"key of {tenant}" for tenant in keys}}
    config = AppConfig.model_validate(args)
    assert {tenant for tenant in ("", "alpha", "beta") if config.may_teach(tenant)} == teaching
    assert not AppConfig().may_teach("alpha")


@pytest.mark.parametrize("reduced", [False, True], ids=["head", "a reduced vocabulary"])
def test_a_head_in_the_place_of_a_whole_model_is_refused(reduced: bool, tmp_path: Path) -> None:
    if reduced:
        shutil.copytree(model_path("tiny"), tmp_path / "head")
        file = tmp_path / "head" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"draft_vocab_size": 500}))
    else:
        write_zoo_head(tmp_path / "head")
    model = {"model": str(tmp_path / "head")}
    (line,) = refused({"drafters": [{"name": "head"} | model]})
    assert re.search(r"drafters\.0\.kind: .* is a head.* set eagle3", line)
    (line,) = refused({"target": model})
    assert re.search(r"target\.model: .* is a head.* choose a whole model", line)


def test_a_head_is_planned_with_its_own_sizes_and_what_it_takes_of_the_target(
    tmp_path: Path,
) -> None:
    head = write_zoo_head(tmp_path / "head", draft_vocab_size=500)
    file = Path(head["model"]) / "model.safetensors"
    config = AppConfig.model_validate({"drafters": [head | {"kv_tokens": 1000}]})

    def planned(weights: dict[str, tuple[int, int]]) -> tuple[int, int]:
        save_file({name: np.zeros(shape, np.float32) for name, shape in weights.items()}, file)
        (process,) = [one for one in footprints(config, plan(config)) if one.process == "head"]
        return process.weights_bytes, process.kv_bytes

    own = {"fc.weight": (64, 768)}
    output, embeddings = {"lm_head.weight": (500, 64)}, {"embed_tokens.weight": (2048, 64)}
    every = 4 * 64 * (768 + 500 + 2048), 1000 * 2 * 64 * 4
    assert planned(own) == planned(own | output) == planned(own | output | embeddings) == every


def test_a_model_that_shares_few_tokens_and_a_head_with_other_ids_are_refused(
    tmp_path: Path,
) -> None:
    half = write_renamed("tiny", tmp_path / "half", kept=0.5)
    AppConfig.model_validate({"drafters": [{"name": "a", "model": str(half)}]})
    few = write_renamed("tiny", tmp_path / "few", kept=0.02)
    with pytest.raises(ValidationError, match=r"drafters\.0\.model: .* shares 45 .* choose a"):
        AppConfig.model_validate({"drafters": [{"name": "a", "model": str(few)}]})
    head = write_zoo_head(tmp_path / "head")
    renamed = write_renamed("tiny", tmp_path / "renamed")
    shutil.copy(renamed / "tokenizer.json", head["model"])
    with pytest.raises(ValidationError, match=r"drafters\.0\.model: .* other ids than"):
        AppConfig.model_validate({"drafters": [head]})


def test_the_default_model_is_named_as_it_is_and_refused_where_it_was_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPINDLE_CACHE", str(tmp_path))
    args = {"target": {"model": "SmolLM2-135M-Instruct"}}
    (problem,) = refused(args)
    assert problem.startswith("target.model: SmolLM2-135M-Instruct is not on this machine")
    assert "`make model`" in problem
    assert "cluster/zoo.yaml" in problem
    shutil.copytree(model_path("target"), tmp_path / "SmolLM2-135M-Instruct")
    assert refused(args)  # an earlier version fetched it, without its own weights
    (tmp_path / "SmolLM2-135M-Instruct" / QUANTIZED).touch()
    config = AppConfig.model_validate(args)
    assert config.served_name == "SmolLM2-135M-Instruct"
    assert config.target.path() == tmp_path / "SmolLM2-135M-Instruct"


@pytest.mark.parametrize(
    ("target", "drafter", "apart"),
    [
        (0.9, 0.1, False),
        (1, 1, True),
        (1, 0.5, True),
        (0, 0.5, True),
        (0, 0, False),
    ],
)
def test_a_drafter_is_apart_unless_it_may_get_a_part_of_the_targets_gpu(
    target: float, drafter: float, apart: bool
) -> None:
    config = AppConfig.model_validate(
        {"target": {"gpus": target}, "drafters": [TINY | {"gpus": drafter}]}
    )
    assert config.drafters[0].is_apart_from(config.target) == apart
