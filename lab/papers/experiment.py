"""Builds the simulator's arguments for a cell from the paper's settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from pydantic import TypeAdapter

from actors.coordinator.settings import Limits, Policies
from cluster.plan.simulator.acceptance import Acceptance
from cluster.plan.simulator.hardware import roofline
from cluster.plan.simulator.run import Cluster, DrafterSpec
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Arrival
from lab.baselines.catalogue import make_schedule, make_selection, make_speculation
from lab.papers.arrivals import arrivals, with_priorities
from lab.papers.blocks import Arm, Drafter, Machine
from lab.papers.cells import ORACLES, Cell, settings
from lab.papers.hardware import kv_tokens, swap_s_per_token
from lab.papers.lengths import predict_lengths, predict_with_error
from lab.papers.rank_prompts import PredictedLengths, RankPrompting, with_prompts
from lab.papers.row import Scalar
from lab.papers.run_observer import EstimateErrors, RunObserver, TimedSpeculation
from lab.papers.settings import Paper
from lab.papers.srpt import srpt
from lab.studies.oracle import Foresight, true_goodput
from lab.studies.selection_oracle import OracleSelection
from policies.catalogue import Calibrations, fair
from policies.cost import ForwardCost, SwitchCost, token_budget
from policies.microbatch import MicroBatchParams
from policies.protocols import Schedule, Selection, Speculation
from policies.scheduling.laps_sd import LapsSd
from policies.scheduling.self_ranked import SelfRanked, SelfRankedParams

_RANK_PROMPTING = ("self_ranked", "default")
"""Schedules that predict lengths by prompts to the target."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One cell, ready to run."""

    cell: Cell
    arm: Arm
    requests: Sequence[Arrival]
    """Rank prompts included."""
    answers: Mapping[str, float]
    """The rank prompts' answers: predicted length by request."""
    cluster: Cluster
    limits: Limits
    clients: int | None
    pipeline: MicroBatchParams

    def policies(self, calibrations: Calibrations, observer: RunObserver) -> Policies:
        """New ones for a run."""
        speculation = TimedSpeculation(self._speculation(calibrations), observer)
        return Policies(self._schedule(observer), self._selection(), speculation)

    def _speculation(self, calibrations: Calibrations) -> Speculation:
        chosen = self.arm.speculation
        return make_speculation(chosen.name, chosen.options, calibrations)

    def _selection(self) -> Selection:
        chosen = self.arm.selection
        if chosen.name == "oracle":
            batch = self.clients or self.limits.max_batch
            return OracleSelection(true_goodput(self._foresight(), self.cluster, batch))
        return make_selection(chosen.name, chosen.options, self.cell.seed)

    def _schedule(self, observer: RunObserver) -> Schedule:
        if self.cell.arm == "srpt":
            return self._srpt()
        swap_s = self.cluster.memory.swap_s_per_token or 0.0
        switch = SwitchCost(per_token_s=2 * swap_s)
        schedule = make_schedule(self.arm.schedule.name, self._schedule_options(), switch)
        if self.arm.priorities:
            # Priorities are the paper's, turns of starved requests and triage are not.
            schedule = fair(schedule, {"starve_after_s": inf, "late_share": 1.0})
        if isinstance(schedule, LapsSd):
            return EstimateErrors(schedule, observer)
        if self.answers:
            ranked = schedule if isinstance(schedule, SelfRanked) else PredictedLengths(schedule)
            schedule = RankPrompting(ranked, self.answers)
        return schedule

    def _schedule_options(self) -> dict[str, object]:
        options = dict(self.arm.schedule.options)
        if "queues" in self.cell.at:
            options["queues"] = self.cell.at["queues"]
        return options

    def _srpt(self) -> Schedule:
        depth = self.arm.speculation.options.get("length", 0)
        drafters = [spec.drafter for spec in self.cluster.drafters]
        drafter = drafters[0] if drafters else None
        return srpt(self._foresight(), drafter, int(str(depth)))

    def _foresight(self) -> Foresight:
        return Foresight(self.requests, self.cluster, self.cell.seed)


def build_experiment(cell: Cell, traces: Path) -> Experiment:
    paper, case = settings(cell.paper), cell.at
    arm = paper.arms[ORACLES.get(cell.arm, cell.arm)]
    machine = paper.machines[str(case["machine"])]
    verify = _verification(paper, machine, arm)
    requests: Sequence[Arrival] = arrivals(
        paper, case, cell.seed, _idle_tpot_s(paper, verify, case), traces
    )
    limits = _limits(paper, machine, arm)
    workload = paper.workloads[str(case["workload"])]
    clients = case.get("clients", workload.clients)
    dataset = paper.datasets[str(case["dataset"])]
    requests = with_priorities(requests, arm.priorities)
    if dataset.predictor_error is not None:
        requests = predict_with_error(requests, dataset.predictor_error, cell.seed)
    requests, answers = _predicted(dataset.predictor_tau, cell, arm, requests)
    return Experiment(
        cell=cell,
        arm=arm,
        requests=requests,
        answers=answers,
        cluster=_cluster(paper, case, arm, limits, verify),
        limits=limits,
        clients=None if workload.arrivals != "closed" or clients is None else int(clients),
        pipeline=_pipeline(arm.pipeline, case),
    )


