"""Blocks of the settings files: models, machines, datasets, workloads, metrics and arms."""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic import model_validator as checked

from actors.coordinator.settings import Limits
from cluster.plan.simulator.acceptance import DrafterModel, synthetic
from cluster.plan.simulator.hardware import Gpu, Shape
from cluster.plan.simulator.workload import Lengths
from lab.baselines.catalogue import make_schedule, make_selection, make_speculation
from lab.papers import hardware
from lab.papers.row import Source
from policies.microbatch import MicroBatchParams

Made = TypeVar("Made")


class Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _made_by(make: Callable[..., Made]) -> BeforeValidator:
    """Calls `make` with a mapping of keyword arguments."""

    def validate(given: Mapping[str, object] | Made) -> Made:
        if not isinstance(given, Mapping):
            return given
        try:
            return make(**given)
        except (TypeError, ValueError) as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(validate)


def _constant(kind: type) -> BeforeValidator:
    """Replaces a name by the constant of this name in lab/papers/hardware.py."""

    def validate(given: object) -> object:
        if not isinstance(given, str):
            return given
        constant = getattr(hardware, given, None)
        if not isinstance(constant, kind):
            raise ValueError(f"hardware.py has no {kind.__name__} named {given!r}")
        return constant

    return BeforeValidator(validate)


class Model(Block):
    paper: str
    """Its name in the paper."""
    shape: Annotated[Shape, _made_by(Shape), _constant(Shape)]
    """A constant of hardware.py, or parameters, layers, hidden and kv_width."""
    source: Source


class Drafter(Block):
    model: str
    capacity: int = Field(ge=1)
    """B_j: concurrent requests on one lane."""
    step_s: float | None = None
    """The time of one draft step, where the paper prints it; else by the roofline."""


class Verification(Block):
    """The measured time of a verification, instead of the roofline's."""

    fixed_s: float
    row_s: float
    """For each token that it computes."""
    padded_row_s: float | None = None
    """The same in arms with `attention: padded`."""


class Machine(Block):
    target: str
    gpu: Annotated[Gpu, _constant(Gpu)]
    gpus: int = Field(1, ge=1)
    """GPUs of the target, tensor-parallel; each lane of a drafter has one."""
    drafters: tuple[Drafter, ...] = ()
    max_batch: int = Field(ge=1)
    verify: Verification | None = None
    slower: float = Field(1.0, gt=0.0)
    """Times of the target's forwards over the roofline's."""
    verify_budget: int | None = None
    """AdaServe's B_1, where it is tuned; else the roofline's knee."""
    kv_share: float = Field(1.0, gt=0.0, le=1.0)
    """The target's share of the memory that is left for KV."""
    swap_s_per_token: float | None = None
    """The time to copy KV to host memory or back, where the paper prints it; else by the link."""
    rereads_context: bool = False
    """Whether each draft token that is verified reads its request's context once more."""
    keeps_idle_kv: bool = True
    """Whether a preempted request's KV stays until its memory is needed; otherwise every switch
    copies it."""
    source: Source


class Dataset(Block):
    paper: str
    lengths: Annotated[Lengths, _made_by(Lengths)] | None = None
    acceptance: Mapping[str, Annotated[DrafterModel, _made_by(synthetic)]] = {}
    """By drafter model; arguments of `synthetic`."""
    predictor_tau: Mapping[str, float] = {}
    """Kendall's τ-b of each predictor of lengths or ranks: an input of the simulator."""
    predictor_error: float | None = None
    """Mean relative error of predicted lengths, instead of a τ-b."""
    mix_of: Mapping[str, float] = {}
    """Shares of other datasets, instead of its own lengths and acceptance."""
    source: Source

    @checked(mode="after")
    def _lengths_or_mix(self) -> Self:
        if (self.lengths is None) == (not self.mix_of):
            raise ValueError("give either lengths or mix_of")
        if self.mix_of and abs(sum(self.mix_of.values()) - 1.0) > 1e-9:
            raise ValueError("the shares of mix_of do not add up to 1")
        return self


class Slo(Block):
    tpot_s: float | None = None
    ttft_s: float | None = None
    tpot_idle_multiple: float | None = None
    """TPOT as a multiple of the idle machine's latency per token."""


_NEEDS = {
    "together": ("requests",),
    "poisson": ("requests", "rate"),
    "bursty": ("requests", "rate"),
    "replay": ("trace", "end_s"),
    "closed": ("requests", "clients"),
}


class Workload(Block):
    """Arrival times and SLOs. Fields that its arrivals need and it lacks must be axes of the
    figures that use it."""

    arrivals: Literal["together", "poisson", "bursty", "replay", "closed"]
    requests: int | None = None
    rate: float | None = None
    """Per second."""
    variation: float = 3.0
    """Coefficient of variation of the gaps of bursty arrivals."""
    trace: str | None = None
    """A file in the folder `--data`; only its times are replayed, lengths are the dataset's."""
    begin_s: float = 0.0
    """In the trace's own time, like `end_s`."""
    end_s: float | None = None
    clients: int | None = None
    """Clients of a closed loop."""
    peaks: Mapping[str, float] = {}
    """By dataset of a mix: when its rate peaks, as a share of the run."""
    slo: Mapping[str, Slo] = {}
    """By dataset."""
    source: Source

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields that the figure must have as axes."""
        return tuple(name for name in _NEEDS[self.arrivals] if getattr(self, name) is None)


class Choice(Block):
    name: str
    options: Mapping[str, object] = {}


def _choice(given: object) -> object:
    """From `fcfs` or `{las: {options}}`."""
    if isinstance(given, str):
        return {"name": given}
    if isinstance(given, Mapping) and len(given) == 1:
        ((name, options),) = given.items()
        return {"name": name, "options": options}
    raise ValueError(f"a policy is a name, or one name with its options, not {given!r}")


def _checked_by(make: Callable[..., object]) -> AfterValidator:
    def validate(choice: Choice) -> Choice:
        make(choice.name, choice.options)
        return choice

    return AfterValidator(validate)


def _selection_or_oracle(name: str, options: Mapping[str, object]) -> None:
    """The oracle exists in the simulator only, so the catalogue does not list it."""
    if name != "oracle":
        make_selection(name, options)


_Choice = Annotated[Choice, BeforeValidator(_choice)]


class Arm(Block):
    """One system that a figure compares, in our policies' names."""

    schedule: Annotated[_Choice, _checked_by(make_schedule)]
    selection: Annotated[_Choice, _checked_by(_selection_or_oracle)]
    speculation: Annotated[_Choice, _checked_by(make_speculation)]
    pipeline: Annotated[MicroBatchParams, _made_by(MicroBatchParams)]
    limits: Mapping[str, float] = {}
    """Those of actors.coordinator.settings.Limits that differ from its defaults."""
    attention: Literal["packed", "padded", "decomposed"] = "packed"
    draft_slower: float = Field(1.0, gt=0.0)
    """Times of a draft step over the machine's, in an engine that launches it worse."""
    priorities: Mapping[str, int] = {}
    """By dataset."""
    source: Source

    @checked(mode="after")
    def _known_limits(self) -> Self:
        try:
            Limits(**{name: int(value) for name, value in self.limits.items()})
        except ValueError as error:
            raise ValueError(f"limits: {error}") from error
        return self


class Metric(Block):
    means: str
    unit: str
    better: Literal["lower", "higher"] | None = None
    source: Source
