"""Measures speculation on a real model and real prompts, on the engine alone (`--engine`).

`python -m benchmarks.real --engine [--data DIR] [--head DIR] [--depths 5] [--json FILE]`.
"""

from pathlib import Path

from benchmarks.real.engine import DRAFTERS, HEAD, measure_drafters
from benchmarks.real.prompts import CATEGORIES, real_prompts
from benchmarks.report import parser, publish
from cluster.smollm2 import SMOLLM2
from cluster.sources import checkpoint_folder


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--model", default=SMOLLM2, help="as target.model in a config")
    arguments.add_argument("--data", type=Path, default=Path("../shared/data"))
    arguments.add_argument("--head", type=Path, help="of the target, in speculators' format")
    arguments.add_argument("--engine", action="store_true", help="drafters without serving")
    arguments.add_argument("--contenders", nargs="+", choices=DRAFTERS)
    arguments.add_argument("--categories", nargs="+", choices=CATEGORIES, default=CATEGORIES)
    arguments.add_argument("--requests", type=int, default=48)
    arguments.add_argument("--depths", type=int, nargs="+", default=[5])
    arguments.add_argument("--max-tokens", type=int, default=128)
    options = arguments.parse_args()
    checkpoint = checkpoint_folder(options.model)
    prompts = real_prompts(options.data, checkpoint, options.categories)
    drafters = options.contenders or [
        drafter for drafter in DRAFTERS if drafter != HEAD or options.head
    ]
    records = measure_drafters(
        checkpoint,
        prompts[: options.requests],
        drafters,
        options.head,
        options.depths,
        options.max_tokens,
    )
    publish(records, options.json)


if __name__ == "__main__":
    main()
