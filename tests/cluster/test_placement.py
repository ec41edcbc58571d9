"""Where a plan puts everything of a replica."""

from typing import Any

from cluster.config import AppConfig
from cluster.placement import Placement, plan

TINY = {"name": "tiny", "model": "zoo/tiny"}
SMALL = {"name": "small", "model": "zoo/small"}
NGRAM = {"name": "ngram", "kind": "ngram"}


def planned(**args: Any) -> Placement:
    return plan(AppConfig.model_validate(args))


def test_hosts_without_a_gpu_share_the_replicas_bundle() -> None:
    placement = planned(target={"cpus": 0.5}, drafters=[TINY, SMALL | {"instances": 2}, NGRAM])
    assert placement.bundles == ({"CPU": 0.7},)
    assert placement.target == 0
    assert placement.lanes == {"tiny": 0, "small/0": 0, "small/1": 0}
    assert placement.replica_options == {"num_cpus": 0.05, "num_gpus": 0}


def test_every_drafter_with_a_gpu_has_a_bundle_of_its_own() -> None:
    placement = planned(
        drafters=[TINY | {"gpus": 0.5, "cpus": 1, "instances": 2}, SMALL | {"gpus": 2}, NGRAM]
    )
    assert placement.bundles[1:] == ({"CPU": 1, "GPU": 0.5},) * 2 + ({"CPU": 0.05, "GPU": 2},)
    assert placement.lanes == {"tiny/0": 1, "tiny/1": 2, "small": 3}
    assert placement.target == 0, "the target computes on the CPU here"


def test_all_ranks_lie_in_one_bundle_and_so_on_one_node() -> None:
    target = {"backend": "vllm", "tensor_parallel": 2, "cpus": 2}
    placement = planned(target=target | {"gpus": 1}, drafters=[TINY])
    assert placement.bundles == ({"CPU": 0.1}, {"CPU": 2, "GPU": 2})
    assert placement.target == 1
    placement = planned(target=target)
    assert placement.bundles == ({"CPU": 2.05},)
    assert placement.target == 0


def test_inline_models_are_the_replicas_own() -> None:
    placement = planned(
        target={"placement": "inline", "gpus": 0.5},
        drafters=[TINY | {"placement": "inline", "gpus": 0.5}, SMALL],
    )
    assert placement.bundles == ({"CPU": 0.1, "GPU": 1},)
    assert placement.target is None
    assert placement.lanes == {"small": 0}
    assert placement.replica_options == {"num_cpus": 0.05, "num_gpus": 1}
