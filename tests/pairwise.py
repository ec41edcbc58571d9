"""Covering arrays: few cases in which every pair of levels of any two factors occurs."""

from collections.abc import Mapping, Sequence
from itertools import combinations

Factors = Mapping[str, Sequence[str]]
Case = dict[str, str]


def one_at_a_time(factors: Factors) -> list[Case]:
    """The default (each factor's first level), then each other level alone."""
    default = {factor: levels[0] for factor, levels in factors.items()}
    others = [(factor, level) for factor, levels in factors.items() for level in levels[1:]]
    return [default, *({**default, factor: level} for factor, level in others)]


def covering(factors: Factors) -> list[Case]:
    """Built greedily: each case starts from an unseen pair and takes, factor by factor, the level
    with most unseen pairs."""
    unseen = {
        ((one, a), (other, b))
        for one, other in combinations(factors, 2)
        for a in factors[one]
        for b in factors[other]
    }
    cases: list[Case] = []
    while unseen:
        case = dict(min(unseen))
        for factor, levels in factors.items():
            if factor not in case:
                case[factor] = max(levels, key=lambda level: _new(case, factor, level, unseen))
        cases.append(case)
        unseen -= set(_pairs(case, factors))
    return cases


Pair = tuple[tuple[str, str], tuple[str, str]]


def _pairs(case: Case, factors: Factors) -> list[Pair]:
    return [
        ((one, case[one]), (other, case[other]))
        for one, other in combinations(factors, 2)
        if one in case and other in case
    ]


def _new(case: Case, factor: str, level: str, unseen: set[Pair]) -> int:
    """How many unseen pairs `level` makes with the levels of the case."""
    mine = (factor, level)
    return sum((other, mine) in unseen or (mine, other) in unseen for other in case.items())
