import cluster  # noqa: F401  # sets numba's cache directory before any compiled loop is declared
