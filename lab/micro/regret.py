"""Measures the regret of LBSS, and the time of a matching.

`python -m lab.micro.regret [--smoke] [--json FILE]`.

Regret is that of Spin's eq. 6, switching included, of four requests on three lanes with two
places each, in slots of equal time, with stationary rewards. Theorem 1 bounds it by log T: then
each doubling of T adds the same. Exits with 1 unless
- LBSS adds no more from doubling to doubling, within two standard errors, and log T fits its
  regret better than √T and T do;
- a constant ε, and LBSS with an α too small for the gap, both fail the same test;
- 1,024 requests are matched to 16 lanes within 50 ms of CPU time, whatever their goodputs.
"""

import functools
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from benchmarks.report import Record, parser, publish
from policies.cost import LinearCost
from policies.estimates.acceptance import AcceptanceEstimates
from policies.matching import match
from policies.protocols import RoundContext, Selection
from policies.request import LaneView, RequestView, RoundOutcome
from policies.selection.baselines import EpsilonGreedy, EpsilonGreedyParams
from policies.selection.lane_capacity import unmatched_values
from policies.selection.lbss import Lbss, LbssParams

Floats = NDArray[np.float64]

REQUESTS = 4
LANES = 3
PLACES = 2
GAP = 0.1
"""Least difference between two lanes for a request, and between the best matching and the next."""
DRAFTS = 10
"""Draft tokens in a slot, each accepted with probability g: rewards have mean g within 0 ... 1."""
CONTEXT = 100
CATCH_UP_S = 1e-3
SWITCH_WEIGHT = 0.5
SWITCH_COST = SWITCH_WEIGHT * CATCH_UP_S * CONTEXT
"""λ·c of eq. 6, in the slot's tokens: half of what the smallest gap loses in a slot."""

FIRST_POWER = 10
MATCHING_MS = 50.0


@dataclass(frozen=True, slots=True)
class Scale:
    last_power: int
    """The horizon is 2 to this power."""
    seeds: int


FULL = Scale(last_power=16, seeds=20)
SMOKE = Scale(last_power=13, seeds=8)

POLICIES: dict[str, Callable[[int], Selection]] = {
    "lbss": lambda seed: Lbss(LbssParams(alpha=64, beta=4, switch_weight=SWITCH_WEIGHT), seed),
    "lbss_alpha_too_small": lambda seed: Lbss(
        LbssParams(alpha=1, beta=1, switch_weight=SWITCH_WEIGHT), seed
    ),
    "constant_epsilon": lambda seed: EpsilonGreedy(EpsilonGreedyParams(epsilon=0.1), seed),
}
SHAPES: dict[str, Callable[[float], float]] = {
    "log T": math.log,
    "sqrt T": math.sqrt,
    "T": float,
}


def stationary(rng: np.random.Generator) -> tuple[Floats, float]:
    """Mean rewards by request and lane, with gaps of at least GAP, and the best matching's sum."""
    while True:
        means = rng.uniform(0.1, 0.9, (REQUESTS, LANES))
        ordered = np.sort(means, axis=1)
        totals = sorted(
            sum(means[request, lane] for request, lane in enumerate(lanes))
            for lanes in itertools.product(range(LANES), repeat=REQUESTS)
            if max(lanes.count(lane) for lane in range(LANES)) <= PLACES
        )
        if np.diff(ordered).min() >= GAP and totals[-1] - totals[-2] >= GAP:
            return means, float(totals[-1])


def play(policy: Selection, slots: int, rng: np.random.Generator) -> Floats:
    """Cumulative regret (eq. 6) after each slot."""
    means, best = stationary(rng)
    requests = [RequestView(str(i), 0.0, CONTEXT, max_tokens=slots) for i in range(REQUESTS)]
    lanes = [LaneView(str(j), f"drafter {j}", PLACES, catch_up_s=CATCH_UP_S) for j in range(LANES)]
    context = RoundContext(LinearCost(0, 0, 1), {}, 1, {}, 1, AcceptanceEstimates(lanes))
    column = {lane.name: j for j, lane in enumerate(lanes)}
    accepted = rng.binomial(DRAFTS, means, (slots, REQUESTS, LANES)).astype(np.int8)
    regret = np.full(slots, best)
    drafted_last: dict[str, str] = {}
    for slot in range(slots):
        chosen = policy.assign(requests, lanes, context, float(slot))
        for row, request in enumerate(requests):
            lane = chosen[request.name]
            if lane is None:
                outcome = RoundOutcome(request.name, None, 0, 0, 0, 0, seconds=DRAFTS)
            else:
                tokens = int(accepted[slot, row, column[lane]])
                outcome = RoundOutcome(request.name, lane, DRAFTS, 1, tokens, tokens, DRAFTS)
                regret[slot] -= means[row, column[lane]]
                if drafted_last.setdefault(request.name, lane) != lane:
                    regret[slot] += SWITCH_COST
                    drafted_last[request.name] = lane
            policy.observe([outcome])
    return np.cumsum(regret)


