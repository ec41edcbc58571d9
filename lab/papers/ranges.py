"""Settings that the papers leave open, as ranges: what becomes of a result over each.

`python -m lab.papers --range NAME` runs the rows once for each value. With `--first-seed`
beyond the seeds that are reported, it is also the search by which a setting is tuned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.papers.settings import Changes

SSM_LAYERS = {
    "llama_68m": 2,
    "llama_265m": 12,
    "llama_616m": 16,
    "llama_1100m": 22,
    "llama_1400m": 24,
}


STATIC_LENGTHS: Mapping[str, tuple[float, float]] = {
    "numinamath": (288, 1.1),
    "taco": (505, 0.58),
    "sharegpt": (180, 0.47),
    "numinamath_thinking": (6000, 1.3),
}
"""Mean and spread of self-scheduling's output lengths with which static batches answer what Tables
1 and 3 print, of FCFS and of LengthOnly, at the stated τ-b."""


def static_lengths() -> Changes:
    return {
        f"datasets.{dataset}.lengths.{setting}": value
        for dataset, lengths in STATIC_LENGTHS.items()
        for setting, value in zip(("output_mean", "output_spread"), lengths, strict=True)
    }


STATIC_BATCHES: Changes = {
    "machines.a100.static_batches": True,
    "arms.length_only.schedule": {
        "self_ranked": {"form": "length_only", "starvation_steps": 1_000_000_000}
    },
}
"""Without promotions: in a static batch nothing is preempted."""
PER_TOKEN: Changes = {
    "workloads.rates.latency_per_token": True,
    "workloads.short.latency_per_token": True,
}


@dataclass(frozen=True, slots=True)
class Range:
    paper: str
    rows: Sequence[str]
    values: Mapping[str, Changes]


def _ssms(layer_s: float) -> list[dict[str, object]]:
    return [
        {"model": model, "capacity": 16, "step_s": layers * layer_s}
        for model, layers in SSM_LAYERS.items()
    ]


RANGES: Mapping[str, Range] = {
    "ssm_layer": Range(
        "spin",
        ("spin/fig10/alpaca/7b/*_vs_68m", "spin/fig10/alpaca/7b/spin_vs_unpiped"),
        {
            f"{layer_ms} ms": {"machines.7b.drafters": _ssms(layer_ms / 1000)}
            for layer_ms in (0.2, 0.6, 1.0)
        },
    ),
    "padding": Range(
        "spin",
        ("spin/fig10/alpaca/7b/*_vs_68m",),
        {
            f"{row_ms} ms": {"machines.7b.verify.padded_row_s": row_ms / 1000}
            for row_ms in (4.0, 5.2, 6.43)
        },
    ),
    "verification_fixed": Range(
        "spin",
        (
            "spin/fig10/alpaca/7b/selection_vs_68m",
            "spin/fig10/alpaca/7b/spin_vs_68m",
            "spin/fig10/alpaca/7b/spin_vs_unpiped",
            "spin/fig10/alpaca/7b/spin_vs_plain",
        ),
        {
            f"{fixed_ms} ms": {
                "machines.7b.verify": {
                    "fixed_s": fixed_ms / 1000,
                    "row_s": (335.46 - fixed_ms) / 80 / 1000,
                    "padded_row_s": (529.21 - fixed_ms) / 80 / 1000,
                }
            }
            for fixed_ms in (15, 100, 200)
        },
    ),
    "micro_batches": Range(
        "spin",
        ("spin/fig13/alpaca/*_printed",),
        {
            str(clients): {"workloads.batch_80.clients": clients, "workloads.batch_80.requests": 64}
            for clients in (8, 16, 32)
        },
    ),
    "adaserve_shape": Range(
        "adaserve",
        ("adaserve/fig8/llama/4.8/adaserve", "adaserve/overload/4.8/fixed_1"),
        {
            f"budget {budget}, depth {depth}, c2 {c2}, n_max {most}": {
                "machines.llama.verify_budget": budget,
                "arms.adaserve.speculation": {
                    "adaserve": {"shape": {"max_depth": depth, "c2": c2}, "most_for_slo": most}
                },
            }
            for budget, depth, c2, most in (
                (115, 3, -3, 1),
                (115, 3, 0, 1),
                (115, 5, -3, 1),
                (115, 3, -3, 2),
                (115, 3, -3, 8),
                (115, 8, 0, 8),
                (170, 3, -3, 1),
            )
        },
    ),
    "lengths_of_baselines": Range(
        "adaserve",
        (
            "adaserve/fig8/llama/4.8/spec_4",
            "adaserve/fig8/llama/4.8/violations_vs_best_baseline",
            "adaserve/fig9/llama/4.8/vs_best_baseline",
        ),
        {
            str(length): {"arms.spec_4.speculation": {"fixed": {"length": length}}}
            for length in (1, 2, 3, 4)
        },
    ),
    "adaserve_machine": Range(
        "adaserve",
        ("adaserve/overload/6.0/*",),
        {str(factor): {"machines.llama.slower": factor} for factor in (1.0, 1.3, 1.6)},
    ),
    "printed_engine": Range(
        "specserve",
        ("specserve/table2/trace_2/*",),
        {
            "as printed": {},
            "context read once": {"machines.7b_l40.rereads_context": False},
            "requests stop alone": {"arms.threshold.speculation.threshold.together": False},
            "steps of the roofline": {
                "machines.7b_l40.drafters": [{"model": "vicuna_68m", "capacity": 256}]
            },
        },
    ),
    "switch_cost": Range(
        "laps_sd",
        (
            "laps_sd/fig2/growth_500_vs_100",
            "laps_sd/fig5/mbpp/30/latency_vs_lp_sjf",
            "laps_sd/fig5/mbpp/30/latency_vs_las",
        ),
        {
            "every quantum": {},
            "once, at full length": {
                "fixed.speculation": {"fixed": {"length": 4}},
                "machines.l20.swap_s_per_token": 0.00134,
                "arms.laps_sd.schedule": {
                    "laps_sd": {
                        "first_queue_s": 2.0,
                        "stable_rounds": 8,
                        "stable_within": 0.05,
                    }
                },
                "arms.las.schedule": {"las": {"quantum_s": 4.0}},
            },
        },
    ),
    "lengths_alike": Range(
        "laps_sd",
        ("laps_sd/fig5/mbpp/30/latency_vs_*", "laps_sd/fig5/minithinky/30/latency_vs_*"),
        {
            "as they are": {},
            "alike, and acceptance each request's own": {
                f"datasets.{dataset}.{setting}": value
                for dataset in ("mbpp", "minithinky")
                for setting, value in (
                    ("lengths.output_spread", 0.1),
                    ("acceptance.llama_68m.request_share", 0.99),
                    ("acceptance.llama_68m.early_share", 0.0),
                )
            },
        },
    ),
    "acceptance_spread": Range(
        "laps_sd",
        ("laps_sd/fig5/mbpp/50/latency_vs_*", "laps_sd/fig5/chatbot/50/latency_vs_*"),
        {
            str(share): {
                f"datasets.{dataset}.acceptance.llama_68m.request_share": share
                for dataset in ("chatbot", "mbpp", "minithinky")
            }
            for share in (0.35, 0.65, 0.9)
        },
    ),
    "static_batches_step_by_step": Range(
        "self_scheduling",
        (
            "self_scheduling/fig6/numinamath/64/t*_vs_fcfs",
            "self_scheduling/fig6/*/64/latency_vs_fcfs",
        ),
        {
            "continuous": {},
            "continuous, latency per token": PER_TOKEN,
            "static": STATIC_BATCHES,
            "static, latency per token": {**STATIC_BATCHES, **PER_TOKEN},
            "static, latency per token, lengths": {
                **STATIC_BATCHES,
                **PER_TOKEN,
                **static_lengths(),
            },
        },
    ),
    "answers_in_all": Range(
        "self_scheduling",
        ("self_scheduling/fig6/numinamath/least_latency_vs_fcfs",),
        {str(requests): {"workloads.rates.requests": requests} for requests in (20, 50, 200)},
    ),
}
