"""Measures the time of a draft token, in the compiled and in the packed runner.

`python -m lab.micro.draft_step [--json FILE]`.

Whole calls of `ModelDrafter.draft` on one thread: orders with deltas in, chains out. Both runners
draft the same rounds in turn with the zoo's two general drafters; `reference` is the packed runner.
Exits with 1 unless the 64×2 model, greedy, takes at most LIMIT times what a native loop takes for
a token, and less per token in a batch.
"""

import random
import statistics
import sys
from collections.abc import Sequence
from itertools import product

import torch
from transformers import LlamaForCausalLM

from benchmarks.report import Record, paired_ratio, parser, publish, seconds
from cluster.built_in_models import model_path
from engine.drafters.model import ModelDrafter
from engine.drafters.runner import DraftRunner, PackedRunner
from engine.drafters.tiny import TinyRunner
from engine.model import PackedModel
from engine.protocol import Draft, DraftOrder, Missing, NoRoom, Prefix, Start
from engine.sampling.params import SamplingParams
from engine.soft_state import CommittedTokens

NATIVE_LOOP_US = 31.0
"""A token of a 64×2 model in a native loop, measured once on two cores of this kind."""
LIMIT = 3.0
MODELS = {"tiny": "64x2", "small": "192x3"}
BATCHES = (1, 4, 16)
TEMPERATURES = (0.0, 1.0)
PROMPT = 128
DEPTH = 8
ACCEPTED = 2
"""Draft tokens committed each round, followed by a token of the target's that was not drafted."""
PAIRS = 40
KV_TOKENS = 16_384


class RunnerRounds:
    """Draft rounds of one runner over its own copy of the requests."""

    def __init__(self, runner: DraftRunner, batch: int, temperature: float) -> None:
        self._vocabulary = runner.vocab_size
        self._drafter = ModelDrafter("drafter", runner, target_vocab_size=self._vocabulary)
        start = Start(SamplingParams(temperature=temperature), seed=1, prompt_len=PROMPT)
        prompts = random.Random(0)
        self._committed = [CommittedTokens() for _ in range(batch)]
        for tokens in self._committed:
            tokens.extend(prompts.choices(range(self._vocabulary), k=PROMPT))
        self._orders = [
            self._order(number, base=0, delta=tokens.ids, start=start)
            for number, tokens in enumerate(self._committed)
        ]

    def round_us(self) -> float:
        """One draft call, in microseconds per drafted token; then the next round's orders."""
        answers: list[Draft | Missing | NoRoom] = []
        took_s = seconds(lambda: answers.extend(self._drafter.draft(self._orders)))
        trees = [answer.tree for answer in answers if isinstance(answer, Draft)]
        self._orders = []
        for number, (tokens, tree) in enumerate(zip(self._committed, trees, strict=True)):
            accepted = tree.tokens[:ACCEPTED].tolist()
            other = (int(tree.tokens[ACCEPTED]) + 1) % self._vocabulary
            base = len(tokens)
            tokens.extend([*accepted, other])
            self._orders.append(self._order(number, base, tokens.ids[base:]))
        return 1e6 * took_s / sum(len(tree) for tree in trees)

    def _order(
        self, number: int, base: int, delta: Sequence[int], start: Start | None = None
    ) -> DraftOrder:
        base_hash = self._committed[number].hashes[base]
        return DraftOrder(Prefix(str(number), 0, 0, base, base_hash, tuple(delta), start), DEPTH)


def main() -> None:
    arguments = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    records = []
    greedy: dict[int, list[float]] = {}
    for (name, shape), temperature, batch in product(MODELS.items(), TEMPERATURES, BATCHES):
        ours, theirs = rounds(name, batch, temperature)
        records.append(
            Record(
                f"draft step/{shape}/temperature {temperature:g}/batch {batch}",
                statistics.median(ours),
                "µs/token",
                statistics.median(theirs),
                paired_ratio(ours, theirs).median,
            )
        )
        if name == "tiny" and temperature == 0:
            greedy[batch] = ours
    alone = statistics.median(greedy[1])
    over_native = paired_ratio(greedy[1], [NATIVE_LOOP_US] * PAIRS)
    name = "draft step/64x2/over a native loop"
    records.append(Record(name, alone, "µs/token", NATIVE_LOOP_US, over_native.median))
    publish(records, arguments.json)
    if not over_native.at_most(LIMIT):
        sys.exit(f"missed: at most {LIMIT} times a native loop, got {over_native}")
    if any(statistics.median(greedy[batch]) >= alone for batch in BATCHES[1:]):
        sys.exit("missed: a token of a batch must cost less than a token alone")


def rounds(name: str, batch: int, temperature: float) -> tuple[list[float], list[float]]:
    """Microseconds per token of each round, compiled and packed, interleaved."""
    tiny, stock = (
        LlamaForCausalLM.from_pretrained(model_path(name), dtype=torch.float32) for _ in range(2)
    )
    compiled = RunnerRounds(TinyRunner(tiny, kv_tokens=KV_TOKENS), batch, temperature)
    packed = PackedModel(stock, kv_tokens=KV_TOKENS)
    eager = RunnerRounds(PackedRunner(packed), batch, temperature)
    for runner in (compiled, eager):
        for _ in range(2):  # prefill and, the first time, compilation
            runner.round_us()
    pairs = [(compiled.round_us(), eager.round_us()) for _ in range(PAIRS)]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


if __name__ == "__main__":
    main()
