"""Every topology in cluster/ is valid, and fits the machines that it is written for.

Recipes name real models on the hub, or /models/NAME. Here those are folders with the same headers
and no weights, so that everything but loading is checked: fields, vocabulary, heads per rank,
memory.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _get_ray_resources_from_group_spec
from ray.serve.schema import ServeDeploySchema

from cluster.built_in_models import smollm2_path
from cluster.check import read, table
from cluster.checkpoint_files import QUANTIZED
from cluster.config import AppConfig
from cluster.fitting import Node, missing, parse_node
from cluster.footprint import footprints
from cluster.placement import plan
from deployments import version
from tests.cluster.checkpoints import write_models
from tests.smollm2 import needs_smollm2

ROOT = Path(__file__).parents[2]
LAPTOP = [parse_node("CPU=2,memory=8GB")]
H100 = parse_node("CPU=32,GPU=4,memory=256GB,gpu_memory=80GB,accelerator_type:H100=1")
L4 = parse_node("CPU=4,GPU=1,memory=32GB,gpu_memory=24GB,accelerator_type:L4=1")
GPU = parse_node("CPU=16,GPU=1,memory=128GB,gpu_memory=80GB")
EIGHT = parse_node("CPU=96,GPU=8,memory=1000GB,gpu_memory=80GB")

MACHINES: Mapping[str, list[Node]] = {
    "cluster.yaml": LAPTOP,
    "cluster/zoo.yaml": LAPTOP,
    "cluster/fleet.yaml": LAPTOP,
    "cluster/one_process.yaml": LAPTOP,
    "cluster/test.yaml": LAPTOP,
    "cluster/vllm.yaml": LAPTOP,
    "cluster/recipes/one_gpu.yaml": [GPU],
    "cluster/recipes/code_agent.yaml": [GPU],
    "cluster/recipes/head.yaml": [GPU],
    "cluster/recipes/llama_70b.yaml": [EIGHT],
    "cluster/recipes/eight_gpus.yaml": [EIGHT],
    "cluster/recipes/several_nodes.yaml": [H100] * 2 + [L4] * 8,
    "cluster/recipes/kuberay.yaml": [H100] + [L4] * 4,
}


LOADED = [
    pytest.param(name, marks=needs_smollm2 if name == "cluster.yaml" else ()) for name in MACHINES
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


def load(name: str, models: Path) -> AppConfig:
    (application,) = read(ROOT / name)
    organisations = r'"(/models|Qwen|RedHatAI|meta-llama)/'
    here = re.sub(organisations, f'"{models}/', json.dumps(application.args))
    return AppConfig.model_validate(json.loads(here))


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What make would run; inside `make test` it would also say which directory it enters."""
    command = ["make", "--no-print-directory", "--dry-run", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@needs_smollm2
@pytest.mark.parametrize(
    ("target", "file"), [("native", "cluster.yaml"), ("vllm", "cluster/vllm.yaml")]
)
def test_make_serve_runs_the_file_of_its_target(target: str, file: str, models: Path) -> None:
    assert make("serve", f"TARGET={target}").stdout.split()[-1] == file
    assert load(file, models).target.backend == target


def test_make_serve_takes_the_zoo_or_plans_for_a_named_model_or_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And looks for the default model where a config does."""
    monkeypatch.setenv("SPINDLE_CACHE", str(tmp_path))
    assert make("serve").stdout.split()[-1] == "cluster/zoo.yaml"
    printed = make("serve", "MODEL=org/name").stdout
    assert f"-m cluster.plan 'org/name' --output {tmp_path}/plan.yaml\n" in printed
    assert printed.split()[-1] == f"{tmp_path}/plan.yaml"
    printed = make("--print-data-base", "clean").stdout
    assert f"\nDEFAULT_MODEL := {smollm2_path() / QUANTIZED}\n" in printed
    refused = make("serve", "TARGET=vlm")
    assert refused.returncode
    assert "native or vllm" in refused.stderr


def test_all_topologies_are_tested() -> None:
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "cluster").rglob("*.yaml")}
    assert files | {"cluster.yaml"} == MACHINES.keys()


@pytest.mark.parametrize("name", LOADED)
def test_a_topology_is_valid_and_fits_its_machines(name: str, models: Path) -> None:
    config, nodes = load(name, models), MACHINES[name]
    assert missing(config, nodes) == []
    if len(nodes) > 1:
        assert missing(config, nodes[:-1]), "one node less would do"


@pytest.mark.parametrize("name", MACHINES)
def test_serve_takes_the_file_and_what_listens_on_all_interfaces_asks_for_a_key(name: str) -> None:
    content = yaml.safe_load((ROOT / name).read_text())
    if content.get("kind") == "RayService":
        content = yaml.safe_load(content["spec"]["serveConfigV2"])
    (application,) = ServeDeploySchema.model_validate(content).applications
    assert (application.name, application.import_path) == ("spindle", "deployments.app:build")
    local = content["http_options"]["host"] == "127.0.0.1"
    assert local or application.args["api_keys"]


@pytest.mark.parametrize("name", LOADED)
def test_every_bundle_holds_what_its_processes_ask_for(name: str, models: Path) -> None:
    """Less, and an actor would wait for ever; more, and others would."""
    config = load(name, models)
    placement = plan(config)
    processes = footprints(config, placement)
    for number, bundle in enumerate(placement.bundles):
        inside = [process for process in processes if process.bundle == number]
        assert sum(process.cpus for process in inside) == pytest.approx(bundle["CPU"])
        assert sum(process.gpus for process in inside) == pytest.approx(bundle.get("GPU", 0.0))


def test_the_plan_in_the_docs_is_that_of_the_recipe(models: Path) -> None:
    config = load("cluster/recipes/eight_gpus.yaml", models)
    page = (ROOT / "docs/placement.md").read_text()
    for line in table(footprints(config, plan(config))):
        assert line.rstrip() in page


def test_the_variant_with_four_ranks_fits_as_well(models: Path) -> None:
    """As the comment in the file says."""
    config = load("cluster/recipes/eight_gpus.yaml", models).model_dump(exclude_unset=True)
    config["target"]["tensor_parallel"] = 4
    for drafter in config["drafters"]:
        if "0.6B" in drafter.get("model", ""):
            drafter["gpus"] = 0.25
    assert missing(AppConfig.model_validate(config), [EIGHT]) == []


def test_the_recipe_with_a_head_fits_with_the_head_inline_as_well(models: Path) -> None:
    """As the comment in the file says."""
    config = load("cluster/recipes/head.yaml", models).model_dump(exclude_unset=True)
    head, *others = config["drafters"]
    drafters = [head | {"placement": "inline"}, *others]
    assert missing(AppConfig.model_validate(config | {"drafters": drafters}), [GPU]) == []


def test_the_image_has_the_environment_of_make_serve() -> None:
    lines = (ROOT / "cluster" / "serve.env").read_text().splitlines()
    wanted = {line for line in lines if line and not line.startswith("#")}
    instructions = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    assert wanted <= {
        one for line in instructions if line.startswith("ENV") for one in line.split()
    }


def test_the_manifest_names_this_version_and_waits_for_streams_to_end(models: Path) -> None:
    manifest = yaml.safe_load((ROOT / "cluster/recipes/kuberay.yaml").read_text())["spec"]
    cluster = manifest["rayClusterConfig"]
    pods = [
        group["template"]["spec"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    ]
    images = {container["image"] for pod in pods for container in pod["containers"]}
    assert images == {f"spindle:{version()}-cuda"}
    drain_s = load("cluster/recipes/kuberay.yaml", models).scaling.drain_s
    for pod in pods[1:]:
        assert pod["terminationGracePeriodSeconds"] > drain_s
        assert (
            "ray drain-node" in pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
        )


def test_the_manifests_own_nodes_hold_its_replica(models: Path) -> None:
    """As Ray's autoscaler reads the worker groups."""
    cluster = yaml.safe_load((ROOT / "cluster/recipes/kuberay.yaml").read_text())["spec"][
        "rayClusterConfig"
    ]

    def nodes(count: str) -> list[dict[str, Any]]:
        return [
            {"GPU": 0} | _get_ray_resources_from_group_spec(group, is_head=False)
            for group in cluster["workerGroupSpecs"]
            for _ in range(group[count])
        ]

    config = load("cluster/recipes/kuberay.yaml", models)
    assert config.growing_cluster
    assert missing(config, nodes("replicas")) == []
    assert missing(config, nodes("maxReplicas"), config.scaling.max_replicas) == []
