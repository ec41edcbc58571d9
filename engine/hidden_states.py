"""Hidden states of chosen layers, taken out of a forward for drafters that read them (features).

Layer `i` names what enters it: the sum of the embeddings and of the outputs of the `i` layers
before, so 0 are the embeddings. These are the numbers of `eagle_aux_hidden_state_layer_ids` in
speculators' checkpoints, of vLLM, and of transformers' `hidden_states`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel


class HiddenStates:
    """Collects the rows that enter the layers during one forward."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = frozenset(layers)
        self._taken: dict[int, Tensor] = {}

    def take(self, layer: int, hidden: Tensor) -> None:
        """`hidden`: [rows, hidden size]; layers that no order requests are ignored."""
        if layer in self.layers:
            self._taken[layer] = hidden.clone()  # later operations may work in place

    def rows(self, layers: Sequence[int], indices: Sequence[int]) -> NDArray[Any]:
        return rows_of([self._taken[layer] for layer in layers], indices)


def rows_of(states: Sequence[Tensor], indices: Sequence[int]) -> NDArray[Any]:
    """The rows at `indices` of some layers' states, side by side: [rows, layers · hidden size] in
    float32, or the bits of bfloat16 as uint16."""
    index = torch.tensor(indices, dtype=torch.int64)
    joined = torch.cat([part[index.to(part.device)] for part in states], 1).cpu()
    if joined.dtype == torch.bfloat16:
        return joined.view(torch.int16).numpy().view(np.uint16)
    return joined.float().numpy()


@contextmanager
def taken_from_modules(model: PreTrainedModel, states: HiddenStates | None) -> Iterator[None]:
    """Within it the stock model's own forward fills `states`; None: nothing is taken."""
    if states is None:
        yield
        return

    def enters(layer: int, _module: object, args: tuple[Tensor, ...]) -> None:
        states.take(layer, args[0][0])

    decoder = model.get_decoder()
    layers = decoder.layers if hasattr(decoder, "layers") else decoder.h  # GPT-2's name
    hooks = [
        layer.register_forward_pre_hook(partial(enters, number))
        for number, layer in enumerate(layers)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def as_tensor(rows: NDArray[Any]) -> Tensor:
    """What `rows_of` has returned, in its own dtype."""
    if rows.dtype == np.uint16:
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(rows)
