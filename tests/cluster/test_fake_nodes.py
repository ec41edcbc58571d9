"""Plans on a cluster of several nodes with GPUs that Ray believes in: who lies where, as Ray's own
state says, and what happens where something does not fit."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray
from ray._private import state  # the public API needs a dashboard
from ray.cluster_utils import Cluster
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.hosts.spawn import Actor, Group
from cluster.config import AppConfig
from cluster.placement import REPLICA, STRATEGY, Placement, plan
from deployments.app import build
from engine.errors import SpindleError
from tests.cluster.probe import Probe, Seat

SMALL = {"model": "zoo/tiny", "gpus": 1, "accelerator": "L4"}
FITTING: dict[str, Any] = {
    "target": {"gpus": 2, "accelerator": "H100", "dtype": "float32"},
    "drafters": [
        SMALL | {"name": "code"},
        SMALL | {"name": "prose", "instances": 2},
        {"name": "cpu", "model": "zoo/tiny"},
        {"name": "ngram", "kind": "ngram"},
    ],
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A head, two machines with two H100 and two with two L4."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 0})
    for accelerator in ("H100", "H100", "L4", "L4"):
        resources = {f"accelerator_type:{accelerator}": 1}
        cluster.add_node(num_cpus=1, num_gpus=2, resources=resources)
    ray.init(cluster.address, log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def placed(placement: Placement) -> Iterator[tuple[PlacementGroup, dict[int, str]]]:
    """The plan's placement group, and the node of each bundle."""
    group = placement_group(list(placement.bundles), STRATEGY)
    try:
        ray.get(group.ready(), timeout=60)
        yield group, placement_group_table(group)["bundles_to_node_id"]
    finally:
        remove_placement_group(group)


def probe(group: PlacementGroup, bundle: int, gpus: float) -> Any:
    strategy = PlacementGroupSchedulingStrategy(group, bundle)
    return (
        ray.remote(Probe)
        .options(num_cpus=0.05, num_gpus=gpus, scheduling_strategy=strategy)
        .remote()
    )


def with_accelerator(name: str) -> set[str]:
    return {
        node["NodeID"] for node in ray.nodes() if f"accelerator_type:{name}" in node["Resources"]
    }


def test_every_drafter_has_its_own_gpu_and_those_of_the_target_are_together(nodes: Cluster) -> None:
    config = AppConfig.model_validate(FITTING)
    placement = plan(config)
    assert placement.target is not None
    gpus = {"target": 2, "code": 1, "prose/0": 1, "prose/1": 1, "cpu": 0}
    bundles = {"target": placement.target, **placement.lanes}
    assert bundles.keys() == gpus.keys()
    with placed(placement) as (group, node):
        probes = {name: probe(group, bundle, gpus[name]) for name, bundle in bundles.items()}
        places = ray.get([actor.where.remote() for actor in probes.values()], timeout=60)
    seats = dict(zip(probes, places, strict=True))
    assert seats["cpu"] == Seat(node[REPLICA], ""), "next to the replica, without a GPU"
    target = seats.pop("target")
    assert target.node in with_accelerator("H100")
    assert {*target.gpus.split(",")} == {"0", "1"}
    del seats["cpu"]
    assert {seat.node for seat in seats.values()} == with_accelerator("L4")
    assert all(seat.gpus in ("0", "1") for seat in seats.values()), "one GPU each"
    assert len({*seats.values()}) == 3, "and no two the same"


def test_the_actors_of_a_replica_go_where_the_plan_says(nodes: Cluster) -> None:
    """They begin there. On this machine they find no GPU, and end."""
    config = AppConfig.model_validate(FITTING)
    placement = plan(config)
    assert placement.target is not None

    async def begin(actors: Group) -> None:
        async with asyncio.timeout(90):
            begun = await asyncio.gather(
                actors.launch_verifier(config.target, (), 0),
                actors.launch_drafter(config.drafters[0], "code", config.target, 0),
                return_exceptions=True,
            )
        for one in begun:
            if isinstance(one, Actor):
                one.kill()
            else:
                assert isinstance(one, SpindleError)

    with placed(placement) as (group, node):
        asyncio.run(begin(Group("fake", group, placement)))
        went = {
            actor["Name"]: actor["Address"]["NodeID"]
            for actor in state.actors().values()
            if actor["Name"].startswith("spindle:fake:")
        }
    assert went == {
        "spindle:fake:verifier:0": node[placement.target],
        "spindle:fake:code:0": node[placement.lanes["code"]],
    }


def test_shares_of_one_gpu_may_lie_together(nodes: Cluster) -> None:
    config = AppConfig.model_validate(
        {"drafters": [SMALL | {"name": "half", "gpus": 0.5, "instances": 8}]}
    )
    placement = plan(config)
    with placed(placement) as (_, node):
        where = {node[bundle] for bundle in placement.lanes.values()}
    assert where == with_accelerator("L4")


def test_what_is_missing_is_named_at_the_start_and_what_fits_is_let_through(nodes: Cluster) -> None:
    many = {"drafters": [SMALL | {"name": "many", "instances": 5}]}
    with pytest.raises(ValueError, match="this cluster is too small") as refused:
        build(FITTING | many)
    assert "many/4 needs GPU 1, accelerator_type:L4 1 on one node" in str(refused.value)
    build(FITTING)
    # For a growing cluster nothing is refused.
    build(FITTING | {"scaling": {"min_replicas": 2, "max_replicas": 2}, "growing_cluster": True})
