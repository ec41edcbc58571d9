"""Forwards of few different row counts, for a CPU.

oneDNN compiles its kernels anew for each count of rows that a layer meets: some milliseconds and
half a MiB each, more than many a forward takes. Batches have any count, so its caches would grow
for hours, and compile again what they had to drop. A few rows more, of which nothing is asked,
cost less. Some counts even take longer than larger ones do.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.attention.hook import Handler, LayerCall
from engine.cpu.decoder_loop import Forward

_COUNTS = 8
"""Between a power of two and the next one: at most every eighth row is added."""

_DEAR = range(17, 33)
_INSTEAD = 36


def has_dear_counts(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products run on AMX, whose tiles have 16 rows. There oneDNN takes 1.4 times as long
    for two tiles of rows as for one or three (`python -m benchmarks.micro.row_counts`), and they
    are what a batch of a few requests with drafts has."""
    on_cpu = device.type == "cpu" and dtype == torch.bfloat16
    return on_cpu and torch.cpu._is_amx_tile_supported()


def step_of(device: torch.device, dtype: torch.dtype) -> tuple[int, int]:
    """For a cost model: more rows than the first take at least as long as the second."""
    return (_DEAR.start - 1, _INSTEAD) if has_dear_counts(device, dtype) else (0, 0)


def without_dear_counts(rows: int) -> int:
    return _INSTEAD if rows in _DEAR else rows


def computed_rows(rows: int) -> int:
    """The next larger count that is computed."""
    power = 1 << max(rows.bit_length() - 1, 0)
    step = max(1, power // _COUNTS)
    return -(-rows // step) * step


def with_few_row_counts(forward: Forward, dear: bool) -> Forward:
    """`dear`: whether some counts are (`has_dear_counts`)."""

    def count(rows: int) -> int:
        return computed_rows(without_dear_counts(rows) if dear else rows)

    def padded(tokens: Tensor, positions: Tensor, wanted: Tensor, attend: Handler) -> Tensor:
        rows = len(tokens)
        more = count(rows) - rows

        def attend_to_own(call: LayerCall) -> Tensor:
            own = call._replace(
                query=call.query[:rows], keys=call.keys[:rows], values=call.values[:rows]
            )
            return pad(attend(own), (0, 0, 0, 0, 0, more))

        logits = forward(
            pad(tokens, (0, more)),
            pad(positions, (0, more)),
            pad(wanted, (0, count(len(wanted)) - len(wanted))),
            attend_to_own if more else attend,
        )
        return logits[: len(wanted)]

    return padded
