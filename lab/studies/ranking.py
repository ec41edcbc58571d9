"""How well a model that was not trained for it ranks requests by the length of its own answers.

`python -m lab.studies.ranking [--model MODEL] [--data DIR] [--groups 10] [--json FILE]`.

The three ranking prompts (policies/scheduling/rank_prompts.py), as the ranker writes and reads
them, about groups of six evaluation prompts of all categories. Names: ranking/FORM/tau, the mean
Kendall τ-b against the lengths of the model's own greedy answers (0 for a group that it does not
order; requests without a value in the middle), and ranking/FORM/placed, the share of requests that
got a value. `learned` has no prompt: it orders each group by the lengths that were learned from the
answers to all others, by prompt length alone.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from actors.coordinator.lengths import TOKENS_PER_REQUEST, RankerText
from benchmarks.real.prompts import real_prompts
from benchmarks.report import Record, parser, publish
from cluster.built_in_models import SMOLLM2
from cluster.sources import checkpoint_folder
from engine.drafters.suffix import SuffixDrafter
from engine.generate import Rejected, generate
from engine.model import PackedModel
from engine.protocol import Verifier
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from lab.zoo.heldout import filled, tau
from policies.estimates.output_lengths import LearnedLengths
from policies.request import RequestView
from policies.scheduling.rank_answers import Values, ranks_from_logits, read_lengths, read_ranks
from policies.scheduling.rank_prompts import FORMS

GROUP = 6
MAX_TOKENS = 256
_KV_TOKENS = 24_576
_BATCH = 8

Order = Callable[[Sequence[int]], Values]
"""Predicts the requests of these numbers: the longer, the larger."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--model", default=SMOLLM2, help="as target.model in a config")
    arguments.add_argument("--data", type=Path, default=Path("../shared/data"))
    arguments.add_argument("--groups", type=int, default=10, help=f"of {GROUP} requests")
    options = arguments.parse_args()
    checkpoint = checkpoint_folder(options.model)
    model = PackedModel.load(checkpoint, dtype=torch.float32, device="cpu", kv_tokens=_KV_TOKENS)
    prompts = [one.prompt for one in real_prompts(options.data, checkpoint)]
    count = GROUP * options.groups
    publish(measure(NativeVerifier(model), RankerText(checkpoint), prompts[:count]), options.json)


def measure(verifier: Verifier, text: RankerText, prompts: Sequence[Sequence[int]]) -> list[Record]:
    lengths = [len(answer) for answer in answers(verifier, prompts, MAX_TOKENS)]
    print(f"{len(prompts)} answers of {np.mean(lengths):.0f} tokens on average", flush=True)
    requests = text.requests_of(prompts)

    def asked(form: str, read: Callable[[str, int, bool], Values]) -> Order:
        def order(group: Sequence[int]) -> Values:
            prompt = text.encode_chat(FORMS[form]([requests[number] for number in group]))
            most = TOKENS_PER_REQUEST * len(group)
            (answer,) = answers(verifier, [prompt], most)
            return read(text.decode(answer), len(group), len(answer) == most)

        return order

    def prefilled(group: Sequence[int]) -> Values:
        prompt = text.encode_chat(FORMS["prefill_only"]([requests[number] for number in group]))
        labels = [text.encode(str(position))[0] for position in range(len(group))]
        return ranks_from_logits(verifier.score(prompt, labels).tolist())

    def learned(group: Sequence[int]) -> Values:
        views = [
            RequestView(str(number), 0.0, len(prompt), MAX_TOKENS, generated=length)
            for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
        ]
        learner = LearnedLengths()
        for number, view in enumerate(views):
            if number not in group:
                learner.finished(view)
        new = [RequestView(str(n), 0.0, len(prompts[n]), MAX_TOKENS) for n in group]
        return [learner.predict(view) for view in new]

    orders = {
        "length_only": asked("length_only", read_lengths),
        "rank_only": asked("rank_only", read_ranks),
        "prefill_only": prefilled,
        "learned": learned,
    }
    records = []
    groups = [range(first, first + GROUP) for first in range(0, len(prompts) - GROUP + 1, GROUP)]
    for name, order in orders.items():
        values = [order(group) for group in groups]
        taus = [
            tau(filled(own), [lengths[number] for number in group])
            for own, group in zip(values, groups, strict=True)
        ]
        placed = np.mean([value is not None for own in values for value in own])
        records.append(Record(f"ranking/{name}/tau", float(np.mean(taus)), "τ-b"))
        records.append(Record(f"ranking/{name}/placed", float(placed), "of requests"))
    return records


def answers(
    verifier: Verifier, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[list[int]]:
    """Greedy; drafts change nothing but the time."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    tokens: list[list[int]] = [[] for _ in prompts]
    drafter = SuffixDrafter("suffix", past_tokens=100_000)
    for event in generate(verifier, prompts, params, drafter=drafter, max_batch=_BATCH):
        if isinstance(event, Rejected):
            raise event.error
        tokens[int(event.request)] += event.token_ids
    return tokens


if __name__ == "__main__":
    main()
