"""The policies that papers compare with, beside the product's (policies/catalogue.py)."""

from functools import partial

from lab.baselines.scheduling import Las, LasParams, lp_sjf
from lab.baselines.selection import (
    EpsilonGreedy,
    EpsilonGreedyParams,
    Greedy,
    SpinEpsilonGreedyParams,
)
from lab.baselines.speculation import (
    Equal,
    EqualParams,
    SpecInfer,
    SpecInferParams,
    Threshold,
    ThresholdParams,
)
from policies import catalogue
from policies.catalogue import Entry, NoParams, Schedules, Selections, Speculations

SELECTIONS: Selections = {
    **catalogue.SELECTIONS,
    "greedy": Entry(NoParams, lambda params, seed: Greedy()),
    "epsilon_greedy": Entry(EpsilonGreedyParams, EpsilonGreedy),
    "spin_epsilon_greedy": Entry(SpinEpsilonGreedyParams, EpsilonGreedy),
}
SPECULATIONS: Speculations = {
    **catalogue.SPECULATIONS,
    "threshold": Entry(ThresholdParams, lambda params, calibrations: Threshold(params)),
    "specinfer": Entry(SpecInferParams, lambda params, calibrations: SpecInfer(params)),
    "equal": Entry(EqualParams, lambda params, calibrations: Equal(params)),
}
SCHEDULES: Schedules = {
    **catalogue.SCHEDULES,
    "lp_sjf": Entry(NoParams, lambda params, switch: lp_sjf()),
    "las": Entry(LasParams, lambda params, switch: Las(params)),
}

make_selection = partial(catalogue.make_selection, entries=SELECTIONS)
make_speculation = partial(catalogue.make_speculation, entries=SPECULATIONS)
make_schedule = partial(catalogue.make_schedule, entries=SCHEDULES)
