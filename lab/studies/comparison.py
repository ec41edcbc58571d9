"""Compares speculation policies on the load of lab/studies/mixed_load.py, in virtual time.

`python -m lab.studies.comparison [--clients 1 4 16] [--seeds 3] [--apart]
[--policies planner fixed:length=4 ...] [--json FILE]`.

All of them run with hedge's choice of lanes. Names:
comparison/CLIENTS/POLICY/{total,code,prose,tasks}; values are over plain decoding, those of domains
medians of each request's own ratio. comparison/CLIENTS/first_over_best is the total of the first
policy over that of the best other one.
"""

from statistics import mean

from benchmarks.report import Record, parser, publish
from benchmarks.speculation_choice import add_choices
from cluster.plan.simulator.run import named_policies
from lab.baselines.catalogue import SPECULATIONS
from lab.studies.mixed_load import cluster, compare

POLICIES = (
    "planner",
    *(f"fixed:length={length}" for length in range(1, 9)),
    "threshold",
    "specserve",
)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--requests", type=int, default=144)
    arguments.add_argument("--apart", action="store_true", help="drafters have their own devices")
    add_choices(arguments, "--policies", POLICIES, SPECULATIONS)
    options = arguments.parse_args()
    policies = {
        choice.text: named_policies(
            choice.name,
            "hedge",
            speculation_options=choice.options,
            speculations=SPECULATIONS,
        )
        for choice in options.policies
    }
    replica, records = cluster(options.apart), []
    for clients in options.clients:
        runs = [
            compare(replica, seed, clients, options.requests, policies)
            for seed in range(options.seeds)
        ]
        values = {name: mean(run[name] for run in runs) for name in runs[0]}
        records += [
            Record(f"comparison/{clients}/{name}", value, "x plain")
            for name, value in values.items()
        ]
        first, *others = (values[f"{policy}/total"] for policy in policies)
        if others:
            name = f"comparison/{clients}/first_over_best"
            records.append(Record.over(max(others), name, first, "x plain"))
    publish(records, options.json)


if __name__ == "__main__":
    main()
