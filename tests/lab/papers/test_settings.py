"""The papers' transcribed settings are complete and cited, and mistakes are refused."""

from pathlib import Path

import pytest

from lab.papers.row import RowTemplate
from lab.papers.settings import PAPERS, BadSettings, Paper, load, rows

FIGURES = {
    "spin": {"fig4", "fig10", "fig11", "fig12", "fig13"},
    "specserve": {"fig7", "fig8", "fig9", "overload", "fig10", "fig11", "fig12", "table2"},
    "adaserve": {"overload", *(f"fig{n}" for n in (8, 9, 10, 11, 12, 14, 15, 16))},
    "laps_sd": {"fig2", "fig3", "fig5", "fig6", "fig7"},
    "self_scheduling": {"fig5", "fig6", "fig7", "fig8", "fig10", "table1", "table2", "table3"},
}
"""All to be reproduced. Self-scheduling's Fig. 8 is its starvation ablation; `overload` are set-ups
of ours for claims that name none."""

SMALL = """
title: Small
models: {big: {paper: Big, shape: LLAMA_7B, source: "§1"}}
machines: {one: {target: big, gpu: L20, max_batch: 1, source: "§1"}}
datasets:
  chat: {paper: Chat, lengths: {prompt_mean: 10, output_mean: 20}, source: "not specified; ours"}
workloads: {burst: {arrivals: poisson, rate: 1.0, source: "§2"}}
metrics: {latency: {means: mean, unit: s, better: lower, source: "§2"}}
fixed: {selection: fixed, speculation: {fixed: {length: 4}}, pipeline: {parts: 1}}
arms:
  las: {schedule: las, source: "§3"}
  fcfs: {schedule: fcfs, source: "§3"}
figures:
  fig1:
    title: Latency
    source: "§4"
    run: simulator
    case: {machine: one, dataset: chat, workload: burst}
    over: {requests: [10, 20]}
    arms: [las, fcfs]
    rows:
      - {row: "{requests}/las_vs_fcfs", metric: latency, of: las, against: [fcfs], value: ratio,
         unit: x, printed: 0.64, direction: below, quote: "36% less", source: "§4"}
"""


def small(folder: Path, old: str = "", new: str = "") -> Paper:
    """The paper above with one passage replaced."""
    assert old in SMALL
    (folder / "small.yaml").write_text(SMALL.replace(old, new, 1) if old else SMALL)
    return load("small", folder)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_exists_and_has_rows(paper: str) -> None:
    settings = load(paper)
    written = rows(paper, settings)
    assert set(settings.figures) == FIGURES[paper]
    assert {row.figure for row in written} == FIGURES[paper]
    assert all(row.name.startswith(f"{paper}/{row.figure}/") for row in written)
    assert not any(mark in row.name for row in written for mark in "{} ")


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_own_numbers_count_as_reproduced(paper: str) -> None:
    printed = [row for row in rows(paper, load(paper)) if row.template.printed is not None]
    assert printed
    for row in printed:
        assert row.reproduced(row.template.printed or 0.0), row.name


def test_rows_are_written_out_over_the_axes_in_their_names(tmp_path: Path) -> None:
    written = rows("small", small(tmp_path))
    assert [row.name for row in written] == [
        "small/fig1/10/las_vs_fcfs",
        "small/fig1/20/las_vs_fcfs",
    ]
    assert written[1].case == {
        "machine": "one",
        "dataset": "chat",
        "workload": "burst",
        "requests": 20,
    }


def test_a_reduced_axis_is_swept_by_one_row(tmp_path: Path) -> None:
    settings = small(
        tmp_path, '"{requests}/las_vs_fcfs"', "overall, across: [requests], reduce: mean"
    )
    (row,) = rows("small", settings)
    assert row.name == "small/fig1/overall"
    assert row.sweep == {"requests": (10, 20)}
    assert "requests" not in row.case


