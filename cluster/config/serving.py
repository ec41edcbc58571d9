"""How requests are served: policies, promises, limits and replicas."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from cluster.config.section import Section, problems, within
from policies import catalogue, ranges
from policies.microbatch import MicroBatchParams
from policies.scheduling.fairness import FairnessParams
from policies.scheduling.rank_prompts import MAX_BATCH

Seconds = Annotated[float, within(ranges.SECONDS)]
Milliseconds = Annotated[float, within(ranges.SLO_MS)]
Count = Annotated[int, within(ranges.COUNT)]
AtLeastOne = Annotated[int, within(ranges.SOME)]
Options = dict[str, Any]

ORDERED_BY_LENGTH = ("laps_sd", "lp_sjf")
"""Schedules that order by predicted output lengths."""
RANKS_ITSELF = "self_ranked"


class Choice(Section):
    """A policy by name, with options as its parameters in policies/ document them."""

    name: str
    options: Options = Field(default_factory=dict)


class LengthsConfig(Section):
    """Predicted output lengths, which the target itself is asked for (docs/policies/ranking.md)."""

    enabled: bool | None = None
    """null: where the schedule orders by them (laps_sd, lp_sjf). `self_ranked` asks by itself."""
    form: Literal["length_only"] = "length_only"
    """The prompt that asks: the one whose answers are lengths."""
    batch: Annotated[int, Field(ge=1, le=MAX_BATCH)] = MAX_BATCH
    """Requests that one prompt asks about at most."""
    timeout_s: Seconds = 0.5
    """A request waits for this long at most to be asked about. It runs meanwhile."""


class PoliciesConfig(Section):
    """Each by a name of docs/policies/, with its options."""

    selection: Choice = Choice(name="hedge")
    """Which drafter drafts for which request."""
    speculation: Choice = Choice(name="planner")
    """How much is drafted, and what of it is verified."""
    schedule: Choice = Choice(name="default")
    """Who runs."""
    fairness: Options = Field(default_factory=dict)
    """Priorities, tenants and the bound on waiting, around any schedule."""
    pipeline: MicroBatchParams = MicroBatchParams()
    """How drafting and verification overlap."""
    lengths: LengthsConfig = LengthsConfig()
    """Whether and how output lengths are predicted."""
    seed: Annotated[int, within(ranges.SEED)] = 0
    """Of the policies' own random draws."""

    @model_validator(mode="after")
    def _exist(self) -> Self:
        # Types first: the catalogue knows the names of options, and trusts their types.
        for kind, entries, choice in (
            ("selection", catalogue.SELECTIONS, self.selection),
            ("speculation", catalogue.SPECULATIONS, self.speculation),
            ("schedule", catalogue.SCHEDULES, self.schedule),
        ):
            if choice.name in entries:
                _check_types(f"{kind}.options", entries[choice.name].params, choice.options)
        _check_types("fairness", FairnessParams, self.fairness)
        catalogue.make_selection(self.selection.name, self.selection.options)
        catalogue.make_speculation(self.speculation.name, self.speculation.options)
        schedule = catalogue.make_schedule(self.schedule.name, self.schedule.options)
        catalogue.fair(schedule, self.fairness)
        if self.lengths.enabled and self.schedule.name == RANKS_ITSELF:
            raise ValueError(f"lengths.enabled: {RANKS_ITSELF} asks by itself; leave it null")
        return self

    @property
    def predicts_lengths(self) -> bool:
        """Whether the target is asked for output lengths."""
        if self.lengths.enabled is None:
            return self.schedule.name in ORDERED_BY_LENGTH
        return self.lengths.enabled


class SloClass(Section):
    """What a request that names this class is promised. Left out: nothing."""

    ttft_ms: Milliseconds | None = None
    """Time to the first token, from arrival."""
    tpot_ms: Milliseconds | None = None
    """Mean time per output token behind the first."""

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if self.ttft_ms is None and self.tpot_ms is None:
            raise ValueError("ttft_ms or tpot_ms: a class promises at least one of them")
        return self


class LimitsConfig(Section):
    max_batch: AtLeastOne = 16
    """Requests that a replica runs at once."""
    max_waiting: Count = 64
    """Requests that wait for their turn there; one more is answered with 429."""
    forward_tokens: Annotated[int, Field(ge=2, le=ranges.COUNT.most)] = 512
    """New tokens in one forward of the target: roots, drafts and pieces of prompts."""
    unread_tokens: AtLeastOne = 256
    """A request that is further ahead of its reader pauses."""
    stalled_s: Seconds = 30.0
    """A request that has paused for so long is cancelled."""
    max_choices: AtLeastOne = 16
    """`n` of one request at most."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=ranges.COUNT.most)] = 4 * 1024 * 1024
    """Of one HTTP request; a longer one is answered with 413."""
    resubmits: Count = 2
    """Times that a request whose replica dies is sent to another one."""
    silent_ingress_s: Seconds = 5.0
    """Requests of an ingress that has given no sign of life for so long are cancelled."""
    silent_replica_s: Seconds = 30.0
    """A replica that answers no sign of life for so long loses its streams to another one, and
    new ones avoid it."""
    stalled_host_s: Seconds = 5.0
    """A drafter or verifier that takes so long over one call, and 20 times as long as predicted,
    counts as dead."""
    recovery_s: Seconds = 60.0
    """A replica whose verifier is not back after so long fails, and is replaced."""

    @model_validator(mode="after")
    def _roots_fit(self) -> Self:
        if self.forward_tokens < self.max_batch:
            raise ValueError(
                f"forward_tokens: {self.forward_tokens} leave no room for one token of each of "
                f"max_batch = {self.max_batch} requests"
            )
        return self


class ScalingConfig(Section):
    """Each replica has a target and drafters of its own."""

    min_replicas: AtLeastOne = 1
    """So many are always there."""
    max_replicas: AtLeastOne = 1
    """More than the least: Serve's autoscaling decides, by the signals below."""
    target_waiting: Annotated[float, Field(gt=0, le=ranges.COUNT.most)] = 4.0
    """Requests that wait at each replica, on average; more ask for another replica."""
    target_attainment: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Of the requests that were promised something; a smaller share that got it asks for
    another replica."""
    upscale_delay_s: Annotated[float, Field(ge=0, le=ranges.SECONDS.most)] = 10.0
    """For so long the signals must ask before a replica is added ..."""
    downscale_delay_s: Annotated[float, Field(ge=0, le=ranges.SECONDS.most)] = 300.0
    """... or removed."""
    drain_s: Seconds = 120.0
    """A replica that goes may serve what it has begun for so long; the rest moves to others."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas: {self.max_replicas} is less than min_replicas = {self.min_replicas}"
            )
        return self


def _check_types(where: str, params: type, options: Options) -> None:
    adapter: TypeAdapter[object] = TypeAdapter(params)
    try:
        # Through JSON, strictly: a mapping is taken for a dataclass, and "3" is no number.
        adapter.validate_json(json.dumps(options), strict=True)
    except ValidationError as error:
        raise ValueError("; ".join(f"{where}.{line}" for line in problems(error))) from error
