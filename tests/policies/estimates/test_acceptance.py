"""Each drafter is credited with what it proposes, a costly one with what it adds to free ones, and
what one replica learns serves the others."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from policies.estimates.acceptance import (
    AcceptanceEstimates,
    Estimate,
    accepted_levels,
    estimate,
    level_accepted,
)
from policies.pooling import Statistics
from policies.request import LaneView, RequestView
from policies.tree import DraftTree
from tests.policies.speculation.rounds import Candidate, together, view
from tests.policies.tree_lists import merged_each

LANES = [LaneView(name, name, capacity=8) for name in ("lookup", "ssm")]


def new_estimates() -> AcceptanceEstimates:
    estimates = AcceptanceEstimates(LANES, ["lookup"])
    estimates.rows(["r"])
    return estimates


def merged(request: RequestView, *proposals: tuple[str, DraftTree]) -> Candidate:
    [(tree, sources)] = merged_each([[tree for _, tree in proposals]])
    return Candidate(request, tree, lanes=[lane for lane, _ in proposals], sources=sources)


def teach(estimates: AcceptanceEstimates, drafted: Sequence[Candidate]) -> None:
    candidates = together(drafted)
    names = [one.request.name for one in drafted]
    estimates.credit(names, candidates.trees, candidates.lanes, candidates.sources)


def of(estimates: AcceptanceEstimates, lane: str, request: str = "r") -> Estimate:
    [row], [number] = estimates.rows([request]), estimates.numbers([lane])
    return estimate(estimates.tables, row, number)


def of_lane(estimates: AcceptanceEstimates, lane: str) -> float:
    return level_accepted(estimates.tables, estimates.numbers([lane])[0])


def taught(*proposals: tuple[str, DraftTree]) -> AcceptanceEstimates:
    """After many rounds with these proposals."""
    estimates, chosen = new_estimates(), [merged(view("r"), *proposals)]
    for _ in range(200):
        teach(estimates, chosen)
    return estimates


def test_a_merged_tree_is_not_credited_to_its_last_lane() -> None:
    """Lookup is right nine times in ten, the costly lane's own tree, elsewhere, one in twenty."""
    estimates = taught(
        ("lookup", DraftTree.chain([1, 2], [0.9, 0.9])), ("ssm", DraftTree.chain([3], [0.05]))
    )
    assert of_lane(estimates, "lookup") == pytest.approx(0.9, abs=0.02)
    assert of_lane(estimates, "ssm") == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(
    ("lookup", "share"),
    [([7, 8], 1.0), ([1], 0.4 / (0.8 + 0.4)), ([1, 2], 0.0)],
    ids=["elsewhere", "shorter", "the same"],
)
def test_a_costly_lane_s_share_is_what_no_free_one_has_proposed(
    lookup: list[int], share: float
) -> None:
    own = DraftTree.chain([1, 2], [0.8, 0.5])
    same = [0.8, 0.5] if lookup[0] == 1 else [0.1, 0.1]
    free = DraftTree.chain(lookup, same[: len(lookup)])
    added = of(taught(("lookup", free), ("ssm", own)), "ssm").added
    assert added == pytest.approx(share, abs=0.03)
    free_added = of(taught(("lookup", free), ("ssm", own)), "lookup").added
    assert free_added == pytest.approx(1.0)


def test_a_lookup_that_finds_rarely_but_long_drafts_is_estimated_for_both() -> None:
    """For a new request; otherwise the levels of long drafts would count as finds."""
    estimates = taught(("lookup", DraftTree.chain([1] * 5, [0.9] * 5)))
    for _ in range(300):
        for _ in range(4):
            estimates.observe_miss(["r"], "lookup")
        teach(estimates, [merged(view("r"), ("lookup", DraftTree.chain([1] * 5, [0.9] * 5)))])
    of_new = of(estimates, "lookup", "new")
    assert of_new.first == pytest.approx(0.9 / 5, abs=0.03)
    assert of_new.later == pytest.approx(0.9, abs=0.03)


def test_catching_up_shows_what_the_lane_would_have_drafted() -> None:
    """Right three times, wrong, right, wrong, wrong: three drafts, of which one went on twice."""
    estimates = new_estimates()
    matched = [True, True, True, False, True, False, False]
    for _ in range(50):
        estimates.observe_read("r", "ssm", matched, [False] * 7)
    of_new = of(estimates, "ssm", "new")
    assert of_new.first == pytest.approx(2 / 3, abs=0.01)
    assert of_new.later == pytest.approx(2 / 4, abs=0.01)


def test_what_lookup_had_proposed_is_not_added_by_the_lane_that_reads_it() -> None:
    estimates = new_estimates()
    for _ in range(50):
        estimates.observe_read("r", "ssm", [True] * 4, [True, True, True, False])
    assert of(estimates, "ssm").added == pytest.approx(0.25, abs=0.05)


