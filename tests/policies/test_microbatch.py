"""Micro-batches: predictions against pipelines computed by hand, the heuristic against search."""

from dataclasses import replace

import numpy as np
import pytest

from policies.cost import ForwardCost
from policies.microbatch import LaneLoad, MicroBatchParams, split, throughput


def lane(requests: int, step_s: float, depth: int = 4, gain: float = 2.0) -> LaneLoad:
    """A lane whose draft steps take `step_s`, whatever the number of requests."""
    return LaneLoad(requests, 100 * requests, depth, gain, ForwardCost(0.0, 0.0, step_s))


def fixed(seconds: float) -> ForwardCost:
    """A verifier whose time does not depend on tokens."""
    return ForwardCost(0.0, 0.0, seconds)


def per_row(seconds: float) -> ForwardCost:
    return ForwardCost(0.0, seconds, 0.0)


# The pipeline


def test_one_batch_drafts_and_verifies_in_turn() -> None:
    """8 requests gain 2 tokens each in 4·5 ms of drafting and 30 ms of verifying."""
    assert throughput([lane(8, 0.005)], 1, fixed(0.03)) == pytest.approx(16 / 0.05)


def test_the_barrier_waits_for_the_slowest_lane() -> None:
    fast, slow = lane(4, 0.001), lane(4, 0.010)
    both = throughput([fast, slow], 1, fixed(0.01))
    assert both == pytest.approx(16 / (0.04 + 0.01))


def test_drafts_of_several_lanes_are_verified_in_one_forward() -> None:
    """Equal lanes are ready at the same time; a forward for each would take 2·30 ms."""
    twins = [lane(4, 0.005), lane(4, 0.005)]
    assert throughput(twins, 1, fixed(0.03)) == pytest.approx(16 / 0.05)


def test_drafts_on_the_verifiers_processors_overlap_with_nothing() -> None:
    """20 ms of drafting and 30 ms of verifying for either half of the requests."""
    apart = lane(8, 0.005)
    shared = replace(apart, own_processors=False)
    assert throughput([shared], 1, fixed(0.03)) == pytest.approx(16 / 0.05)
    assert throughput([shared], 2, fixed(0.03)) == pytest.approx(8 / 0.05)
    assert split([apart], per_row(0.001)) > 1
    assert split([shared], per_row(0.001)) == 1


def test_plain_requests_join_the_forward() -> None:
    plain = LaneLoad(requests=3, context=300, depth=0, gain=1.0)
    assert throughput([plain], 1, fixed(0.03)) == pytest.approx(3 / 0.03)
    assert throughput([], 1, fixed(0.03)) == 0.0
    assert throughput([LaneLoad(0, 0, 4, 2.0)], 1, fixed(0.03)) == 0.0


# The number of micro-batches


def random_loads(rng: np.random.Generator) -> tuple[list[LaneLoad], ForwardCost]:
    loads = []
    for _ in range(rng.integers(1, 4)):
        requests = int(rng.integers(1, 7))
        draft = ForwardCost(1e-8, rng.choice([2e-5, 2e-4]), rng.choice([3e-4, 1e-3, 4e-3]))
        loads.append(
            LaneLoad(
                requests,
                context=requests * int(rng.integers(50, 800)),
                depth=int(rng.integers(1, 7)),
                gain=float(rng.uniform(1.2, 3.5)),
                draft=draft if rng.random() < 0.7 else None,
            )
        )
    return loads, ForwardCost(1e-8, rng.choice([1e-4, 1e-3]), rng.choice([2e-3, 2e-2]))


def test_spins_heuristic_is_within_epsilon_of_exhaustive_search() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        loads, verify = random_loads(rng)
        most = max(load.requests for load in loads)
        predicted = [throughput(loads, count, verify) for count in range(1, most + 1)]
        count = split(loads, verify)
        assert predicted[count - 1] >= 0.97 * max(predicted)
        # Split only where that is predicted to gain more than epsilon.
        assert count == 1 or predicted[count - 1] > 1.03 * predicted[0]


def test_a_batch_is_split_where_drafting_takes_as_long_as_verifying() -> None:
    """Halves overlap; more parts than that gain nothing."""
    assert split([lane(8, 0.005)], per_row(0.001)) == 2
    assert split([lane(8, 0.005)], per_row(0.001), MicroBatchParams(parts=1)) == 1


def test_a_fixed_number_of_parts_is_not_searched() -> None:
    loads = [lane(8, 0.0001), lane(1, 0.001)]
    assert split(loads, fixed(0.05), MicroBatchParams(parts=3)) == 3
    with pytest.raises(ValueError, match="parts is in"):
        MicroBatchParams(parts=0)
