"""The goodput that a policy can expect at most which sees confidences, but not the target's output.

Tighter than goodput_bound.py, which lets a policy know the output: here wrong drafts cost rows,
drafting takes its time, and a round with SLOs cannot grow beyond what they allow. A linear program
over kinds of rounds (depth of drafts, rows of the forward) finds the best mixture of them:

- rounds take no longer than the run, and hold the rows of all prompts and outputs;
- a node that costs a row counts with its probability of being right, so that for any price of a
  row a request gains at most 1 + E[sum over nodes of (probability - price)+] + price · extra rows;
- the rounds of a request that attains take no longer than its TPOT times its tokens;
- the KV of those that take part in a round fits into the memory.

Free, so that it is still an upper bound: TTFTs, waiting, drafting for more than one request, which
requests are in the system when, and all other SLOs while prompts are read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from benchmarks.simulator.run import Cluster, request_seed
from benchmarks.simulator.workload import Arrival

Floats = NDArray[np.float64]

_DEPTHS = (0, 1, 2, 3, 4, 5, 6, 8)
_SIZE_STEP = 1.15
"""Between the rows of two kinds of forwards."""
_PRICES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6)
"""Of a row, in tokens."""
_GROUPS = 4
"""Of requests with equal SLOs, by how predictable they are: a policy may serve the easier ones."""
_ROOTS = 64
"""Output positions from which the gain of a round is averaged."""


@dataclass(frozen=True, slots=True)
class _Group:
    requests: Sequence[Arrival]
    tpot_s: float
    probabilities: Floats
    """[roots, depth, choices]: that a choice is the target's token."""

    @property
    def decoded(self) -> int:
        """Output tokens, but for the first ones, which prompts yield."""
        return sum(one.output_tokens - 1 for one in self.requests)

    @property
    def context(self) -> float:
        """Tokens in the KV cache, mean over a request's rounds."""
        weights = [one.output_tokens for one in self.requests]
        middles = [one.prompt_tokens + one.output_tokens / 2 for one in self.requests]
        return float(np.average(middles, weights=weights))

    def surplus(self, price: float) -> list[float]:
        """By depth, the mean over roots of the sum over nodes of (probability - price)+."""
        paths = np.ones((len(self.probabilities), 1))
        sums = [0.0]
        for level in range(max(_DEPTHS)):
            choices = self.probabilities[:, level]
            if price == 0:
                paths = paths * choices.sum(axis=1, keepdims=True)
            else:
                paths = (paths[:, :, None] * choices[:, None, :]).reshape(len(paths), -1)
                # No more paths are above the price, as the probabilities of a level add up to 1.
                kept = min(paths.shape[1], int(1 / price) + 1)
                paths = np.partition(paths, paths.shape[1] - kept, axis=1)[:, -kept:]
            sums.append(sums[-1] + float(np.maximum(paths - price, 0.0).sum(axis=1).mean()))
        return sums

    def fastest_s(self, verify_s: float, step_s: float) -> float:
        """Per token of a request alone, all of whose nodes are verified for nothing."""
        gained = self.surplus(0.0)
        return min((verify_s + depth * step_s) / (1.0 + gained[depth]) for depth in _DEPTHS)


def expected_bound(requests: Sequence[Arrival], cluster: Cluster, seed: int) -> float:
    """In tokens per second; the arguments are those of `simulate`. The cluster has one drafter."""
    groups = list(_groups(requests, cluster, seed))
    verify = cluster.verify
    (drafter,) = cluster.drafters
    step_s = 0.0 if drafter.cost is None else drafter.cost.predict(0, 1)
    steps = np.arange(1 + int(np.log(cluster.most_tokens) / np.log(_SIZE_STEP)))
    knee = min(cluster.most_tokens, int(verify.piecewise.knee) or 1)
    sizes = np.unique([*(_SIZE_STEP**steps).astype(int), knee, cluster.most_tokens])
    kinds = [(depth, int(rows)) for depth in _DEPTHS for rows in sizes]
    depths = np.array([depth for depth, _ in kinds])
    rows = np.array([rows for _, rows in kinds], np.float64)
    round_s = np.array([verify.predict(0.0, size) + depth * step_s for depth, size in kinds])
    begin = min(one.at_s for one in requests)
    least_s = max(
        one.at_s - begin + (one.output_tokens - 1) * group.fastest_s(round_s[0], step_s)
        for group in groups
        for one in group.requests
    )

    program = _Program(len(groups), len(kinds))
    # The run's time: rounds, and reading the context of those that take part.
    program.at_most(1.0)
    program.add(program.rounds, round_s)
    alpha = verify.piecewise.alpha
    for number, group in enumerate(groups):
        program.add(program.taking_part(number), alpha * group.context)
    for kind in range(len(kinds)):
        program.at_most(0.0)
        program.add(program.rounds[kind], -rows[kind])
        program.add(program.other_rows[kind], 1.0)
        for number in range(len(groups)):
            program.add(program.taking_part(number)[kind], 1.0)
            program.add(program.extra_rows(number)[kind], 1.0)
        program.at_most(0.0)
        program.add(program.rounds[kind], -float(cluster.memory.tokens))
        for number, group in enumerate(groups):
            program.add(program.taking_part(number)[kind], group.context)
    # Prompts, and the outputs of requests that do not attain, one row each.
    program.at_most(0.0)
    program.add(program.other_rows, -1.0)
    program.add(program.attained, -1.0)
    prompts = sum(one.prompt_tokens for one in requests)
    program.add(program.per_second, prompts + sum(group.decoded for group in groups))
    for number, group in enumerate(groups):
        program.at_most(0.0)
        program.add(program.attained[number], -group.tpot_s)
        program.add(program.taking_part(number), round_s)
        program.at_most(0.0)
        program.add(program.attained[number], 1.0)
        program.add(program.per_second, -float(group.decoded))
        for price in _PRICES:
            gains = 1.0 + np.array(group.surplus(price))[depths]
            program.at_most(0.0)
            program.add(program.attained[number], 1.0)
            program.add(program.taking_part(number), -gains)
            program.add(program.extra_rows(number), -price)
    program.at_most(1.0 / least_s)
    program.add(program.per_second, 1.0)
    with_first = [1.0 + len(group.requests) / group.decoded for group in groups]
    return program.most(with_first)


