"""Why rows are missed: the setting that each group of rows blames, and a run with it changed.

`python -m lab.papers --cause NAME` runs the group's rows with both settings, side by side. A
missed row without such a run is unexplained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from lab.papers.ranges import PER_TOKEN, SSM_LAYERS, STATIC_BATCHES, static_lengths
from lab.papers.row import Interval
from lab.papers.settings import Changes


@dataclass(frozen=True, slots=True)
class Cause:
    paper: str
    rows: Sequence[str]
    """The missed rows that it explains, as patterns of file names."""
    claim: str
    changes: Changes
    shows: str
    """The cheapest row that shows it."""
    becomes: Interval
    """What the value of `shows` then is; otherwise the cause does not hold."""
    small: Changes = field(default_factory=dict)
    """Changed in addition, on both sides, where a test runs `shows`."""


POISSON_WORKLOAD: Changes = {
    "arrivals": "poisson",
    "requests": 100,
    "rate": 4.0,
    "slo": {
        "coding": {"tpot_idle_multiple": 1.2},
        "chat": {"tpot_s": 0.05},
        "summarising": {"tpot_s": 0.15},
    },
    "source": "not specified; ours",
}
"""In the place of AdaServe's trace, where a test runs a cause."""

CAUSES: Mapping[str, Cause] = {
    "time_for_tokens_only": Cause(
        "spin",
        ("spin/fig4/1/speedup",),
        "all but 15 ms of a verification is time for tokens, as Fig. 13's gain needs; with 100 ms "
        "that are not, Fig. 4's and Fig. 10's factors are here, and the pipeline gains nothing",
        {
            "machines.7b.verify": {
                "fixed_s": 0.1,
                "row_s": (0.33546 - 0.1) / 80,
                "padded_row_s": (0.52921 - 0.1) / 80,
            }
        },
        "spin/fig4/1/speedup",
        (1.61 / 1.15, 1.61 * 1.15),
        {"workloads.batches.requests": 24},
    ),
    "padding_at_batch_8": Cause(
        "spin",
        ("spin/fig10/*/7b/spin_vs_68m", "spin/fig10/cp/7b/unpiped_vs_68m"),
        "what padding costs is measured at 16 requests of Alpaca (Fig. 12), taken at 8 and for CP, "
        "where it is less; with 5.3 ms a padded token for 6.43 both datasets' factors are here",
        {"machines.7b.verify.padded_row_s": 0.0053},
        "spin/fig10/alpaca/7b/spin_vs_68m",
        (2.34 / 1.15, 2.34 * 1.15),
    ),
    "drafts_by_the_token": Cause(
        "spin",
        ("spin/fig13/alpaca/4/goodput_vs_1_part_printed",),
        "drafting takes a fraction of the verification, and a part's draft as long as the whole "
        "batch's; with 12 ms for each draft token (the target's own take 4) Fig. 13's gain is here",
        {
            "machines.7b.drafters": [
                {"model": model, "capacity": 16, "step_s": 0.0001, "row_s": 0.012}
                for model in SSM_LAYERS
            ],
            "workloads.batch_80.clients": 40,
        },
        "spin/fig13/alpaca/4/goodput_vs_1_part_printed",
        (1.29 / 1.15, 1.29 * 1.15),
        {"workloads.batch_80.requests": 96},
    ),
    "ssms_suit_requests": Cause(
        "spin",
        ("spin/fig10/*/selection_vs_best_ssm", "spin/fig10/alpaca/7b/selection_vs_68m"),
        "requests differ too little in which SSM suits them: of the variance of predictability a "
        "third is the request's own; with nine tenths selection gains over every single SSM",
        {
            f"datasets.{dataset}.acceptance.{model}.request_share": 0.9
            for dataset in ("alpaca", "cp", "cip")
            for model in SSM_LAYERS
        },
        "spin/fig10/alpaca/7b/selection_vs_best_ssm",
        (1.0, 2.0),
        {"workloads.batch_8.requests": 40},
    ),
    "bare_mean": Cause(
        "specserve",
        (
            "specserve/table2/trace_3/specserve_minus/acceptance_rate",
            "specserve/table2/trace_3/specserve/acceptance_rate",
        ),
        "Algorithm 1's line 19 as printed takes the next level's acceptance to be the historical "
        "mean, whatever the levels before it accept; eq. 8, which we follow, multiplies it",
        {
            "arms.specserve.speculation": {"specserve": {"bare_mean": True}},
            "arms.specserve_minus.speculation": {
                "specserve": {"eliminate": False, "bare_mean": True}
            },
        },
        "specserve/table2/trace_3/specserve_minus/acceptance_rate",
        (0.33 / 1.15, 0.33 * 1.15),
    ),
    "long_answers": Cause(
        "spin",
        ("spin/fig11/alpaca/7b/lbss_vs_greedy_printed",),
        "LBSS explores as much in answers of 200 tokens as in long ones, and requests differ too "
        "little; with 800 tokens and nine tenths of predictability the request's own, the distance "
        "to greedy is as printed, that to ε-greedy half of the way",
        {
            **{
                f"datasets.{dataset}.acceptance.{model}.request_share": 0.9
                for dataset in ("alpaca", "cp", "cip")
                for model in SSM_LAYERS
            },
            **{f"datasets.{dataset}.lengths.output_mean": 800 for dataset in ("alpaca", "cp")},
            **{f"datasets.{dataset}.lengths.longest": 2048 for dataset in ("alpaca", "cp")},
        },
        "spin/fig11/alpaca/7b/lbss_vs_greedy_printed",
        (2.028 / 1.15, 2.028 * 1.15),
        {"workloads.batch_8.requests": 48},
    ),
    "tpot_of_every_round": Cause(
        "specserve",
        (
            "specserve/fig9/least_vs_best_baseline",
            "specserve/fig9/trace_1/vs_best_baseline_least",
            "specserve/table2/trace_1/specserve*/draft_tokens",
        ),
        "SpecServe keeps each round within 30 ms, which on a machine whose plain round takes 20 "
        "leaves it no draft from 14 requests on; without an SLO it is ahead of all, as printed",
        {f"workloads.trace_{number}.slo": {} for number in (1, 2, 3)},
        "specserve/table2/trace_1/specserve/draft_tokens",
        (1.59 / 1.15, 1.59 * 1.15),
    ),
    "printed_rule_without_slo": Cause(
        "specserve",
        (
            "specserve/table2/trace_2/specserve/draft_tokens",
            "specserve/table2/trace_[12]/specserve/acceptance_rate",
        ),
        "line 19 of Algorithm 1 as printed drafts longer (bare_mean), which shows in bursts only "
        "where the TPOT does not end each round (tpot_of_every_round)",
        {
            "arms.specserve.speculation": {"specserve": {"bare_mean": True}},
            **{f"workloads.trace_{number}.slo": {} for number in (1, 2, 3)},
        },
        "specserve/table2/trace_1/specserve/acceptance_rate",
        (0.42 / 1.15, 0.42 * 1.15),
    ),
    "requests_stop_alone": Cause(
        "specserve",
        ("specserve/fig12/*/threshold_length_follows_batch",),
        "all requests of a batch have as many draft steps (§2.4), so that the threshold-based "
        "method drafts longer in larger batches; if each stops by itself, length and batch are "
        "unrelated",
        {
            "arms.threshold.speculation": {
                "threshold": {"confidence": 0.4, "max_length": 8, "together": False}
            }
        },
        "specserve/fig12/trace_3/threshold_length_follows_batch",
        (-0.2, 0.2),
    ),
    "late_estimate": Cause(
        "laps_sd",
        (
            "laps_sd/fig6/*/2_queues_vs_best",
            "laps_sd/fig6/chatbot/*/best_queues",
            "laps_sd/fig7/mbpp/estimate_error",
        ),
        "with γ = 4, which is best for latency, requests are perceptible after 0.2 s, before they "
        "leave the first queue; with γ = 16 queues matter and estimates err half as much, but "
        "LAPS-SD is behind LP-SJF",
        {
            "arms.laps_sd.schedule": {
                "laps_sd": {"first_queue_s": 0.1, "stable_rounds": 16, "stable_within": 0.05}
            },
            **{
                f"datasets.{dataset}.predictor_error": 0.05
                for dataset in ("chatbot", "mbpp", "minithinky")
            },
        },
        "laps_sd/fig7/mbpp/estimate_error",
        (0.07, 0.14),
    ),
    "latency_per_token": Cause(
        "self_scheduling",
        (
            "self_scheduling/fig6/*/*/latency_vs_fcfs",
            "self_scheduling/fig6/*/latency_vs_other_prompts",
            "self_scheduling/fig10/*/*/latency_vs_fcfs",
        ),
        "`latency per request` (§5.2) does not say whether of whole requests or for each token, of "
        "which short requests that wait long have the most; LengthOnly serves them first",
        PER_TOKEN,
        "self_scheduling/fig6/sharegpt/16/latency_vs_fcfs",
        (0.4, 0.8),
        {"workloads.rates.requests": 100},
    ),
    "static_batches": Cause(
        "self_scheduling",
        (
            "self_scheduling/fig6/*/*/tpot_vs_fcfs",
            "self_scheduling/fig6/numinamath/least_tpot_vs_fcfs",
            "self_scheduling/fig7/numinamath_thinking/*",
        ),
        "vLLM replaces each request that ends; batches of ten that wait for their longest, as "
        "§5.2's `drag caused by long-tail requests` says, give the printed sides of TPOT and TTFT",
        {**STATIC_BATCHES, **PER_TOKEN, **static_lengths()},
        "self_scheduling/fig6/numinamath/64/tpot_vs_fcfs",
        (0.2, 0.8),
        {"workloads.rates.requests": 60},
    ),
    "time_below_the_knee": Cause(
        "adaserve",
        ("adaserve/fig10/*/vllm_0.9_vs_0.1", "adaserve/fig10/*/sarathi_0.9_vs_0.1"),
        "a roofline has hardly any time for a token below its knee, so that plain decoding stays "
        "within 1.2 times the idle latency with 40 requests; on the artifact's profile it does not",
        {
            "machines.llama.verify": {"fixed_s": 0.030, "row_s": 0.000175},
            "machines.qwen.verify": {"fixed_s": 0.028, "row_s": 0.000156},
        },
        "adaserve/fig10/llama/vllm_0.9_vs_0.1",
        (0.05, 0.5),
        {"workloads.trace": POISSON_WORKLOAD},
    ),
    "planned_to_the_limit": Cause(
        "adaserve",
        ("adaserve/fig16/*/2_slo_selection",),
        "the SLO step alone drafts what E[acc] = A(r) needs (eq. 3), so that requests end at their "
        "TPOT, most of them some percent behind it; judged by 5% more, half as many again attain",
        {"workloads.trace.judged": 1.05},
        "adaserve/fig16/llama/2_slo_selection",
        (0.7, 1.0),
        {"workloads.trace": POISSON_WORKLOAD},
    ),
}


def cause_of(row: str) -> str:
    """Its claim and name; `unexplained` if no experiment shows why the row is missed."""
    for name, cause in CAUSES.items():
        if any(fnmatchcase(row, pattern) for pattern in cause.rows):
            return f"{cause.claim} (--cause {name})"
    return "unexplained"
