"""From proposals to traces to a model: what was put in comes out."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulator import clock
from benchmarks.simulator.acceptance import WRONG, Acceptance, DrafterModel, synthetic
from benchmarks.simulator.drafter import SimulatedDrafter
from benchmarks.simulator.fit import fit_acceptance, fit_drafter
from benchmarks.simulator.recorder import Recorder, Trace, read_traces, write_traces
from benchmarks.simulator.scripts import Target
from engine.protocol import Draft
from tests.engine.drafters.orders import Stream

TARGET = Target({})


def recorded(
    model: DrafterModel, tokens: int, depth: int, width: int = 1, caught_up: bool = False
) -> Trace:
    """One request, drafted and verified to its end, its drafter recorded; with `caught_up`, it had
    read the prompt in idle time before its first draft."""
    traces: list[Trace] = []

    async def main() -> None:
        acceptance = Acceptance({("prose", "ssm"): model})
        host = SimulatedDrafter("ssm", None, TARGET, acceptance, {"a": "prose"})
        recorder = Recorder(host, "ssm", lambda _request: "prose", traces.append)
        stream, truth = Stream("a", [1, 2, 3]), TARGET.block("a", 0, 0).tolist()
        said = 0
        if caught_up:
            await recorder.draft([stream.order(0)], None)
        while said < tokens:
            (answer,) = await recorder.draft([stream.order(depth, width)], None)
            assert isinstance(answer, Draft)
            accepted = len(answer.tree.follow(truth[said:]))
            stream.committed.extend(truth[said : said + accepted + 1])
            said += accepted + 1
        await recorder.draft([stream.order(0)], None)
        await recorder.forget(["a"])

    clock.run(main())
    (trace,) = traces
    return trace


def test_the_recorder_sees_the_draws_at_every_position_that_was_judged() -> None:
    model = synthetic(0.7)
    trace = recorded(model, tokens=120, depth=3)
    drawn = Acceptance({("prose", "ssm"): model}).draws(0, "prose", "ssm", 0)
    assert (trace.domain, trace.drafter) == ("prose", "ssm")
    assert trace.positions == sorted(set(trace.positions))
    assert trace.ranks == [0 if drawn.rank[p] == 0 else WRONG for p in trace.positions]
    first = [row[0] for row in trace.confidences]
    assert first == pytest.approx([float(drawn.confidence[p, 0]) for p in trace.positions])
    # Unjudged is only the target's own token behind a draft that was right to its end.
    unjudged = set(range(120)) - set(trace.positions)
    assert all(drawn.rank[p - 1] == 0 for p in unjudged)


def test_a_request_that_begins_with_catching_up_is_recorded_as_well() -> None:
    model = synthetic(0.7)
    trace = recorded(model, tokens=120, depth=3, caught_up=True)
    assert trace == recorded(model, tokens=120, depth=3)


def test_the_recorder_keeps_the_ranks_of_siblings() -> None:
    model = synthetic(0.5)
    trace = recorded(model, tokens=120, depth=1, width=4)
    drawn = Acceptance({("prose", "ssm"): model}).draws(0, "prose", "ssm", 0)
    assert trace.ranks == [drawn.rank[p] for p in trace.positions]
    assert {len(row) for row in trace.confidences} == {4}
    assert {0, 1, WRONG} <= set(trace.ranks)


def test_silence_is_recorded_as_silence() -> None:
    trace = recorded(DrafterModel((0.4, 0.9), (0.5, 0.9), silent=0.5), tokens=200, depth=4)
    silent = [rank for row, rank in zip(trace.confidences, trace.ranks, strict=True) if not row]
    assert len(silent) > 20
    assert set(silent) == {WRONG}


def test_traces_survive_the_file(tmp_path: Path) -> None:
    traces = [recorded(synthetic(0.6), tokens=20, depth=2)]
    write_traces(traces, tmp_path / "traces.jsonl")
    assert read_traces(tmp_path / "traces.jsonl") == traces


@pytest.fixture(scope="module")
def fitted() -> Acceptance:
    """Of traces that TRUTH has drawn."""
    return fit_acceptance(
        [
            Trace(str(seed), "", drafter, list(range(160)), beliefs, ranks)
            for seed in range(250)
            for drafter in ("ssm", "other")
            if (drawn := TRUTH.draws(seed, "", drafter, 0))
            and (beliefs := drawn.confidence[:160].tolist())
            and (ranks := drawn.rank[:160].tolist())
        ]
    )


TRUTH = Acceptance(
    {
        ("", "ssm"): synthetic(
            0.65, distortion=3.0, request_share=0.3, persistence=0.3, residual=0.5
        ),
        ("", "other"): synthetic(0.5, request_share=0.1, rank_shares=(), sibling_confidence=()),
    },
    request_agreement=0.8,
    position_agreement=0.3,
)


def test_the_fit_finds_what_was_put_in(fitted: Acceptance) -> None:
    found, put = fitted.models["", "ssm"], TRUTH.models["", "ssm"]
    assert found.acceptance == pytest.approx(put.acceptance, abs=0.04)
    assert found.confidence == pytest.approx(put.confidence, abs=0.03)
    off = np.abs(np.array(found.accepted) - np.array(put.accepted))
    assert off.mean() < 0.03
    assert found.request_share == pytest.approx(0.3, abs=0.08)
    assert found.persistence == pytest.approx(0.3, abs=0.06)
    assert found.residual == pytest.approx(0.5, abs=0.12)
    assert found.rank_shares == pytest.approx((0.3, 0.12, 0.08), abs=0.02)
    assert found.sibling_confidence == pytest.approx((0.45, 0.2, 0.1), abs=0.02)
    assert fitted.models["", "other"].residual < 0.2
    assert fitted.models["", "other"].rank_shares == ()


def test_the_fit_finds_what_drafters_share(fitted: Acceptance) -> None:
    assert fitted.position_agreement == pytest.approx(0.3, abs=0.06)
    assert fitted.request_agreement == pytest.approx(0.8, abs=0.25)


def test_a_drafter_that_never_spoke_never_speaks() -> None:
    model = fit_drafter([Trace("a", "", "ngram", [0, 1], [[], []], [WRONG, WRONG])])
    assert model.silent == 1.0
    assert model.acceptance == 0.0
