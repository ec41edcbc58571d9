import cluster  # noqa: F401  # says where compiled loops are kept, before one is declared
