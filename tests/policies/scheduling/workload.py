"""Requests of heavy-tailed length and different acceptance, like those of LAPS-SD and the zoo."""

import numpy as np

from policies.request import RequestView
from tests.policies.scheduling.server import Job


def view(name: str, arrival_s: float = 0.0, **fields: object) -> RequestView:
    request = RequestView(name, arrival_s, prompt_len=10, max_tokens=1000)
    for field, value in fields.items():
        setattr(request, field, value)
    return request


def mixed_jobs(
    seed: int,
    count: int,
    rate: float,
    length_error: float,
    acceptance: tuple[float, ...] = (0.1, 0.95),
) -> list[Job]:
    """Poisson arrivals; predictions are off by a log-normal factor."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count)).tolist()
    lengths = np.clip(rng.lognormal(4.0, 0.8, count), 4, 800).astype(int).tolist()
    predicted = (lengths * rng.lognormal(0.0, length_error, count)).tolist()
    rates = rng.choice(acceptance, count).tolist()
    return [
        Job(f"{index:03}", arrivals[index], lengths[index], predicted[index], rates[index])
        for index in range(count)
    ]
