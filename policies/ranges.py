"""The valid ranges of all numbers in requests and configs.

They are checked where a number enters, so that inside Spindle it fits into its array's type and no
arithmetic on it overflows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Range:
    least: float
    most: float
    above: bool = False
    """`least` itself is excluded."""

    def holds(self, value: float) -> bool:
        """Whether the value is in the range; NaN never is."""
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        return f"{'(' if self.above else '['}{self.least}, {self.most}]"


def require(limits: Range, **values: float) -> None:
    """Raises ValueError naming the first of these values that is outside."""
    for name, value in values.items():
        if not limits.holds(value):
            raise ValueError(f"{name} is in {limits}, not {value}")


COUNT = Range(0, _INT32)
"""A count of anything."""
AT_LEAST_ONE = Range(1, _INT32)
"""A count of at least one."""
SECONDS = Range(0, 1e9, above=True)

TEMPERATURE = Range(0, 100)
TOP_K = Range(-1, _INT32)
"""-1 and 0 keep every token, as do values not below the vocabulary's size."""
TOP_P = Range(0, 1, above=True)
MIN_P = Range(0, 1)
REPETITION_PENALTY = Range(0.01, 100)
"""Within this range, logits stay finite in fp32 when divided or multiplied."""
PENALTY = Range(-2, 2)
BIAS = Range(-100, 100)
LOGPROBS = Range(0, 20)
SEED = Range(0, 2**64 - 1)
REQUEST_SEED = Range(-1, SEED.most)
"""In requests -1 means none, as some clients send it."""
DRAWN_SEED_BITS = 53
"""A seed that the server draws or derives is exact as a JSON number in every language."""
PRIORITY = Range(-_INT32, _INT32)
SLO_S = Range(1e-6, 86_400)
"""A microsecond to a day."""
SLO_MS = Range(1000 * SLO_S.least, 1000 * SLO_S.most)

DRAFT_DEPTH = Range(1, 1024)
DRAFT_WIDTH = Range(1, 64)
MICRO_BATCHES = Range(1, 64)

MAX_BIASES = 1024
MAX_STOP_TOKENS = 1024

SAMPLING_INTEGERS: Mapping[str, Range] = {
    "top_k": TOP_K,
    "max_tokens": AT_LEAST_ONE,
    "min_tokens": COUNT,
    "logprobs": LOGPROBS,
    "prompt_logprobs": LOGPROBS,
    "seed": SEED,
}
SAMPLING_REALS: Mapping[str, Range] = {
    "temperature": TEMPERATURE,
    "top_p": TOP_P,
    "min_p": MIN_P,
    "repetition_penalty": REPETITION_PENALTY,
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
}
"""Both mappings are by the field names of engine.sampling.params.SamplingParams."""
