"""Measures the regret of LBSS.

`python -m lab.micro.regret [--smoke] [--json FILE]`.

Regret is that of Spin's eq. 6, switching included, of four requests on three lanes with two
places each, in slots of equal time, with stationary rewards. Theorem 1 bounds it by log T: then
each doubling of T adds the same. Exits with 1 unless
- LBSS adds no more from doubling to doubling, within two standard errors, and log T fits its
  regret better than √T and T do;
- a constant ε, and LBSS with an α too small for the gap, both fail the same test.
"""

import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Record, parser, publish
from policies.cost import LinearCost
from policies.estimates.acceptance import AcceptanceEstimates
from policies.protocols import RoundContext, Selection
from policies.request import LaneView, RequestView, RoundOutcome
from policies.selection.baselines import EpsilonGreedy, EpsilonGreedyParams
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


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--smoke", action="store_true", help="shorter and fewer runs")
    options = arguments.parse_args()
    scale = SMOKE if options.smoke else FULL

    records: list[Record] = []
    logarithmic: dict[str, bool] = {}
    for name in POLICIES:
        of_policy, logarithmic[name] = regret_records(name, scale)
        records += of_policy
    publish(records, options.json)

    missed = []
    for name, is_logarithmic in logarithmic.items():
        if is_logarithmic != (name == "lbss"):
            missed.append(f"regret of {name} looks{'' if is_logarithmic else ' not'} logarithmic")
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
