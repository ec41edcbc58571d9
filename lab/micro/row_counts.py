"""Measures how the time of all matrix products of a forward depends on the number of rows.

`python -m lab.micro.row_counts [--threads 2] [--json FILE]`.

The linear layers of the zoo's target inflated to 90M in bf16, one after the other; row counts are
shuffled in every round. Names: row_counts/ROWS/products; `reference` is the count to which
`engine/cpu/row_counts.py` pads the slow counts. Values are medians.
"""

import random
from statistics import median
from time import perf_counter

import torch

from benchmarks.report import Record, parser, publish
from cluster.built_in_models import inflated_target
from engine.cpu.prepack import PackedLinear
from engine.cpu.row_counts import avoid_slow_row_count
from engine.model import PackedModel

ROWS = (8, 16, 17, 20, 24, 28, 32, 36, 40, 48, 64)
PADDED_TO = avoid_slow_row_count(17)
PARAMS = 90_000_000
KV_TOKENS = 1024


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=60)
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    model = PackedModel.load(
        inflated_target(PARAMS), dtype=torch.bfloat16, device="cpu", kv_tokens=KV_TOKENS
    )
    layers = [layer for layer in model.hf_model.modules() if isinstance(layer, PackedLinear)]
    for rows in ROWS:  # the first call of each count compiles oneDNN's kernels
        products_s(layers, rows)
    took_s: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(options.rounds):
        for rows in random.sample(ROWS, len(ROWS)):
            took_s[rows].append(products_s(layers, rows))
    padded_s = median(took_s[PADDED_TO])
    records = [
        Record.over(padded_s, f"row_counts/{rows}/products", median(each), "s")
        for rows, each in took_s.items()
    ]
    publish(records, options.json)


def products_s(layers: list[PackedLinear], rows: int) -> float:
    """Seconds of all layers with inputs of so many rows."""
    widths = {layer.in_features for layer in layers}
    inputs = {width: torch.ones(rows, width, dtype=torch.bfloat16) for width in widths}
    started = perf_counter()
    for layer in layers:
        layer(inputs[layer.in_features])
    return perf_counter() - started


if __name__ == "__main__":
    main()