def _pipeline(pipeline: MicroBatchParams, case: Mapping[str, Scalar]) -> MicroBatchParams:
    """With the axis `parts`, where the arm fixes their number."""
    if pipeline.parts is None or "parts" not in case:
        return pipeline
    return replace(pipeline, parts=int(case["parts"]))


def _verification(paper: Paper, machine: Machine, arm: Arm) -> ForwardCost:
    peak = roofline(paper.models[machine.target].shape, machine.gpu, machine.gpus)
    measured = machine.verify
    if measured is None:
        return _slower(peak, machine.slower)
    padded = measured.padded_row_s if arm.attention == "padded" else None
    row_s = padded or measured.row_s
    return peak._replace(gamma=row_s, delta=measured.fixed_s, gamma_more=0.0)


def _slower(cost: ForwardCost, factor: float) -> ForwardCost:
    return cost._replace(
        alpha=factor * cost.alpha,
        gamma=factor * cost.gamma,
        delta=factor * cost.delta,
        gamma_more=factor * cost.gamma_more,
    )


def _idle_tpot_s(paper: Paper, verify: ForwardCost, case: Mapping[str, Scalar]) -> float:
    """TPOT of a single request with plain decoding, in the middle of its output."""
    return verify.predict(_middle_context(paper, case), 1)


def _middle_context(paper: Paper, case: Mapping[str, Scalar]) -> float:
    """Context of a request in the middle of its output."""
    dataset = paper.datasets[str(case["dataset"])]
    parts = [paper.datasets[part] for part in dataset.mix_of] or [dataset]
    lengths = [part.lengths for part in parts if part.lengths is not None]
    return sum(part.prompt_mean + part.output_mean / 2 for part in lengths) / len(lengths)


def _assumed_verify(paper: Paper, verify: ForwardCost, case: Mapping[str, Scalar]) -> ForwardCost:
    """SpecServe's eq. 5 and 6 for a cost model of tokens in all: each row reads a context of mean
    length."""
    row_s = verify.gamma + verify.alpha * _middle_context(paper, case)
    return verify._replace(alpha=0.0, gamma=row_s)


def _limits(paper: Paper, machine: Machine, arm: Arm) -> Limits:
    shape = paper.models[machine.target].shape
    tokens = int(machine.kv_share * kv_tokens(shape, machine.gpu, machine.gpus))
    chosen = {"max_batch": machine.max_batch, "kv_tokens": tokens, **arm.limits}
    chosen["max_batch"] = min(machine.max_batch, chosen["max_batch"])
    return Limits(**{name: int(value) for name, value in chosen.items()})


def _cluster(
    paper: Paper, case: Mapping[str, Scalar], arm: Arm, limits: Limits, verify: ForwardCost
) -> Cluster:
    machine = paper.machines[str(case["machine"])]
    shape = paper.models[machine.target].shape
    models = {
        (name, model): accepted
        for name, dataset in paper.datasets.items()
        for model, accepted in dataset.acceptance.items()
    }
    most = limits.forward_tokens
    drafters = [_lane(paper, machine, arm, drafter, most) for drafter in machine.drafters]
    swap_s = machine.swap_s_per_token
    if swap_s is None:
        swap_s = swap_s_per_token(shape, machine.gpu, machine.gpus)
    return Cluster(
        verify,
        KvMemory(limits.kv_tokens, swap_s, machine.keeps_idle_kv),
        drafters,
        Acceptance(models),
        verify_budget=machine.verify_budget or token_budget(verify, most),
        most_tokens=most,
        rereads=machine.rereads_context,
        assumed_verify=_assumed_verify(paper, verify, case) if machine.rereads_context else None,
    )


def _lane(paper: Paper, machine: Machine, arm: Arm, drafter: Drafter, most: int) -> DrafterSpec:
    shape = paper.models[drafter.model].shape
    cost = roofline(shape, machine.gpu)
    if drafter.step_s is not None:
        cost = cost._replace(delta=drafter.step_s)
    cost = _slower(cost, arm.draft_slower)
    budget = token_budget(cost, most)
    return DrafterSpec(drafter.model, drafter.model, cost, drafter.capacity, budget)


def _predicted(
    tau: Mapping[str, float], cell: Cell, arm: Arm, requests: Sequence[Arrival]
) -> tuple[Sequence[Arrival], Mapping[str, float]]:
    """Adds predicted lengths of the stated τ-b: to the requests themselves, or, where the target
    predicts them, as rank prompts and their answers."""
    if len(requests) == 1:
        return requests, {}
    if "length" in tau:
        return predict_lengths(requests, tau["length"], cell.seed), {}
    if not tau or cell.arm == "srpt" or arm.schedule.name not in _RANK_PROMPTING:
        return requests, {}
    ranked = arm.schedule.name == "self_ranked"
    params = TypeAdapter(SelfRankedParams).validate_python(arm.schedule.options if ranked else {})
    predicted = predict_lengths(requests, tau[params.form], cell.seed)
    answers = {r.name: r.predicted_tokens for r in predicted if r.predicted_tokens is not None}
    least = 2 if ranked else 1
    return with_prompts(requests, params.form, params.batch, params.timeout_s, least), answers
