"""From a paper's settings to its verdicts: arrivals, rank prompts, runs, and values of rows."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from cluster.plan.simulator.workload import Arrival
from lab.baselines.catalogue import make_schedule
from lab.papers.__main__ import SMOKE, _obstacle, count_lines
from lab.papers.arrivals import arrivals
from lab.papers.bounds import bounds
from lab.papers.cells import Cell, cell, settings
from lab.papers.counting import count_claims
from lab.papers.measuring import measure
from lab.papers.native import measure_native
from lab.papers.rank_prompts import PREFIX, PredictedLengths, RankPrompting, with_prompts
from lab.papers.row import Row, Scalar
from lab.papers.settings import PAPERS, rows
from lab.papers.verdicts import cells_of, evaluate
from policies.request import RequestView
from policies.scheduling.laps_sd import LapsSdParams
from policies.scheduling.self_ranked import SelfRanked

NO_TRACES = Path()
BURST: dict[str, Scalar] = {"machine": "l20", "dataset": "mbpp", "workload": "burst"}


def all_rows(paper: str) -> list[Row]:
    return [*rows(paper, settings(paper)), *bounds(paper)]


def row(name: str) -> Row:
    paper = name.partition("/")[0]
    return next(row for row in all_rows(paper) if row.name == name)


def value(name: str, of_arm: Mapping[str, Mapping[str, float]]) -> float:
    """The value of a row whose cells have the metrics of their arm, the same in all cases."""
    paper = name.partition("/")[0]
    cells = cells_of(paper, row(name))
    return evaluate(paper, row(name), {one: of_arm[one.arm] for one in cells}).value


def queues(one: Cell) -> int:
    return int(one.at.get("queues", LapsSdParams().queues))


# Values of rows


def test_the_best_of_several_arms_is_the_lowest_where_lower_is_better() -> None:
    latency = {"laps_sd": 6.0, "lp_sjf": 10.0, "las": 8.0}
    measured = {arm: {"mean_latency": seconds} for arm, seconds in latency.items()}
    best = value("laps_sd/fig5/overall/latency_vs_best_baseline", measured)
    assert best == pytest.approx(6.0 / 8.0)


def test_seeds_are_averaged_before_ratios_and_ratios_geometrically() -> None:
    name = "laps_sd/fig5/overall/latency_vs_las"
    measured = {}
    for one in cells_of("laps_sd", row(name)):
        ours = one.arm == "laps_sd"
        doubled = one.at["dataset"] == "mbpp"
        # Seed 2 has more weight, for latencies are averaged before the ratio.
        latency = (2.0 if doubled else 0.5) if ours else 1.0
        measured[one] = {"mean_latency": latency * (6.0 if one.seed == 2 else 1.0)}
    verdict = evaluate("laps_sd", row(name), measured)
    assert verdict.value == pytest.approx((2.0 * 0.5 * 0.5) ** (1 / 3))


def test_argmin_is_the_value_of_the_axis_with_the_lowest_metric() -> None:
    name = "laps_sd/fig6/chatbot/10/best_queues"
    measured = {
        one: {"mean_latency": abs(queues(one) - 5.5) + one.seed}
        for one in cells_of("laps_sd", row(name))
    }
    verdict = evaluate("laps_sd", row(name), measured)
    assert verdict.value == 5.0
    assert verdict.status == "reproduced"
    assert verdict.record.reference == 6
    assert verdict.record.ratio == pytest.approx(5 / 6)


def test_a_ratio_of_zeros_is_1_and_a_ratio_to_zero_is_infinite() -> None:
    name = "adaserve/fig8/llama/4.8/violations_vs_best_fixed_length"
    fixed = {f"spec_{length}": {"violations": 0.0} for length in (4, 6, 8)}
    assert value(name, {"adaserve": {"violations": 0.0}, **fixed}) == 1.0
    assert value(name, {"adaserve": {"violations": 0.1}, **fixed}) == np.inf


def test_a_row_that_is_not_reproduced_is_missed_and_one_without_claim_is_not() -> None:
    missed = {"laps_sd": {"mean_latency": 2.0}, "lp_sjf": {"mean_latency": 1.0}}
    name = "laps_sd/fig5/overall/latency_vs_lp_sjf"
    cells = cells_of("laps_sd", row(name))
    verdict = evaluate("laps_sd", row(name), {one: missed[one.arm] for one in cells})
    assert verdict.status == "missed"
    name = "laps_sd/fig5/mbpp/10/default_vs_laps_sd"
    cells = cells_of("laps_sd", row(name))
    verdict = evaluate("laps_sd", row(name), {one: {"mean_latency": 1.0} for one in cells})
    assert verdict.status == "not specified by the paper"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_simulated_row_has_cells(paper: str) -> None:
    for one in all_rows(paper):
        if settings(paper).figures[one.figure].run == "simulator":
            assert cells_of(paper, one), one.name


def test_every_smoke_prefix_matches_a_row() -> None:
    names = [one.name for paper in PAPERS for one in all_rows(paper)]
    assert all(any(name.startswith(prefix) for name in names) for prefix in SMOKE)
    assert {prefix.partition("/")[0] for prefix in SMOKE} == set(PAPERS)


def test_what_calibrates_repeats_or_cannot_run_here_is_not_counted_as_evidence() -> None:
    padded = row("spin/fig12/alpaca/16/padded")
    plotted = row("spin/fig12/alpaca/8/latency_vs_padded")
    counted = count_claims([padded, plotted], [padded.name, plotted.name], {})
    assert counted == {"calibrated": 1, "not runnable here": 1}
    repeated = row("spin/fig10/alpaca/7b/selection")
    assert count_claims([repeated], [], {repeated.name: "reproduced"}) == {"repeats": 1}


def test_claims_are_counted_by_recorded_statuses_and_one_without_all_its_rows_is_not_run() -> None:
    rows_of = [one for one in all_rows("laps_sd") if one.figure in ("fig2", "fig7")]
    names = [one.name for one in rows_of if one.figure == "fig7"]
    reproduced = dict.fromkeys(names, "reproduced")
    assert count_claims(rows_of, [], reproduced)["reproduced"] == 1
    missed = {**reproduced, names[1]: "missed: unexplained"}
    assert count_claims(rows_of, [], missed)["missed"] == 1
    assert count_claims(rows_of, [], {names[0]: "reproduced"})["reproduced"] == 0
    assert count_claims(rows_of, names, reproduced)["not runnable here"] == 1


def test_the_table_of_claims_in_the_docs_is_what_the_command_prints() -> None:
    docs = Path("lab/docs")
    table = count_lines(docs / "papers" / "verdicts.json")
    assert len(table) == 1 + len(PAPERS)
    page = (docs / "papers.md").read_text()
    for line in table:
        assert line in page, line


def test_fig_12_runs_on_the_real_engine_whose_decomposed_layout_takes_less_memory() -> None:
    """Memory, because it is the same in every run. The paper's own milliseconds are not ours."""
    rows_of = {one.name: one for one in all_rows("spin") if one.figure == "fig12"}
    not_run = [name for name, one in rows_of.items() if _obstacle("spin", one, NO_TRACES)]
    assert sorted(not_run) == ["spin/fig12/alpaca/16/decomposed", "spin/fig12/alpaca/16/padded"]
    of_memory = rows_of["spin/fig12/alpaca/32/memory_vs_padded"]
    measured = measure_native(cells_of("spin", of_memory))
    assert 0.3 < evaluate("spin", of_memory, measured).value < 0.7
    assert all(metrics["verify_latency"] > 0 for metrics in measured.values())


