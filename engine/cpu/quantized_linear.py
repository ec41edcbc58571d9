"""Linear layers whose weights have 8 bits, as modules of a drafter's own forward.

On one thread: a head's products of a few rows take less time than waking the others.
"""

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.cpu.dot_products import OUTPUTS
from engine.cpu.quantized_kernel import SCALE_GROUP, call_product, product_address
from engine.cpu.quantized_weights import quantized

Floats = NDArray[np.float32]

_MOST = np.float32(127.0)


class Int8Linear(nn.Module):
    """Replaces an nn.Linear. Rows are computed in 8 bits as well, and come out in float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._weight = quantized(linear.weight.detach().float().numpy(), 8)
        self._product = product_address(self._weight.kind)

    def forward(self, rows: Tensor) -> Tensor:
        tiles, groups, _ = self._weight.tiles.shape
        out = np.empty((len(rows), tiles * OUTPUTS), np.float32)
        inputs = rows.float().contiguous().numpy()
        _multiply(inputs, self._product, self._weight.tiles.ctypes.data, tiles, groups, out)
        result = torch.from_numpy(out)[:, : self.out_features]
        return result if self.bias is None else result + self.bias


def to_int8(model: nn.Module) -> None:
    """Replaces those linear layers of the model whose inputs come in whole groups."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and not module.in_features % SCALE_GROUP:
            model.set_submodule(name, Int8Linear(module))


@njit(cache=True, nogil=True)
def _multiply(
    inputs: Floats, product: int, weights: int, tiles: int, groups: int, out: Floats
) -> None:
    rows = len(inputs)
    numbers = np.empty((rows, groups, SCALE_GROUP), np.int8)
    scales, sums = np.empty((rows, groups), np.float32), np.empty((rows, groups), np.float32)
    for row in range(rows):
        for group in range(groups):
            some = inputs[row, group * SCALE_GROUP : (group + 1) * SCALE_GROUP]
            most = np.float32(0.0)
            for e in range(SCALE_GROUP):
                most = max(most, abs(some[e]))
            inverse = _MOST / most if most > 0 else np.float32(0.0)
            total = np.int32(0)
            for e in range(SCALE_GROUP):
                number = np.int8(np.rint(some[e] * inverse))
                numbers[row, group, e] = number
                total += number
            scales[row, group] = most / _MOST
            sums[row, group] = scales[row, group] * np.float32(total)
    call_product(
        product, weights, 0, tiles, groups,
        numbers.ctypes.data, scales.ctypes.data, sums.ctypes.data, rows,
        out.ctypes.data, out.shape[1],
    )  # fmt: skip
