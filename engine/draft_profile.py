"""Measures the cost of a drafter's draft step on this device: the drafter's part of SpecServe's
offline analyzer.

Times whole draft calls as they are served, with sampling and bookkeeping; a call of `depth` levels
counts as that many equal steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from time import perf_counter

import numpy as np

from engine.feature_buffer import lacks_from
from engine.protocol import Drafter, DraftOrder, Features, Prefix, Start
from engine.sampling.params import SamplingParams
from engine.soft_state import CommittedTokens
from policies.cost import (
    CostModel,
    ForwardCost,
    ForwardSample,
    fit_linear,
    fit_roofline,
    token_budget,
)

REQUESTS = (1, 4, 16)
CONTEXT = (32, 128, 512)
DEPTH = 4
ROUNDS = 5
_LEAST_SHAPES = 3
"""At least as many shapes as a fit has parameters."""
_LARGEST_BUDGET = 4096
"""The budget of draft steps whose time does not grow with their tokens."""


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """The cost of a drafter's steps, fitted to its profile."""

    step: ForwardCost
    token_budget: int
    """AdaServe's B_2: the tokens up to which a draft step takes hardly longer."""

    @classmethod
    def fit(cls, samples: Sequence[ForwardSample]) -> "DraftCosts":
        # The knee is beyond the few tokens that were measured where a device computes many at once,
        # so the budget is not limited to them.
        return cls(fit_linear(samples), token_budget(fit_roofline(samples), _LARGEST_BUDGET))


def draft_call_s(cost: CostModel, orders: Sequence[DraftOrder]) -> float:
    """The predicted duration of a call: reading what the drafter lacks, then its draft steps."""
    delta = sum([len(order.prefix.delta) for order in orders])
    read = delta + sum([order.prefix.base for order in orders])
    step_s = cost.predict(read, sum([order.width for order in orders]))
    return cost.predict(read, delta) + max([order.depth for order in orders]) * step_s


def measure_drafter(
    drafter: Drafter,
    vocab_size: int,
    max_context: int,
    seconds: float = math.inf,
    feature_width: int = 0,
) -> tuple[ForwardSample, ...]:
    """Times a draft step in batches of several sizes. Measure while nothing else runs on the
    device; the drafter keeps no state of it.

    `seconds`: time limit, after which the larger shapes are left to the fit's extrapolation.
    `feature_width`: of a drafter that reads features.
    """
    begun = perf_counter()
    samples: list[ForwardSample] = []
    shapes = sorted(product(REQUESTS, CONTEXT), key=lambda shape: (math.prod(shape), shape))
    for requests, context in shapes:
        if context + DEPTH > max_context:
            continue
        step_s = _seconds_per_step(drafter, vocab_size, requests, context, feature_width)
        samples.append(ForwardSample(requests * context, requests, step_s))
        if len(samples) >= _LEAST_SHAPES and perf_counter() - begun > seconds:
            break
    return tuple(samples)


def _seconds_per_step(
    drafter: Drafter, vocab_size: int, requests: int, context: int, feature_width: int
) -> float:
    """Median time per step, without the first call, which processes the prompts and compiles; later
    calls have one new token per request."""
    rng = np.random.default_rng(0)
    names = [f"profile-{number}" for number in range(requests)]
    committed = {name: CommittedTokens() for name in names}
    start = Start(SamplingParams(temperature=0), 0, context)
    for tokens in committed.values():
        tokens.extend(rng.integers(vocab_size, size=context).tolist())
    known = dict.fromkeys(names, 0)
    times = []
    for number in range(1 + ROUNDS):
        orders = []
        for name, tokens in committed.items():
            base = known[name]
            prefix = Prefix(
                name,
                attempt=0,
                round=number,
                base=base,
                base_hash=tokens.hashes[base],
                delta=tuple(tokens.ids[base:]),
                start=None if base else start,
            )
            features = None
            if feature_width:
                first = lacks_from(base)
                shape = (len(tokens) - 1 - first, feature_width)
                features = Features(first, np.zeros(shape, np.float32))
            orders.append(DraftOrder(prefix, DEPTH, features=features))
            known[name] = len(tokens)
        begun = perf_counter()
        drafter.draft(orders)
        times.append((perf_counter() - begun) / DEPTH)
        for tokens in committed.values():
            tokens.extend([int(rng.integers(vocab_size))])
    drafter.forget(names)
    return median(times[1:])
