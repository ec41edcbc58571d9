import cluster  # noqa: F401  # sets numba's cache folder before a compiled function is declared
