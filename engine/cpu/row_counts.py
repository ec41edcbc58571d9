"""Pads CPU forwards to few different row counts, and away from counts that are slow on AMX.

oneDNN compiles kernels again for each row count that a layer meets: some milliseconds and half a
MiB each, more than many a forward takes. Batches have any count, so its caches would grow for hours
and recompile what they evicted. A few padding rows cost less. On AMX some counts even take longer
than larger ones.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.attention.hook import Handler, LayerCall
from engine.cpu.decoder_loop import FloatForward
from engine.hidden_states import HiddenStates

_COUNTS_PER_OCTAVE = 8
"""Padded counts between a power of two and the next one; so at most 1/8 of the rows is padding."""

_SLOW = range(17, 33)
_REPLACEMENT = 36


def has_slow_row_counts(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products run on AMX, whose tiles have 16 rows.

    There oneDNN takes 1.4 times as long for two tiles of rows as for one or three, and batches of a
    few requests with drafts have as many rows (docs/cpu_speed.md).
    """
    on_cpu = device.type == "cpu" and dtype == torch.bfloat16
    return on_cpu and torch.cpu._is_amx_tile_supported()


def row_cost_step(device: torch.device, dtype: torch.dtype) -> tuple[int, int]:
    """For cost models: more rows than the first number cost at least as much as the second."""
    return (_SLOW.start - 1, _REPLACEMENT) if has_slow_row_counts(device, dtype) else (0, 0)


def avoid_slow_row_count(rows: int) -> int:
    return _REPLACEMENT if rows in _SLOW else rows


def padded_row_count(rows: int) -> int:
    """The smallest padded count that is not below `rows`."""
    power = 1 << max(rows.bit_length() - 1, 0)
    step = max(1, power // _COUNTS_PER_OCTAVE)
    return -(-rows // step) * step


def with_few_row_counts(forward: FloatForward, avoid_slow: bool) -> FloatForward:
    """`forward` on padded inputs; `avoid_slow` if some counts are slow (`has_slow_row_counts`)."""

    def count(rows: int) -> int:
        return padded_row_count(avoid_slow_row_count(rows) if avoid_slow else rows)

    def padded(
        tokens: Tensor,
        positions: Tensor,
        wanted: Tensor,
        attend: Handler,
        states: HiddenStates | None,
    ) -> Tensor:
        rows = len(tokens)
        padding = count(rows) - rows

        def attend_without_padding(call: LayerCall) -> Tensor:
            own = call._replace(
                query=call.query[:rows], keys=call.keys[:rows], values=call.values[:rows]
            )
            return pad(attend(own), (0, 0, 0, 0, 0, padding))

        logits = forward(
            pad(tokens, (0, padding)),
            pad(positions, (0, padding)),
            pad(wanted, (0, count(len(wanted)) - len(wanted))),
            attend_without_padding if padding else attend,
            states,
        )
        return logits[: len(wanted)]

    return padded
