"""The default model, which `make test` fetches."""

import pytest

from cluster.smollm2 import SMOLLM2, has_smollm2

needs_smollm2 = pytest.mark.skipif(
    not has_smollm2(), reason=f"{SMOLLM2} is not on this machine: `make model` says why"
)
