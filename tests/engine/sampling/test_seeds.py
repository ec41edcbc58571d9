import pytest

from engine.sampling.params import choice_seed, splitmix64


# Outputs of the reference implementation (Vigna, prng.di.unimi.it/splitmix64.c).
@pytest.mark.parametrize(
    ("seed", "outputs"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423]),
    ],
)
def test_outputs_equal_the_reference_implementations(seed: int, outputs: list[int]) -> None:
    assert [splitmix64(seed, index) for index in range(len(outputs))] == outputs


@pytest.mark.parametrize("seed", [0, 5, 2**53, 2**64 - 1])
def test_seeds_of_choices_are_distinct_and_exact_in_javascript(seed: int) -> None:
    seeds = [choice_seed(seed, index) for index in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= one < 2**53 for one in seeds)
    assert all(int(float(one)) == one for one in seeds)
