"""How requests are served: policies, SLOs, limits and replicas."""

import json
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from cluster.config.section import AtLeastOne, Count, Section, problems, within
from policies import catalogue, ranges
from policies.microbatch import MicroBatchParams
from policies.request import Slo
from policies.scheduling.fairness import FairnessParams

Seconds = Annotated[float, within(ranges.SECONDS)]
Milliseconds = Annotated[float, within(ranges.SLO_MS)]
Options = dict[str, Any]

ORDERED_BY_LENGTH = "laps_sd"
"""The schedule for which output lengths are predicted (docs/policies/ranking.md)."""


class Choice(Section):
    """A policy by name, with its parameters in policies/ as options."""

    name: str
    options: Options = Field(default_factory=dict)


class PoliciesConfig(Section):
    """Each policy is given by its name in docs/policies/, with its options."""

    selection: Choice = Choice(name="hedge")
    """Which drafter drafts for which request."""
    speculation: Choice = Choice(name="planner")
    """How much is drafted, and which draft tokens are verified."""
    schedule: Choice = Choice(name="default")
    """Which requests run."""
    fairness: Options = Field(default_factory=dict)
    """Priorities, fairness among tenants and the limit on waiting; applied around any schedule."""
    pipeline: MicroBatchParams = MicroBatchParams()
    """How drafting and verification overlap."""
    seed: Annotated[int, within(ranges.SEED)] = 0
    """Seed of the policies' random choices."""

    @model_validator(mode="after")
    def _exist(self) -> Self:
        # Types first, because the catalogue checks only the names of options.
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
        return self

    @property
    def predicts_lengths(self) -> bool:
        """Whether output lengths are predicted for the schedule."""
        return self.schedule.name == ORDERED_BY_LENGTH


class SloClass(Section):
    """The SLO of requests that name this class; null: no such objective."""

    ttft_ms: Milliseconds | None = None
    """Time to the first token, from arrival."""
    tpot_ms: Milliseconds | None = None
    """Mean time per output token after the first."""

    @property
    def slo(self) -> Slo:
        """The objectives in seconds."""
        return Slo(
            None if self.ttft_ms is None else self.ttft_ms / 1000,
            None if self.tpot_ms is None else self.tpot_ms / 1000,
        )

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if self.ttft_ms is None and self.tpot_ms is None:
            raise ValueError("ttft_ms or tpot_ms: a class promises at least one of them")
        return self


class LimitsConfig(Section):
    max_batch: AtLeastOne = 16
    """The most requests that a replica runs at once."""
    max_waiting: Count = 64
    """The most requests that wait at a replica; further ones are answered with 429."""
    forward_tokens: Annotated[int, Field(ge=2, le=ranges.COUNT.most)] = 512
    """The most new tokens in one forward of the target: last committed tokens, draft tokens and
    prompt chunks."""
    feature_tokens: AtLeastOne = 4096
    """For how many committed tokens of a request the target's features are kept until the drafters
    that read them have done so; a drafter that lacks more does not draft for the request. A token
    takes 2 bytes (in float32 4) for each layer that is read and each of the model's hidden values,
    in the memory of the replica."""
    unread_tokens: AtLeastOne = 256
    """A request pauses when its client has this many tokens still to read."""
    stalled_s: Seconds = 30.0
    """A request that has been paused for this long is cancelled."""
    max_choices: AtLeastOne = 16
    """The largest `n` of a request."""
    client_share: Annotated[float, Field(gt=0, le=1)] = 0.75
    """The largest share of the places at all replicas (`max_batch` and `max_waiting` of each) that
    one client may hold at once: a tenant, or without keys an address. Beyond it the client is
    answered with 429."""
    full_logprobs: AtLeastOne = 1_000_000
    """The most log-probabilities that a response may have, in a streamed completion those of its
    prompts (`echo`); a request that could exceed it is refused."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=ranges.COUNT.most)] = 4 * 1024 * 1024
    """The largest body of an HTTP request; larger ones are answered with 413."""
    stored_response_bytes: Count = 0
    """Memory of the ingress for responses that `previous_response_id` continues, all conversations
    together; the least recently used are dropped. 0: none is stored."""
    resubmits: Count = 2
    """How many times a request is sent to another replica after the loss of its replica."""
    silent_ingress_s: Seconds = 5.0
    """An ingress that has sent no heartbeat for this long counts as lost; its requests are
    cancelled."""
    silent_replica_s: Seconds = 30.0
    """A replica that has not answered heartbeats for this long is given up: its streams continue on
    another one, and new ones avoid it."""
    slow_drafter_s: Seconds = 0.5
    """A round goes on without a drafter that takes longer than this and 3 times as long as
    usual; the drafter is used again when it has answered."""
    stalled_host_s: Seconds = 5.0
    """A drafter or verifier counts as lost if a call takes longer than this and 20 times as long as
    was predicted."""
    recovery_s: Seconds = 120.0
    """A replica whose verifier has not recovered after this long fails, and is replaced; and how
    long a request waits for a replica that takes it. So it must exceed what a restart takes."""

    @model_validator(mode="after")
    def _roots_fit(self) -> Self:
        if self.forward_tokens < self.max_batch:
            raise ValueError(
                f"forward_tokens: {self.forward_tokens} leave no room for one token of each of "
                f"max_batch = {self.max_batch} requests"
            )
        return self


class GrpcConfig(Section):
    """The gRPC interface (docs/handles.md), which requires the same keys as HTTP."""

    host: str | None = None
    """The address to listen on; null: that of HTTP."""
    port: Annotated[int, Field(ge=1, le=65535)] = 9000
    """The port to listen on, at the node of the ingress."""


class ScalingConfig(Section):
    """The number of replicas, each of which has a target and drafters of its own."""

    min_replicas: AtLeastOne = 1
    """The least number of replicas."""
    max_replicas: AtLeastOne = 1
    """The largest number of replicas; if above the least, Serve's autoscaling chooses, by the
    signals below."""
    target_waiting: Annotated[float, Field(gt=0, le=ranges.COUNT.most)] = 4.0
    """Mean number of waiting requests per replica above which replicas are added."""
    target_attainment: Annotated[float, Field(gt=0, le=1)] = 0.9
    """SLO attainment of requests that have an SLO, below which a replica is added."""
    upscale_delay_s: Annotated[float, Field(ge=0, le=ranges.SECONDS.most)] = 10.0
    """How long the signals must persist before a replica is added."""
    downscale_delay_s: Annotated[float, Field(ge=0, le=ranges.SECONDS.most)] = 300.0
    """How long the signals must persist before a replica is removed."""
    drain_s: Seconds = 120.0
    """How long a replica that is being removed may finish its requests; the rest moves to other
    replicas."""

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
        # Through JSON in strict mode, which accepts a mapping for a dataclass but no "3" for a
        # number.
        adapter.validate_json(json.dumps(options), strict=True)
    except TypeError as error:  # YAML has dates and more
        raise ValueError(f"{where}: {error}") from error
    except ValidationError as error:
        raise ValueError("; ".join(f"{where}.{line}" for line in problems(error))) from error