def test_own_evidence_outweighs_that_of_all_others_after_a_few_rounds_and_follows_changes() -> None:
    estimates = new_estimates()
    estimates.rows(["other"])
    for _ in range(100):
        estimates.observe_read("other", "ssm", [True, False], [False] * 2)
    right, wrong = [True] * 3, [False] * 3
    assert of(estimates, "ssm", "new").first > 0.9
    for matched, reads, low, high in ((wrong, 2, 0.0, 0.3), (right, 12, 0.7, 1.0)):
        for _ in range(reads):
            estimates.observe_read("r", "ssm", matched, [False] * 3)
        assert low < of(estimates, "ssm").first < high


def test_lanes_of_one_drafter_share_its_evidence() -> None:
    estimates = AcceptanceEstimates([LaneView("a1", "a", 4), LaneView("a2", "a", 4)])
    estimates.rows(["r"])
    for _ in range(20):
        estimates.observe_read("r", "a1", [False] * 4, [False] * 4)
    assert of(estimates, "a2").first < 0.1


def test_an_adapter_is_learned_apart_and_by_each_replica_of_it() -> None:
    """A drafter that knows nothing of it is right of the base model alone."""
    estimates = new_estimates()
    estimates.adapt("adapted", "sql")
    for _ in range(20):
        estimates.observe_read("r", "ssm", [True] * 3, [False] * 3)
        estimates.observe_read("adapted", "ssm", [False] * 3, [False] * 3)
        estimates.observe_miss(["adapted"], "lookup")
        teach(estimates, [Candidate(view("r"), DraftTree.chain([1], [0.9]), lanes=["ssm"])])
    estimates.forget("adapted")
    estimates.forget("r")
    other = new_estimates()
    other.adapt("new", "sql")
    other.pool(estimates.export())
    for learned, name in ((estimates, "first"), (other, "second")):
        assert of(learned, "ssm", name).first > 0.8
        learned.adapt("next", "sql")
        assert of(learned, "ssm", "next").first < 0.1
        assert of(learned, "lookup", name).first > 0.5 > of(learned, "lookup", "next").first
    assert 0.1 < of_lane(estimates, "ssm") < 0.8


def test_adapters_beyond_the_most_share_what_is_learned_without_one() -> None:
    estimates = new_estimates()
    for number in range(100):
        estimates.adapt(str(number), f"adapter-{number}")
    assert len(estimates.tables.pool) <= 128
    estimates.observe_read("99", "ssm", [False] * 3, [False] * 3)
    assert of(estimates, "ssm", "r").first < 0.5 < of(estimates, "ssm", "1").first


def test_a_forgotten_request_leaves_no_evidence_of_its_own() -> None:
    estimates = taught(("ssm", DraftTree.chain([1], [0.9])))
    for _ in range(20):
        estimates.observe_read("r", "ssm", [False], [False])
    assert of(estimates, "ssm").first < 0.2
    estimates.forget("r")
    assert of(estimates, "ssm", "new").first > 0.7
    estimates.observe_read("r", "ssm", [False], [False])  # comes late
    assert of(estimates, "ssm", "another").first > 0.7


# -- replicas ----------------------------------------------------------------------------------


def exported(confidence: float) -> Statistics:
    """The estimates of a replica whose costly lane is accepted so often."""
    return taught(("ssm", DraftTree.chain([1, 2], [confidence] * 2))).export()


def test_a_new_replica_takes_the_estimates_of_the_others_and_the_last_ones_only() -> None:
    estimates = new_estimates()
    for confidence in (0.1, 0.9, 0.2):
        estimates.pool(exported(confidence))
        assert of_lane(estimates, "ssm") == pytest.approx(confidence, abs=0.02)
    assert json.loads(json.dumps(exported(0.5))) == exported(0.5)


def test_what_others_have_seen_is_not_exported() -> None:
    estimates = taught(("ssm", DraftTree.chain([1], [0.9])))
    own = estimates.export()
    estimates.pool(exported(0.1))
    assert estimates.export() == own


def test_a_replica_weighs_its_own_requests_however_many_others_there_are() -> None:
    estimates = taught(("ssm", DraftTree.chain([1], [0.9])))
    of_others = {name: [1e6 * value for value in vector] for name, vector in exported(0.1).items()}
    estimates.pool(of_others)
    assert of_lane(estimates, "ssm") > 0.3


def test_exported_evidence_stays_bounded() -> None:
    for levels in map(accepted_levels, map(np.array, exported(0.9).values())):
        assert levels[1] <= 520


def test_other_formats_and_drafters_of_other_replicas_are_ignored() -> None:
    """As during the rollout of a new version or config."""
    estimates = taught(("ssm", DraftTree.chain([1], [0.9])))
    before = of_lane(estimates, "ssm")
    estimates.pool({"ssm": [5.0, 5.0], "unknown": exported(0.1)["ssm"]})
    assert of_lane(estimates, "ssm") == before
