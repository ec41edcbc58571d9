"""Forwards of few different row counts, for a CPU.

oneDNN compiles its kernels anew for each count of rows that a layer meets: some milliseconds and
half a MiB each, more than many a forward takes. Batches have any count, so its caches would grow
for hours, and compile again what they had to drop. A few rows more, of which nothing is asked,
cost less.
"""

from torch import Tensor
from torch.nn.functional import pad

from engine.attention.hook import Handler, LayerCall
from engine.fused import Forward

_COUNTS = 8
"""Between a power of two and the next one: at most every eighth row is added."""


def computed_rows(rows: int) -> int:
    """The next larger count that is computed."""
    power = 1 << max(rows.bit_length() - 1, 0)
    step = max(1, power // _COUNTS)
    return -(-rows // step) * step


def with_few_row_counts(forward: Forward) -> Forward:
    def padded(tokens: Tensor, positions: Tensor, wanted: Tensor, attend: Handler) -> Tensor:
        rows = len(tokens)
        more = computed_rows(rows) - rows

        def attend_to_own(call: LayerCall) -> Tensor:
            own = call._replace(
                query=call.query[:rows], keys=call.keys[:rows], values=call.values[:rows]
            )
            return pad(attend(own), (0, 0, 0, 0, 0, more))

        logits = forward(
            pad(tokens, (0, more)),
            pad(positions, (0, more)),
            pad(wanted, (0, computed_rows(len(wanted)) - len(wanted))),
            attend_to_own if more else attend,
        )
        return logits[: len(wanted)]

    return padded
