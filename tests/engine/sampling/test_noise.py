"""The noise defines what a seed means, so these values must never change."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.sampling.cpu_kernels import gumbel_njit
from engine.sampling.noise import (
    MAX_GUMBEL,
    WORD,
    gumbel,
    gumbel_of_draw,
    gumbel_torch,
    philox,
    split_seed,
)

SEEDS = (0, 1, 2**31, 2**32 - 1, 2**32, 0x0123456789ABCDEF, 2**63, 2**64 - 1)
POSITIONS = (0, 1, 1000, 2**31 - 1, 2**31, 2**32 - 1)
TOKENS = np.array([0, 1, 2, 31999, 151935, 2**18 - 1, 2**31 - 1], np.int32)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_equals_random123s_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert philox(*counter, *key) == words


def on_torch(seed: int, position: int, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    low, high = (torch.tensor([word]) for word in split_seed(seed))
    noise = gumbel_torch(low, high, torch.tensor([position]), torch.from_numpy(tokens).long())
    values: NDArray[np.float32] = noise.numpy()
    return values


def in_numba(seed: int, position: int, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    low, high = split_seed(seed)
    values: NDArray[np.float32] = gumbel_njit(low, high, position, tokens)
    return values


def definition(seed: int, position: int, token: int) -> np.float32:
    word = philox(position, token, 0, 0, seed & WORD, seed >> 32)[0]
    assert isinstance(word, int)
    return np.float32(-math.log(-math.log((word // 256 + 0.5) / 2**24)))


def test_numpy_numba_and_torch_agree_bit_for_bit_with_the_definition() -> None:
    for seed in SEEDS:
        for position in POSITIONS:
            expected = np.array([definition(seed, position, int(token)) for token in TOKENS])
            for noise in (gumbel, in_numba, on_torch):
                np.testing.assert_array_equal(noise(seed, position, TOKENS), expected)
    rng = np.random.default_rng(0)
    for _ in range(20):
        seed = int(rng.integers(2**64, dtype=np.uint64))
        position = int(rng.integers(2**20))
        tokens = rng.integers(2**18, size=4096).astype(np.int32)
        expected_all = gumbel(seed, position, tokens)
        np.testing.assert_array_equal(in_numba(seed, position, tokens), expected_all)
        np.testing.assert_array_equal(on_torch(seed, position, tokens), expected_all)


def test_logarithms_of_numpy_and_torch_round_to_the_same_noise_for_every_draw() -> None:
    draws = np.arange(2**24)
    uniform = (torch.from_numpy(draws).double() + 0.5) * 2.0**-24
    torch_noise = (-torch.log(-torch.log(uniform))).float().numpy()
    noise = gumbel_of_draw(draws)
    np.testing.assert_array_equal(noise, torch_noise)
    # Pruning relies on both: noise is bounded and increases with the draw.
    assert noise[-1] < MAX_GUMBEL
    assert noise[-1] == pytest.approx(17.32868, abs=1e-5)
    assert noise[0] == pytest.approx(-2.85236, abs=1e-5)
    assert np.all(np.diff(noise) >= 0)
