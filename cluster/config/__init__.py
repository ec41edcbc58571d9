"""The schema of the application's arguments in `cluster.yaml`; unknown fields are refused.

Imports nothing heavy, so that a config can be checked without a model or a cluster.
"""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from cluster.checkpoint_files import tokenizer_bytes
from cluster.config.backends import BACKENDS, Backend
from cluster.config.crosschecks import (
    check_adapters,
    check_copies,
    check_drafters,
    check_folder,
    check_formats,
    check_heads,
    check_inline_gpus,
    check_learning,
    check_ranks,
    check_vocabulary,
    check_whole_context,
)
from cluster.config.keys import EVERYONE, check_host, check_reference, check_tenants, differ
from cluster.config.models import DrafterConfig, TargetConfig, Threads
from cluster.config.section import Section, problems
from cluster.config.serving import (
    Choice,
    GrpcConfig,
    LimitsConfig,
    PoliciesConfig,
    ScalingConfig,
    SloClass,
)
from cluster.sources import name_of

__all__ = [
    "BACKENDS",
    "AppConfig",
    "Backend",
    "Choice",
    "DrafterConfig",
    "GrpcConfig",
    "LimitsConfig",
    "PoliciesConfig",
    "ScalingConfig",
    "Section",
    "SloClass",
    "TargetConfig",
    "ValidationError",
    "problems",
]

Name = Annotated[str, Field(min_length=1)]
Key = Annotated[Name, AfterValidator(check_reference)]
Host = Annotated[Name, AfterValidator(check_host)]


class AppConfig(Section):
    target: TargetConfig = TargetConfig()
    """The large model whose tokens are served."""
    served_name: Name = Field(default_factory=lambda known: name_of(known["target"].model))
    """The model's name in the API; default: the name of the checkpoint's directory or file, or
    `org/name`."""
    drafters: tuple[DrafterConfig, ...] = ()
    """The drafters that propose tokens to the target. Empty: plain decoding."""
    policies: PoliciesConfig = PoliciesConfig()
    """The policies; `user_config` replaces them while the application runs."""
    slo_classes: dict[Name, SloClass] = Field(default_factory=dict)
    """Named SLOs that a request can choose with `slo`."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of all queues and waits."""
    scaling: ScalingConfig = ScalingConfig()
    """The number of replicas."""
    api_keys: dict[Name, Key] = Field(default_factory=dict, repr=False)
    """One API key per tenant; the schedule shares capacity fairly among tenants. `env:NAME` reads a
    key from the ingress's environment. Empty: no key is required."""
    priority_for: tuple[Name, ...] = ()
    """The tenants whose requests may set `priority`; `"*"`: every client, also without a key.
    Requests of others that set it are refused."""
    operators: tuple[Name, ...] = ()
    """The tenants that may read what shows all tenants: `/metrics`, and the numbers of
    `/spindle/live`; `"*"`: every client with a key. Without keys every client may."""
    sharing: Literal["tenant", "all"] = "tenant"
    """Who may reuse what a request leaves, past outputs that lookups draft from and the prefix
    cache: with `tenant` requests of the same API key only, without `api_keys` all; with `all` those
    of every tenant, who can then find out what others have asked and been answered
    (docs/security.md)."""
    past_outputs_folder: str | None = None
    """A folder of the head node in which past outputs are kept over restarts, unencrypted; null:
    nothing of a text is written to disk (docs/security.md)."""
    grpc: GrpcConfig | None = None
    """The gRPC interface; null: there is none."""
    allowed_hosts: tuple[Host, ...] = ()
    """Names that requests may give as their `Host`, besides `localhost` and all addresses, such as
    `spindle.example`; `"*"`: every one. Empty: without keys no other, with keys every one
    (docs/security.md)."""
    threads: Threads = 1
    """Threads of the replica's process, in which inline models run."""
    growing_cluster: bool = False
    """Whether the cluster can add nodes (KubeRay's autoscaler): resources that are missing at the
    start are then waited for instead of refused."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_drafters(self.drafters, self.policies)
        check_inline_gpus(self.target, self.drafters)
        check_adapters(self.target, self.served_name)
        check_heads(self.target, self.drafters)
        check_formats(self.target, self.drafters)
        check_ranks(self.target)
        check_whole_context(self.target)
        check_vocabulary(self.target, self.drafters)
        check_copies(self.target, self.drafters)
        check_learning(self.drafters, self.api_keys)
        differ("api_keys", self.api_keys)
        check_tenants("priority_for", self.priority_for, self.api_keys)
        check_tenants("operators", self.operators, self.api_keys)
        check_folder(self.past_outputs_folder, self.past_tokens)
        return self

    @property
    def model_names(self) -> tuple[str, ...]:
        """Those that requests can name: the target's, and its adapters'."""
        return (self.served_name, *self.target.lora_modules)

    @property
    def isolates_tenants(self) -> bool:
        """Whether what a request leaves belongs to its tenant."""
        return bool(self.api_keys) and self.sharing == "tenant"

    @property
    def learner(self) -> DrafterConfig | None:
        """The drafter that learns from traffic."""
        return next((drafter for drafter in self.drafters if drafter.learn is not None), None)

    def may_teach(self, tenant: str) -> bool:
        """Whether the drafter learns from this tenant's requests."""
        if self.learner is None or self.learner.learn is None:
            return False
        named = self.learner.learn.tenants
        return not self.api_keys or tenant in named or EVERYONE in named

    @property
    def past_tokens(self) -> int:
        """The tokens of past outputs that lookups keep; 0: none keeps any."""
        keeping = [one for one in self.drafters if "past_tokens" in one.options]
        return max((one.past_tokens for one in keeping), default=0)

    @property
    def past_outputs_file(self) -> Path | None:
        """Named by what its tokens mean and whose they are, so that nobody reads what was kept
        under another tokenizer, or where tenants shared otherwise."""
        if self.past_outputs_folder is None:
            return None
        tenants = self.sharing if self.api_keys else "anyone"
        vocabulary = self.target.architecture().vocab_size
        named = blake2b(f"{tenants} {vocabulary} ".encode(), digest_size=8)
        named.update(tokenizer_bytes(self.target.header_path()))
        return Path(self.past_outputs_folder) / f"past_outputs_{named.hexdigest()}"

    def with_policies(self, policies: Mapping[str, Any]) -> "AppConfig":
        """The same application with other policies (`user_config`), checked like a new config."""
        return AppConfig.model_validate(
            self.model_dump(exclude_unset=True) | {"policies": dict(policies)}
        )
