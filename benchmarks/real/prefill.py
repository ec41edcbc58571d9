"""Compares how fast prompts are read: Spindle's native engine beside vLLM.

`python -m benchmarks.real.prefill [--tokens 256 1024] [--rounds 5] [--json FILE]`

The default model without drafts, in float32 on both sides and as `cluster.yaml` serves it. One
client sends a prompt of so many tokens and takes one token of answer; contenders take turns, and
prompts share no prefix. Names: prefill/CONTENDER/TOKENS (tokens per second, the median of the
rounds; `reference`: plain vLLM).
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from statistics import median

from benchmarks.real.contenders import CONFIGS, KV_TOKENS, PLAIN, servers
from benchmarks.real.contest import Contender
from benchmarks.real.spindle import PeerRequest, Spindle
from benchmarks.report import Record, parser, publish
from cluster.built_in_models import SMOLLM2
from cluster.check import read
from cluster.sources import checkpoint_folder

FLOATS = "spindle_native_plain"
AS_SHIPPED = "spindle_as_shipped"
TOKEN_IDS = 40_000
"""Prompts are of tokens below, which are words and parts of words."""


def main(arguments: Sequence[str] | None = None) -> None:
    own = parser(__doc__)
    own.add_argument("--tokens", type=int, nargs="+", default=[256, 1024])
    own.add_argument("--rounds", type=int, default=5)
    options = own.parse_args(arguments)
    made = servers(SMOLLM2, checkpoint_folder(SMOLLM2), None, None, "float32")
    (application,) = read(CONFIGS["native"])
    shipped = {**application.args, "drafters": []}
    shipped["target"] = {**application.args["target"], "kv_tokens": KV_TOKENS}
    contenders = {PLAIN: made[PLAIN], FLOATS: made[FLOATS], AS_SHIPPED: partial(Spindle, shipped)}
    numbers = count(1)
    speeds: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as loaded:
        sides = [
            loaded.enter_context(closing(Contender(name, make)))
            for name, make in contenders.items()
        ]
        for tokens in options.tokens:
            for repetition in range(options.rounds + 1):  # the first warms up
                request = PeerRequest(_prompt(next(numbers), tokens), 0.0, 1)
                for side in sides:
                    turn = side.serve([request], 1)
                    if turn is None:
                        raise SystemExit(f"{side.name} has failed")
                    if repetition:
                        speed = tokens / turn.latencies_s[0]
                        speeds.setdefault((side.name, tokens), []).append(speed)
    records = []
    for (name, tokens), measured in speeds.items():
        plain = median(speeds[PLAIN, tokens])
        label = f"prefill/{name}/{tokens}"
        records.append(Record.over(plain, label, median(measured), "tokens/s"))
    publish(records, options.json)


def _prompt(number: int, tokens: int) -> tuple[int, ...]:
    return tuple(100 + number * (7919 + 31 * place) % TOKEN_IDS for place in range(tokens))


if __name__ == "__main__":
    main()