def test_arms_share_the_fixed_entries(tmp_path: Path) -> None:
    arms = small(tmp_path).arms
    assert arms["las"].schedule.name == "las"
    assert arms["las"].speculation == arms["fcfs"].speculation
    assert arms["las"].speculation.options == {"length": 4}


def template(**claim: object) -> RowTemplate:
    base = {"row": "r", "metric": "m", "of": "a", "unit": "x", "quote": "so", "source": "§1"}
    return RowTemplate.model_validate({**base, **claim})


@pytest.mark.parametrize(
    ("claim", "inside", "outside"),
    [
        ({"value": "ratio", "against": ["b"], "printed": 0.64, "direction": "below"}, 0.57, 0.75),
        ({"value": "ratio", "against": ["b"], "printed": 2.25, "direction": "above"}, 2.0, 1.9),
        ({"value": "ratio", "against": ["b"], "printed": 2.25, "direction": "above"}, 2.5, 2.6),
        ({"value": "ratio", "against": ["b"], "printed": 1.05, "direction": "above"}, 1.01, 0.99),
        ({"value": "ratio", "against": ["b"], "printed": 0.95, "direction": "below"}, 0.99, 1.01),
        ({"value": "ratio", "against": ["b"], "direction": "above"}, 1.01, 1.0),
        ({"value": "ratio", "against": ["b"], "direction": "near"}, 0.95, 0.85),
        ({"value": "difference", "against": ["b"], "direction": "below"}, -0.01, 0.0),
        ({"value": "plain", "printed": 30.0}, 27.0, 25.0),
        ({"value": "plain", "printed": 6, "accept": [5, 7]}, 7.0, 8.0),
    ],
)
def test_what_counts_as_reproduced(
    tmp_path: Path, claim: dict[str, object], inside: float, outside: float
) -> None:
    row = rows("small", small(tmp_path))[0]
    row = type(row)(row.name, row.figure, template(**claim), row.case, row.sweep)
    assert row.reproduced(inside) is True
    assert row.reproduced(outside) is False


def test_a_row_without_number_or_direction_is_not_specified(tmp_path: Path) -> None:
    row = rows("small", small(tmp_path, "printed: 0.64, direction: below, ", ""))[0]
    assert row.accepted is None
    assert row.reproduced(0.5) is None


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('max_batch: 1, source: "§1"', 'max_batch: 1, source: "assumed"', "cites no section"),
        ("shape: LLAMA_7B", "shape: LLAMA_8B", "LLAMA_8B"),
        ("gpu: L20", "gpu: LLAMA_7B", "no Gpu named"),
        ("target: big", "target: huge", "there is no 'huge'"),
        ("gpu: L20", "gpu: L20, drafters: [{model: big, capacity: 1}]", "no acceptance of big"),
        ("schedule: las", "schedule: srpt", "there is no 'srpt'"),
        ("{fixed: {length: 4}}", "{fixed: {depth: 4}}", "no option 'depth'"),
        ("parts: 1", "most_parts: 1", "most_parts"),
        ("prompt_mean: 10", "prompts: 10", "prompts"),
        ("arms: [las, fcfs]", "arms: [las]", "'fcfs' is not among"),
        ("over: {requests: [10, 20]}", "over: {rate: [1, 2]}", "needs 'requests'"),
        ("dataset: chat, ", "", "must name the dataset"),
        ("unit: x, printed", "only: {clients: [1]}, unit: x, printed", "'clients' is no axis"),
        ("unit: x, printed", "only: {requests: [30]}, unit: x, printed", "no value 30"),
        ("direction: below", "direction: above", "is not above"),
        ('row: "{requests}/las_vs_fcfs"', "row: same", "rows of one name"),
        ("fcfs: {schedule: fcfs", "las: {schedule: fcfs", "given twice"),
        ("printed: 0.64", "prints: 0.64", "prints"),
        ("metric: latency", "metric: speed", "there is no 'speed'"),
    ],
)
def test_mistakes_are_refused_with_their_place(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    with pytest.raises(BadSettings, match=r"small\.yaml") as refused:
        small(tmp_path, old, new)
    assert complaint in str(refused.value)
