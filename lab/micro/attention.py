"""Measures the time of a forward under each attention layout.

`python -m lab.micro.attention [--json FILE]`.

Whole forwards of a 768×12 Llama in bf16 over requests with prefixes of 30 to 600 tokens, the
layouts interleaved in one run; `reference` is the padded layout (Spin's baseline in Fig. 12).
"""

import statistics
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.report import Record, paired_ratio, parser, publish, seconds
from engine.attention.layouts import LAYOUTS, LayoutName
from engine.model import PackedModel, Segment

BATCHES = ((1, 1), (8, 1), (16, 1), (8, 5), (16, 5))
"""(requests, new rows of each request)"""
PAIRS = 20
SHORTEST, LONGEST = 30, 600
_VOCAB = 2048


def main() -> None:
    arguments = parser(__doc__).parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCAB,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    stock = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    models = {name: PackedModel(stock, kv_tokens=12_000, layout=name) for name in LAYOUTS}
    records = [record for batch in BATCHES for record in compare(models, *batch)]
    publish(records, arguments.json)


def compare(models: Mapping[LayoutName, PackedModel], requests: int, rows: int) -> list[Record]:
    """Milliseconds per forward of each layout over the same requests."""
    batches = {name: open_requests(model, requests, rows) for name, model in models.items()}
    times: dict[LayoutName, list[float]] = {name: [] for name in models}
    for _ in range(PAIRS + 1):  # the first pair compiles and warms up
        for name, model in models.items():
            times[name].append(1000 * seconds(partial(model.forward, batches[name])))
            for segment in batches[name]:
                model.kv.commit(segment.request, [], [])
    records = []
    for name, model in models.items():
        ratio = paired_ratio(times[name][1:], times["padded"][1:])
        records.append(
            Record(
                f"attention/{requests} requests/{rows} rows/{name}",
                statistics.median(times[name][1:]),
                "ms",
                statistics.median(times["padded"][1:]),
                ratio.median,
            )
        )
        for segment in batches[name]:
            model.kv.release(segment.request)
    return records


def open_requests(model: PackedModel, requests: int, rows: int) -> list[Segment]:
    """Opens requests with random prefixes, whose lengths are spread evenly."""
    rng = np.random.default_rng(0)
    lengths = np.linspace(SHORTEST, LONGEST, requests, dtype=int).tolist()
    segments = []
    for number, length in enumerate(lengths):
        request = f"request-{number}"
        model.kv.open(request, [])
        model.kv.reserve(request, length)
        model.kv.commit(request, range(length), rng.integers(0, _VOCAB, length).tolist())
        tokens = rng.integers(0, _VOCAB, rows, dtype=np.int32)
        positions = np.arange(length, length + rows, dtype=np.int32)
        segments.append(Segment(request, tokens, positions, None, np.arange(rows, dtype=np.int32)))
    return segments


if __name__ == "__main__":
    main()
