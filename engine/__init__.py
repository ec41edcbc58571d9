import cluster  # noqa: F401  # sets numba's cache directory before any kernel is declared