class _Program:
    """A linear program; its variables are per second of the run."""

    def __init__(self, groups: int, kinds: int) -> None:
        self._groups, self._kinds = groups, kinds
        places = np.arange((2 * groups + 2) * kinds + groups + 1)
        self.rounds, self.other_rows = places[:kinds], places[kinds : 2 * kinds]
        self._by_group = places[2 * kinds : (2 * groups + 2) * kinds].reshape(2, groups, kinds)
        self.attained = places[-groups - 1 : -1]
        """Decoded tokens of the requests of a group that attain."""
        self.per_second = places[-1:]
        """1 over the run's seconds."""
        self._limits: list[float] = []
        self._row: list[NDArray[np.int64]] = []
        self._column: list[NDArray[np.int64]] = []
        self._value: list[Floats] = []

    def taking_part(self, group: int) -> NDArray[np.int64]:
        """Rounds of the group's requests, by kind."""
        return self._by_group[0, group]

    def extra_rows(self, group: int) -> NDArray[np.int64]:
        """Their draft nodes, by kind."""
        return self._by_group[1, group]

    def at_most(self, limit: float) -> None:
        """Begins a constraint."""
        self._limits.append(limit)

    def add(self, variables: NDArray[np.int64], factors: float | Floats) -> None:
        """To the constraint begun last."""
        columns = np.atleast_1d(variables)
        self._column.append(columns)
        self._row.append(np.full(len(columns), len(self._limits) - 1))
        self._value.append(np.broadcast_to(np.asarray(factors, np.float64), columns.shape))

    def most(self, of_attained: Sequence[float]) -> float:
        """The largest weighted sum of `attained`."""
        values, places = np.concatenate(self._value), np.concatenate(self._row)
        columns = np.concatenate(self._column)
        shape = (len(self._limits), int(self.per_second[0]) + 1)
        goal = np.zeros(shape[1])
        goal[self.attained] = -np.asarray(of_attained)
        matrix = coo_array((values, (places, columns)), shape=shape).tocsr()
        limits = LinearConstraint(matrix, -np.inf, self._limits)
        solved = milp(goal, constraints=limits, bounds=Bounds(0.0, np.inf))
        if solved.status != 0:
            raise RuntimeError(f"the bound's linear program was not solved: {solved.message}")
        return float(-solved.fun)


def _groups(requests: Sequence[Arrival], cluster: Cluster, seed: int) -> Iterator[_Group]:
    """Of requests with equal domains and SLOs, which have a TPOT."""
    alike: dict[tuple[str, float], list[tuple[Arrival, Floats]]] = {}
    for one in requests:
        if one.slo.tpot_s is None:
            raise ValueError(f"{one.name} has no TPOT, which bounds its rounds")
        roots = _probabilities(one, cluster, seed)
        alike.setdefault((one.domain, one.slo.tpot_s), []).append((one, roots))
    for (_, tpot_s), members in alike.items():
        members.sort(key=lambda member: -float(member[1][:, 0, 0].mean()))
        for places in np.array_split(np.arange(len(members)), min(_GROUPS, len(members))):
            chosen = [members[place] for place in places]
            probabilities = np.concatenate([roots for _, roots in chosen])
            yield _Group([one for one, _ in chosen], tpot_s, probabilities)


def _probabilities(one: Arrival, cluster: Cluster, seed: int) -> Floats:
    """[roots, depth, choices]: that each choice of the drafter is the target's token."""
    (spec,) = cluster.drafters
    model = cluster.acceptance.models[one.domain, spec.drafter]
    drawn = cluster.acceptance.draws(request_seed(seed, one.name), one.domain, spec.drafter, 0)
    confidence = drawn.confidence[: _ROOTS + max(_DEPTHS), 0]
    first = np.interp(confidence, model.confidence, model.accepted)
    choices = np.stack([first, *((1.0 - first) * share for share in model.rank_shares)], axis=1)
    return choices[np.arange(_ROOTS)[:, None] + np.arange(max(_DEPTHS))]
