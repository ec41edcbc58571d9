"""The reduced vocabulary of a drafter that scores some of the target's tokens and no others."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_NEVER = -1e30
"""The score of tokens outside of it, where scores of all tokens are needed."""

ALL_TOKENS: NDArray[np.int32] = np.empty(0, np.int32)
"""For kernels: columns of logits are the target's tokens themselves."""


class ReducedVocabulary:
    """Noise is a function of the target's token ids, so a sampler needs to know which token each
    column of a drafter's logits is."""

    def __init__(self, target_ids: Tensor, size: int) -> None:
        """`target_ids`: of each column, ascending, so that ties go to the target's lowest id;
        `size`: of the target's vocabulary."""
        self.target_ids = target_ids
        self.size = size
        self.names: NDArray[np.int32] = target_ids.cpu().numpy().astype(np.int32)

    def __len__(self) -> int:
        return len(self.names)

    def widened(self, logits: Tensor) -> Tensor:
        """Over the target's vocabulary, for transforms that name tokens."""
        wide = torch.full((len(logits), self.size), _NEVER, device=logits.device)
        wide[:, self.target_ids] = logits
        return wide
