"""Which counts of rows are dear.

`python -m benchmarks.micro.row_counts [--threads 2] [--json FILE]`.

All products of the zoo's target inflated to 90M in bf16, one behind the other, by how many rows go
through them; the counts take turns at random. Names: row_counts/ROWS/products, `reference` at the
count that `engine/cpu/row_counts.py` computes instead of dear ones. Medians, and ratios of them.
"""

import random
from statistics import median
from time import perf_counter

import torch

from benchmarks.report import Record, parser, publish
from cluster.zoo.paths import inflated_target
from engine.cpu.prepack import PackedLinear
from engine.cpu.row_counts import avoid_slow_row_count
from engine.model import PackedModel

ROWS = (8, 16, 17, 20, 24, 28, 32, 36, 40, 48, 64)
INSTEAD = avoid_slow_row_count(17)
PARAMS = 90_000_000
KV_TOKENS = 1024


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=60)
    chosen = arguments.parse_args()
    torch.set_num_threads(chosen.threads)
    model = PackedModel.load(
        inflated_target(PARAMS), dtype=torch.bfloat16, device="cpu", kv_tokens=KV_TOKENS
    )
    layers = [layer for layer in model.hf_model.modules() if isinstance(layer, PackedLinear)]
    for rows in ROWS:  # oneDNN compiles
        products_s(layers, rows)
    took: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(chosen.rounds):
        for rows in random.sample(ROWS, len(ROWS)):
            took[rows].append(products_s(layers, rows))
    instead = median(took[INSTEAD])
    publish(
        [
            Record(
                f"row_counts/{rows}/products", median(each), "s", instead, median(each) / instead
            )
            for rows, each in took.items()
        ],
        chosen.json,
    )


def products_s(layers: list[PackedLinear], rows: int) -> float:
    widths = {layer.in_features for layer in layers}
    inputs = {width: torch.ones(rows, width, dtype=torch.bfloat16) for width in widths}
    begun = perf_counter()
    for layer in layers:
        layer(inputs[layer.in_features])
    return perf_counter() - begun


if __name__ == "__main__":
    main()
