"""Compares the order in which `cluster.plan` ranks this machine's configs with the measured one.

`python -m benchmarks.plan_ranking --data DIR [--clients 1 8] [--candidates PATTERN]`.

Plans on a trace of some prompts and the target's answers; serves other prompts with each candidate,
in turns. Names: plan/CLIENTS/CANDIDATE, `value`: measured tokens/s, `reference`: planned ones,
both over the first candidate's. Exits with an error where two candidates are more than 3% apart and
were planned the other way round.
"""

import argparse
import json
import re
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from benchmarks.generation import Rejected, generate
from benchmarks.real.contenders import HEAD
from benchmarks.real.contest import Contender
from benchmarks.real.engine import measure_drafters
from benchmarks.real.prompts import real_prompts
from benchmarks.real.spindle import PeerRequest, Spindle
from benchmarks.report import Record, parser, publish
from benchmarks.serving.requests import Request
from cluster.built_in_models import HEADS, SMOLLM2, model_path
from cluster.plan.__main__ import options_of, planned
from cluster.plan.runs import EQUAL, Outcome
from cluster.sources import checkpoint_folder
from engine.model import PackedModel
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier

MODEL = SMOLLM2
FITTED = 16
"""Prompts of the trace; those measured come after them."""
KV_TOKENS = 16_384


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, required=True, help="as for benchmarks.real")
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    arguments.add_argument(
        "--candidates", default="", help="a pattern of the names of those to serve"
    )
    arguments.add_argument("--requests", type=int, default=12, help="in a round, and 2 a client")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--max-tokens", type=int, default=48)
    options = arguments.parse_args()
    prompts = real_prompts(options.data, checkpoint_folder(MODEL))
    with TemporaryDirectory() as scratch:
        head = next(iter(HEADS))
        trace, accepted = _trace(prompts[:FITTED], options.max_tokens, Path(scratch), head)
        plans = {
            clients: _plan(trace, accepted, head, clients, options.candidates)
            for clients in options.clients
        }
    measured = _measured(plans, prompts[FITTED:], options)
    records, wrong = [], []
    for clients, outcomes in plans.items():
        first = outcomes[0].option.name
        speeds = {one.option.name: measured[one.option.name, clients] for one in outcomes}
        for one in outcomes:
            own, expected = speeds[one.option.name], one.goodput / outcomes[0].goodput
            name = f"plan/{clients}/{one.option.name}"
            records.append(Record.over(expected, name, own / speeds[first], f"of {first}"))
            print(f"{name}: {own:.1f} tokens/s, planned {one.goodput:.1f}")
        wrong += [
            f"{clients} clients: {slower.option.name} before {faster.option.name}"
            for slower, faster in combinations(outcomes, 2)
            if slower.goodput > faster.goodput
            and speeds[faster.option.name] > speeds[slower.option.name] * (1 + EQUAL)
        ]
    publish(records, options.json)
    if wrong:
        raise SystemExit("planned the other way round: " + "; ".join(wrong))


def _trace(
    prompts: Sequence[Request], max_tokens: int, folder: Path, head: str
) -> tuple[Path, float]:
    """The file with the answers, and the share of the head's first tokens that are accepted."""
    checkpoint = checkpoint_folder(MODEL)
    torch.set_num_threads(2)
    model = PackedModel.load(checkpoint, dtype=torch.float32, device="cpu", kv_tokens=KV_TOKENS)
    answers: dict[int, list[int]] = {}
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    ids = [prompt.prompt for prompt in prompts]
    for commit in generate(NativeVerifier(model), ids, params, max_batch=8):
        assert not isinstance(commit, Rejected)
        answers.setdefault(int(commit.request), []).extend(commit.token_ids)
    file = folder / "trace.jsonl"
    rows = [{"prompt": list(ids[number]), "output": answer} for number, answer in answers.items()]
    file.write_text("\n".join(map(json.dumps, rows)))
    heads = {HEAD: model_path(head)}
    per_forward, *_ = measure_drafters(checkpoint, prompts, [HEAD], heads, (1,), max_tokens)
    return file, per_forward.value - 1


def _plan(trace: Path, accepted: float, head: str, clients: int, pattern: str) -> list[Outcome]:
    wanted = ["--trace", str(trace), "--clients", str(clients)]
    outcomes, _ = planned(options_of([MODEL, *wanted, "--head", f"zoo/{head}={accepted:.3f}"]))
    for one in outcomes:
        print(
            f"planned for {clients} clients: {one.goodput:7.1f} tokens/s {one.option.name}",
            flush=True,
        )
    return [one for one in outcomes if re.search(pattern, one.option.name)]


def _measured(
    plans: dict[int, list[Outcome]], prompts: Sequence[Request], options: argparse.Namespace
) -> dict[tuple[str, int], float]:
    """Median tokens/s of each candidate at each number of clients."""
    args = {one.option.name: one.option.args for plan in plans.values() for one in plan}
    speeds: dict[tuple[str, int], list[float]] = {}
    requests = iter(prompts)
    with ExitStack() as loaded:
        contenders = [
            loaded.enter_context(closing(Contender(name, partial(Spindle, own))))
            for name, own in args.items()
        ]
        for number in range(-1, options.rounds):
            for clients in plans:
                count = 2 if number < 0 else max(options.requests, 2 * clients)
                turn = [
                    PeerRequest(next(requests).prompt, 0.0, options.max_tokens)
                    for _ in range(count)
                ]
                begin = number % len(contenders)
                for contender in contenders[begin:] + contenders[:begin]:
                    served = contender.serve(turn, clients)
                    if served is None:
                        raise SystemExit(f"{contender.name} has failed")
                    if number >= 0:
                        speed = served.tokens / served.seconds
                        print(f"{clients} clients: {speed:.1f} {contender.name}", flush=True)
                        speeds.setdefault((contender.name, clients), []).append(speed)
    return {key: median(own) for key, own in speeds.items()}


if __name__ == "__main__":
    main()