# Arrivals


def drawn(paper: str, case: Mapping[str, Scalar], seed: int = 0) -> list[Arrival]:
    return arrivals(settings(paper), case, seed, idle_tpot_s=0.02, traces=NO_TRACES)


def test_a_trace_is_replayed_at_the_rate_of_the_case(tmp_path: Path) -> None:
    lines = [f'{{"arrival_s": {120 + second}}}' for second in range(60)]
    (tmp_path / "adaserve_rps4.0.jsonl").write_text("\n".join(lines))
    case: dict[str, Scalar] = {"dataset": "peak", "workload": "trace", "rate": 4.0}
    requests = arrivals(settings("adaserve"), case, 0, 0.02, tmp_path)
    assert len(requests) == 60
    assert requests[-1].at_s == pytest.approx(59 / 4)


# Rank prompts


def request(number: int, at_s: float) -> Arrival:
    return Arrival(f"r{number}", at_s, 50, 20, 40)


def view(name: str, at_s: float) -> RequestView:
    return RequestView(name, at_s, 50, 40)


def test_prompts_follow_full_batches_and_timeouts() -> None:
    requests = [request(number, 0.01 * number) for number in range(12)]
    requests += [request(12, 5.0)]
    prompted = with_prompts(requests, "length_only", batch=10, timeout_s=0.5, least=2)
    prompts = [one for one in prompted if one.name.startswith(PREFIX)]
    assert [one.at_s for one in prompts] == [0.09, pytest.approx(0.10 + 0.5, abs=1e-5)]
    assert prompts[0].prompt_tokens == 100 + 10 * 50
    assert len(with_prompts(requests, "length_only", 10, 0.5, least=1)) == len(prompted) + 1


