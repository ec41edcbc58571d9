"""A goodput that no policy can exceed on a cell's requests, clairvoyant ones included.

Every request attains its SLO, and the run lasts no longer than it must: until the last prompt can
have been read, and for as long as the verifier needs for its rows. Each prompt token is a row, and
each output token but the first, whether accepted from a draft or not; a row takes no less than in
the size of forward that is best for it. Left out, so that the bound is loose: drafting, rejected
drafts, reading the context, and that large forwards miss SLOs.
"""

from collections.abc import Sequence

import numpy as np

from benchmarks.simulator.workload import Arrival
from policies.cost import CostModel


def goodput_bound(requests: Sequence[Arrival], verify: CostModel, most_tokens: int) -> float:
    """In tokens per second; `most_tokens`: of one forward."""
    rows = sum(one.prompt_tokens + one.output_tokens - 1 for one in requests)
    sizes = range(1, most_tokens + 1)
    row_s = float(np.min([verify.predict(0.0, size) / size for size in sizes]))
    begin = min(one.at_s for one in requests)
    read_s = max(one.at_s - begin + one.prompt_tokens * row_s for one in requests)
    return sum(one.output_tokens for one in requests) / max(read_s, rows * row_s)
