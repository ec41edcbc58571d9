"""Environment variables of a process that computes forwards on a CPU."""

_SPIN_COUNT = 10_000
"""0.2 to 0.5 ms, longer than the gaps between the parallel regions of a forward. Only libgomp reads
it; Intel's OpenMP, which vLLM needs, has a setting of its own."""


def openmp_environment(threads: int) -> dict[str, str]:
    """Its threads spin within a forward and sleep between forwards; threads.py sees to it that each
    of them has a processor."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": str(_SPIN_COUNT),
    }
