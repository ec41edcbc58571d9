"""Why rows are not reproduced, as analysed in docs/papers.md.

A row has the cause of the first pattern (as of file names) that its name matches.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

_FASTER = "the roofline is some ten times as fast as the paper's machine"
_EXPLORES = "answers of 200 tokens take some 80 slots, of which LBSS explores half"
_SMALL_GAP = "SSMs differ by less: the best has 1.2 times the goodput of LLaMA-68M, not 2"
_WEIGHTS = "verification waits for the weights, which each micro-batch reads anew"
_NO_PRESSURE = "fixed length 1 meets 0.98 to 1.00 of all SLOs on the modelled machine"
_ON_AVERAGE = "just enough on average: half of the urgent requests end at their TPOT or behind it"
_NARROWLY = "just enough on average: a tenth of the urgent requests end at their TPOT or behind it"
_PURSUED = "needs out of reach are pursued: rounds lengthen, and the batch grows from 20 to 26"
_LIGHTER = "urgent requests have shorter answers: at 0.9 the batch is 26 instead of 32"
_TURNS = "where KV is short, promotion after 4 steps makes all requests take turns"
_PREDICTION = "lengths of τ-b 0.6 are wrong by 0.4, and acceptance is judged after four rounds"
_ROUND = "Algorithm 3 holds a whole round against the TPOT of one token, and decodes plainly"
_LOAD = "35 requests are no load below a knee of 157 tokens: no request has to draft less"
_TTFT = "bursts miss the TTFT (0.2 to 0.4 attain it); the TPOT is attained as often as by the best"
_LONGER_WAIT = "bursts miss the TTFT by little, and a prompt waits for a round that drafts lengthen"
_DROPPED = "every round drafts a level, and elimination drops all of it: 4 ms of 25 for nothing"
_SAME_ORDER = "all are stable within 0.3 s, in the first queue; behind it queues order as SJF does"
_FASTER_A100 = "the modelled A100 is two to seven times as fast as the paper's"
_SUNK = "elimination drops drafts that break the TPOT, although their drafting is paid"

CAUSES: Sequence[tuple[str, str]] = (
    ("spin/fig1?/*/7b/vanilla_68m", _FASTER),
    ("spin/fig10/*/7b/selection", _FASTER),
    ("spin/fig11/*/7b/lbss", _FASTER),
    ("spin/fig11/*/7b/greedy", _FASTER),
    ("spin/fig11/*/7b/spin_epsilon_greedy", _FASTER),
    ("spin/fig1?/*/*_vs_best_ssm", _EXPLORES),
    ("spin/fig10/*/*_vs_68m", _SMALL_GAP),
    ("spin/fig10/*/spin_vs_unpiped", _WEIGHTS),
    ("spin/fig11/*/spin_epsilon_greedy_vs_greedy", "at ε = 0.2 four slots of five explore"),
    ("spin/fig11/*_printed", _SMALL_GAP),
    ("spin/fig13/*", _WEIGHTS),
    ("specserve/fig9/*_vs_best_baseline*", _ROUND),
    ("specserve/fig9/share_above_best_baseline", _ROUND),
    ("specserve/fig9/trace_1/vs_best_baseline_least", _ROUND),
    ("specserve/fig9/trace_1/vs_best_baseline_largest", _LOAD),
    ("specserve/fig9/*_share_below_plain", _LOAD),
    ("specserve/fig9/largest_vs_specinfer_chain", _LOAD),
    # A plain round takes 29 ms (7B on L40) and 33 ms (33B), beside 24 and 30.
    ("specserve/fig10/7b_l40/0.8/*", _ROUND),
    ("specserve/fig10/33b_2a800/0.8/*", _ROUND),
    ("specserve/fig10/33b_2a800/1.0/*", _ROUND),
    ("specserve/fig10/least_attainment_gain", _ROUND),
    ("specserve/fig10/least_speedup_gain", _ROUND),
    ("specserve/fig10/speed_loose_vs_strict", _ROUND),
    ("specserve/fig10/largest_attainment_gain", _LOAD),
    ("specserve/fig10/least_attainment_vs_plain", _LONGER_WAIT),
    ("specserve/fig10/*/attainment_vs_best_baseline", _TTFT),
    ("specserve/fig11/70b_8a800/128/*", _DROPPED),
    ("specserve/table2/*/verifier*", _SUNK),
    ("specserve/table2/*", _LOAD),
    ("specserve/fig12/*", _LOAD),
    # Of the paper's rows, by machine; not of our bounds.
    ("adaserve/fig8/[lq]*", _NO_PRESSURE),
    ("adaserve/fig9/[lq]*", _NO_PRESSURE),
    ("adaserve/fig10/*/vllm_0.9_vs_0.1", _LIGHTER),
    ("adaserve/fig10/*/sarathi_0.9_vs_0.1", _LIGHTER),
    ("adaserve/fig10/*/specinfer_0.9_vs_0.1", _LIGHTER),
    ("adaserve/fig10/*", _NO_PRESSURE),
    ("adaserve/fig11/*/0.[68]/*", _PURSUED),
    ("adaserve/fig11/*/least_violations_*", _PURSUED),
    ("adaserve/fig11/*/1.0/*", _NARROWLY),
    ("adaserve/fig11/*", _NO_PRESSURE),
    ("adaserve/fig14/*", _NO_PRESSURE),
    ("adaserve/fig16/*slo_selection*", _ON_AVERAGE),
    ("laps_sd/fig2/500/switch_share", "a swap at PCIe's 22 GB/s; 14% would take 0.5 GB/s"),
    ("laps_sd/fig2/growth_*", "swap and inference both grow with the tokens"),
    ("laps_sd/fig5/*_vs_lp_sjf", "acceptance differs too little: true SRPT has 0.8 of LP-SJF's"),
    ("laps_sd/fig5/*_vs_best_baseline", "as latency_vs_lp_sjf"),
    ("laps_sd/fig6/*", _SAME_ORDER),
    ("laps_sd/fig7/*", _PREDICTION),
    ("self_scheduling/table2/*/extra", "prompts decode alone at batch size 1: 40 steps of 25 ms"),
    ("self_scheduling/table[13]/*/answered_fcfs", _FASTER_A100),
    ("self_scheduling/table[13]/*/answered_length_only", _FASTER_A100),
    ("self_scheduling/table[13]/*/minutes_fcfs", _FASTER_A100),
    ("self_scheduling/table[13]/*/minutes_length_only", _FASTER_A100),
    ("self_scheduling/table[13]/*", _TURNS),
    ("self_scheduling/fig[678]/*", _TURNS),
    ("self_scheduling/fig10/*", _TURNS),
)


def cause_of(row: str) -> str:
    return next(
        (cause for pattern, cause in CAUSES if fnmatchcase(row, pattern)), "cause not found"
    )
