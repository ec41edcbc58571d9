"""The modelled load on which the planner's fairness is judged."""

from dataclasses import replace
from statistics import mean, median

from actors.coordinator.settings import Policies
from benchmarks.simulator.no_harm import cluster, compared, drafting, load, served
from policies.catalogue import make_schedule, make_selection, make_speculation


def test_at_one_client_everybody_gains_and_the_same_run_comes_out_again() -> None:
    ratios = compared(cluster(), seed=0, clients=1, requests=36)
    assert min(ratios.values()) > 1.0
    assert ratios["fair/tasks"] > ratios["fair/code"] > ratios["fair/prose"]
    assert compared(cluster(), seed=0, clients=1, requests=36) == ratios


def test_who_comes_after_a_high_load_is_served_as_after_a_low_one() -> None:
    """Long rounds with short drafts, among sixteen, once made the first lane that drafted for one
    look twice as good as all others, and everybody stayed there: 0.88 of the goodput. A bad start
    can still happen by chance, so nine are served, which is why it takes its time."""
    machine = cluster()

    def after(clients: int, seed: int) -> float:
        policies = drafting("fair")({})
        before = [replace(one, name=f"before {one.name}") for one in load(seed + 100, 96)]
        served(before, machine, seed + 100, clients, lambda _: policies)
        return served(load(seed, 48), machine, seed, 1, lambda _: policies)[0]

    assert mean(after(16, seed) / after(1, seed) for seed in range(9)) > 0.95


def test_fairness_costs_less_where_it_may_cost_less() -> None:
    """And the slowest domain has less of it."""
    machine, seeds = cluster(), range(3)

    def fair(most_price: float) -> tuple[float, float]:
        totals, slowest = [], []
        for seed in seeds:
            arrivals = load(seed, 144)
            total, speeds = served(
                arrivals,
                machine,
                seed,
                4,
                lambda calibrations: Policies(
                    make_schedule("default"),
                    make_selection("hedge"),
                    make_speculation("planner", {"most_price": most_price}, calibrations),
                ),
            )
            totals.append(total)
            slowest.append(median(speeds[one.name] for one in arrivals if one.domain == "prose"))
        return mean(totals), mean(slowest)

    at_any_price, for_nothing = fair(1.0), fair(0.0)
    assert for_nothing[0] > 1.01 * at_any_price[0]
    assert for_nothing[1] < at_any_price[1]