def misfit(horizons: list[int], regret: Floats, shape: Callable[[float], float]) -> float:
    """Root mean square error of the best a + b·shape(T), of the mean regret."""
    columns = np.array([[1.0, shape(horizon)] for horizon in horizons])
    coefficients = np.linalg.lstsq(columns, regret)[0]
    return float(np.sqrt(np.mean((columns @ coefficients - regret) ** 2)) / regret.mean())


def regret_records(name: str, scale: Scale) -> tuple[list[Record], bool]:
    """The regret that each doubling adds, its growth over the last three, and the misfits; and
    whether it is logarithmic."""
    powers = range(FIRST_POWER, scale.last_power + 1)
    horizons = [2**power for power in powers]
    runs = [
        play(POLICIES[name](seed), 2**scale.last_power, np.random.default_rng(seed))
        for seed in range(scale.seeds)
    ]
    at_powers = np.array([[run[horizon - 1] for horizon in horizons] for run in runs])
    added = np.diff(at_powers, axis=1)
    records = [
        Record(f"regret/{name}/added from 2^{power} on", float(mean), "reward")
        for power, mean in zip(powers, added.mean(axis=0), strict=False)
    ]
    growth = added[:, -1] - added[:, -3]
    mean, error = float(growth.mean()), float(growth.std(ddof=1) / np.sqrt(scale.seeds))
    unit = "reward, two SE beside it"
    records.append(Record(f"regret/{name}/growth over three doublings", mean, unit, 2 * error))
    misfits = {
        shape: misfit(horizons, at_powers.mean(axis=0), function)
        for shape, function in SHAPES.items()
    }
    records += [
        Record(f"regret/{name}/misfit of {shape}", error, "of the mean")
        for shape, error in misfits.items()
    ]
    return records, mean <= 2 * error and min(misfits, key=misfits.__getitem__) == "log T"


def goodputs(rng: np.random.Generator) -> dict[str, Floats]:
    """Goodputs of 1,024 requests on 16 lanes, by the name of their structure."""
    requests, lanes = 1024, 16
    speed = rng.uniform(20, 80, lanes)
    acceptance = rng.uniform(0.2, 1, requests)
    domains = (speed * rng.uniform(0.5, 1.5, (6, lanes)))[rng.integers(6, size=requests)]
    noise = rng.normal(0.0, 1.0, (requests, lanes))
    return {
        "unrelated": rng.uniform(20, 80, (requests, lanes)),
        "lanes differ": speed + 5 * noise,
        "all equal": np.tile(speed, (requests, 1)),
        "acceptance times speed": acceptance[:, None] * speed,
        "six domains": domains,
        "six domains, noisy": domains + 2 * noise,
    }


def cpu_ms(work: Callable[[], object], repeats: int) -> float:
    """Median of the CPU time, in which other processes do not count."""
    spent = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        spent.append(1e3 * (time.process_time() - started))
    return statistics.median(spent)


def matching_records(repeats: int) -> tuple[list[Record], bool]:
    """Times of a matching with half as many places as requests, just as many, a quarter more, and
    uneven lanes; and, where there are just as many, of KM alone on the expanded matrix. The bool:
    whether all of ours keep the bound."""
    rng = np.random.default_rng(0)
    capacities = {
        "half": np.full(16, 32),
        "just enough": np.full(16, 64),
        "a quarter more": np.full(16, 80),
        "uneven": rng.multinomial(1280, rng.dirichlet(np.ones(16))),
    }
    ours, km_alone = [], []
    for structure, values in goodputs(rng).items():
        unmatched = unmatched_values(values, np.zeros(len(values)))
        for places, capacity in capacities.items():
            spent_ms = cpu_ms(functools.partial(match, values, capacity, unmatched), repeats)
            name = f"matching/1024 x 16/{structure}/{places}"
            ours.append(Record(name, spent_ms, "ms of CPU", MATCHING_MS))
        expanded = np.repeat(values, capacities["just enough"], axis=1)
        spent_ms = cpu_ms(functools.partial(linear_sum_assignment, expanded, maximize=True), 1)
        km_alone.append(Record(f"matching/KM alone/{structure}/just enough", spent_ms, "ms of CPU"))
    return ours + km_alone, all(record.value <= MATCHING_MS for record in ours)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--smoke", action="store_true", help="shorter and fewer runs")
    options = arguments.parse_args()
    scale = SMOKE if options.smoke else FULL

    records, fast = matching_records(repeats=3 if options.smoke else 9)
    logarithmic: dict[str, bool] = {}
    for name in POLICIES:
        of_policy, logarithmic[name] = regret_records(name, scale)
        records += of_policy
    publish(records, options.json)

    missed = [] if fast else [f"a matching takes more than {MATCHING_MS:g} ms"]
    for name, is_logarithmic in logarithmic.items():
        if is_logarithmic != (name == "lbss"):
            missed.append(f"regret of {name} looks{'' if is_logarithmic else ' not'} logarithmic")
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