def test_answers_order_requests_once_their_prompt_has_finished() -> None:
    schedule = RankPrompting(SelfRanked(), {"r0": 300.0, "r1": 20.0})
    views = [view("r0", 0.0), view("r1", 0.1)]
    for one in views:
        schedule.arrive(one, one.arrival_s)
    assert schedule.pick(views, [], 2, 0.2) == ["r0", "r1"]
    prompt = view(f"{PREFIX}0", 0.6)
    schedule.arrive(prompt, 0.6)
    assert schedule.pick([*views, prompt], [], 2, 0.6) == [prompt.name, "r0"]
    schedule.forget(prompt.name)
    assert schedule.pick(views, [], 2, 0.8) == ["r1", "r0"]


def test_a_schedule_that_reads_predicted_lengths_gets_them_with_the_answer() -> None:
    schedule = RankPrompting(PredictedLengths(make_schedule("lp_sjf")), {"r0": 300.0, "r1": 20.0})
    views = [view("r0", 0.0), view("r1", 0.1)]
    for one in views:
        schedule.arrive(one, one.arrival_s)
    schedule.arrive(view(f"{PREFIX}0", 0.6), 0.6)
    assert [one.predicted_len for one in views] == [None, None]
    schedule.forget(f"{PREFIX}0")
    assert [one.predicted_len for one in views] == [300.0, 20.0]


# Runs


def run(paper: str, arm: str, case: Mapping[str, Scalar], seed: int = 0) -> dict[str, float]:
    return measure(cell(paper, arm, case, seed), NO_TRACES)


def test_the_same_cell_gives_the_same_numbers_and_seeds_differ() -> None:
    case = {**BURST, "requests": 10}
    assert run("laps_sd", "laps_sd", case) == run("laps_sd", "laps_sd", case)
    other = run("laps_sd", "laps_sd", case, seed=1)
    assert other["mean_latency"] != run("laps_sd", "laps_sd", case)["mean_latency"]


def test_srpt_with_true_lengths_beats_every_schedule() -> None:
    case = {**BURST, "requests": 20}
    srpt = run("laps_sd", "srpt", case)["mean_latency"]
    for arm in ("laps_sd", "lp_sjf", "las", "fcfs", "default"):
        assert srpt <= run("laps_sd", arm, case)["mean_latency"], arm


def test_a_run_ends_when_its_metrics_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of 3,000 requests ends after its ten minutes, here after two seconds."""
    monkeypatch.setattr("lab.papers.measuring.ENDS", {"flood": (2.0, 1)})
    case: dict[str, Scalar] = {"machine": "a100", "dataset": "sharegpt", "workload": "flood"}
    answered = run("self_scheduling", "fcfs", case)
    assert 1 <= answered["answered_10_min"] < 100
    assert np.isnan(answered["minutes_to_500"])
