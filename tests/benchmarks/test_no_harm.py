"""The modelled load on which the planner's fairness is judged."""

from benchmarks.no_harm import cluster, compared


def test_at_one_client_everybody_gains_and_the_same_run_comes_out_again() -> None:
    ratios = compared(cluster(), seed=0, clients=1, requests=12)
    assert min(ratios.values()) > 1.0
    assert ratios["fair/tasks"] > ratios["fair/code"] > ratios["fair/prose"]
    assert compared(cluster(), seed=0, clients=1, requests=12) == ratios
