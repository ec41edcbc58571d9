"""Simulates candidates with the production coordinator and policies, and ranks them."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from actors.coordinator.settings import Limits, Policies
from cluster.config import AppConfig, PoliciesConfig
from cluster.plan.candidates import Option
from cluster.plan.gpus import Machines
from cluster.plan.load import Load
from cluster.plan.simulator.run import MakePolicies, named_policies, simulate
from policies.catalogue import Calibrations, fair

EQUAL = 0.03
"""Goodputs that differ by less are equal: no simulation or measurement tells them apart."""
INGRESS_S = 0.42e-3
"""What a verdict takes of the one ingress's processor (`python -m benchmarks.serving.overhead`)."""


class Outcome(NamedTuple):
    """What all replicas of one candidate achieve."""

    option: Option
    goodput: float
    """Tokens a second of requests within their SLO."""
    ttft_s: float
    """Median, as the time per token."""
    tpot_s: float
    attainment: float
    tokens_per_round: float
    dollars: float | None
    """For a million tokens of goodput."""
    verdicts_s: float
    """That pass the one ingress in a second."""

    @property
    def in_use(self) -> int:
        return sum(self.option.gpus.values())


def outcome(option: Option, load: Load, machines: Machines) -> Outcome:
    """The numbers of one replica's share, times the replicas that have one."""
    arrivals, clients = load.share(option.replicas)
    config = AppConfig.model_validate(option.args)
    limits = config.limits.model_copy(update={"max_waiting": len(arrivals)})
    report = simulate(
        arrivals,
        option.cluster,
        _served(config.policies),
        Limits(**limits.model_dump(), kv_tokens=config.target.kv_tokens),
        clients=clients,
    )
    # Not all have as many clients as the one that is simulated, which has most.
    busy = load.clients / clients if load.clients and clients else option.replicas
    goodput = busy * report.goodput
    hourly = machines.dollars(option.gpus)
    served = [request for request in report.served if request.tokens > 1]
    return Outcome(
        option,
        goodput,
        median(request.ttft_s for request in report.served),
        median([request.tpot_s for request in served] or [0.0]),
        report.attainment,
        report.tokens_per_round,
        None if hourly is None or not goodput else hourly / (goodput * 3600) * 1e6,
        busy * report.throughput / max(1.0, report.tokens_per_round),
    )


def _served(config: PoliciesConfig) -> MakePolicies:
    """As a replica makes them (deployments/replica/service.py)."""
    make = named_policies(config.speculation.name, config.selection.name, config.schedule.name)

    def served(calibrations: Calibrations) -> Policies:
        made = make(calibrations)
        return replace(made, schedule=fair(made.schedule, config.fairness))

    return served


def ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Best first; among equals those that cost less, then the simpler ones."""
    left, order = sorted(outcomes, key=lambda one: -one.goodput), []
    while left:
        equal = [one for one in left if one.goodput >= left[0].goodput * (1 - EQUAL)]
        first = min(equal, key=lambda one: (one.in_use, len(one.option.args["drafters"])))
        order.append(first)
        left.remove(first)
    return order
