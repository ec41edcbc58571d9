"""Recording drafters and fitting a model recovers the parameters of the model they drew from."""

import numpy as np
import pytest

from benchmarks.simulator import clock
from benchmarks.simulator.acceptance import WRONG, Acceptance, DrafterModel, synthetic
from benchmarks.simulator.drafter import SimulatedDrafter
from benchmarks.simulator.outputs import Target
from engine.protocol import Draft
from lab.studies.fit import fit_acceptance, fit_drafter
from lab.studies.recorder import Recorder, Trace
from tests.engine.drafters.orders import Stream

TARGET = Target({})


def recorded(
    model: DrafterModel, tokens: int, depth: int, width: int = 1, caught_up: bool = False
) -> Trace:
    """The trace of one request that is drafted and verified to its end; with `caught_up`, an order
    for catch-up alone precedes the first draft."""
    traces: list[Trace] = []

    async def main() -> None:
        acceptance = Acceptance({("prose", "ssm"): model})
        host = SimulatedDrafter("ssm", None, TARGET, acceptance, {"a": "prose"})
        recorder = Recorder(host, "ssm", lambda _request: "prose", traces.append)
        stream, output = Stream("a", [1, 2, 3]), TARGET.block("a", 0, 0).tolist()
        position = 0
        if caught_up:
            await recorder.draft([stream.order(0)], None)
        while position < tokens:
            (answer,) = await recorder.draft([stream.order(depth, width)], None)
            assert isinstance(answer, Draft)
            accepted = len(answer.tree.follow(output[position:]))
            stream.committed.extend(output[position : position + accepted + 1])
            position += accepted + 1
        await recorder.draft([stream.order(0)], None)
        await recorder.forget(["a"])

    clock.run(main())
    (trace,) = traces
    return trace


def test_a_trace_holds_the_draws_at_every_position_that_was_verified() -> None:
    model = synthetic(0.7)
    trace = recorded(model, tokens=120, depth=3)
    drawn = Acceptance({("prose", "ssm"): model}).draws(0, "prose", "ssm", 0)
    assert (trace.domain, trace.drafter) == ("prose", "ssm")
    assert trace.positions == sorted(set(trace.positions))
    assert trace.ranks == [0 if drawn.rank[p] == 0 else WRONG for p in trace.positions]
    first = [row[0] for row in trace.confidences]
    assert first == pytest.approx([float(drawn.confidence[p, 0]) for p in trace.positions])
    # Not recorded are only the target's own tokens after drafts that were right to their end.
    unrecorded = set(range(120)) - set(trace.positions)
    assert all(drawn.rank[p - 1] == 0 for p in unrecorded)


def test_a_request_that_starts_with_catch_up_is_recorded_too() -> None:
    model = synthetic(0.7)
    trace = recorded(model, tokens=120, depth=3, caught_up=True)
    assert trace == recorded(model, tokens=120, depth=3)


def test_a_trace_holds_the_ranks_of_siblings() -> None:
    model = synthetic(0.5)
    trace = recorded(model, tokens=120, depth=1, width=4)
    drawn = Acceptance({("prose", "ssm"): model}).draws(0, "prose", "ssm", 0)
    assert trace.ranks == [drawn.rank[p] for p in trace.positions]
    assert {len(row) for row in trace.confidences} == {4}
    assert {0, 1, WRONG} <= set(trace.ranks)


def test_positions_without_a_proposal_are_recorded() -> None:
    trace = recorded(DrafterModel((0.4, 0.9), (0.5, 0.9), silent=0.5), tokens=200, depth=4)
    empty = [rank for row, rank in zip(trace.confidences, trace.ranks, strict=True) if not row]
    assert len(empty) > 20
    assert set(empty) == {WRONG}


@pytest.fixture(scope="module")
def fitted() -> Acceptance:
    """To traces drawn from DRAWN_FROM."""
    return fit_acceptance(
        [
            Trace(str(seed), "", drafter, list(range(160)), confidences, ranks)
            for seed in range(250)
            for drafter in ("ssm", "other")
            if (drawn := DRAWN_FROM.draws(seed, "", drafter, 0))
            and (confidences := drawn.confidence[:160].tolist())
            and (ranks := drawn.rank[:160].tolist())
        ]
    )


DRAWN_FROM = Acceptance(
    {
        ("", "ssm"): synthetic(
            0.65, distortion=3.0, request_share=0.3, persistence=0.3, residual=0.5
        ),
        ("", "other"): synthetic(0.5, request_share=0.1, rank_shares=(), sibling_confidence=()),
    },
    request_agreement=0.8,
    position_agreement=0.3,
)


def test_the_fit_recovers_each_drafters_parameters(fitted: Acceptance) -> None:
    model, original = fitted.models["", "ssm"], DRAWN_FROM.models["", "ssm"]
    assert model.acceptance == pytest.approx(original.acceptance, abs=0.04)
    assert model.confidence == pytest.approx(original.confidence, abs=0.03)
    error = np.abs(np.array(model.accepted) - np.array(original.accepted))
    assert error.mean() < 0.03
    assert model.request_share == pytest.approx(0.3, abs=0.08)
    assert model.persistence == pytest.approx(0.3, abs=0.06)
    assert model.residual == pytest.approx(0.5, abs=0.12)
    assert model.rank_shares == pytest.approx((0.3, 0.12, 0.08), abs=0.02)
    assert model.sibling_confidence == pytest.approx((0.45, 0.2, 0.1), abs=0.02)
    assert fitted.models["", "other"].residual < 0.2
    assert fitted.models["", "other"].rank_shares == ()


def test_the_fit_recovers_the_agreement_of_drafters(fitted: Acceptance) -> None:
    assert fitted.position_agreement == pytest.approx(0.3, abs=0.06)
    assert fitted.request_agreement == pytest.approx(0.8, abs=0.25)


def test_a_drafter_without_any_proposal_is_fitted_as_empty() -> None:
    model = fit_drafter([Trace("a", "", "ngram", [0, 1], [[], []], [WRONG, WRONG])])
    assert model.silent == 1.0
    assert model.acceptance == 0.0
