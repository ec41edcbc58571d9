"""How one request wants its tokens chosen. The same parameters bind drafters and verifier."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import InvalidRequest

SEED_LIMIT = 2**64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps every token."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_tokens: int = 16
    min_tokens: int = 0
    """Stop tokens cannot be chosen before this many output tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Each ends the output and is its last token; the model's own are added at admission."""
    ignore_eos: bool = False
    """The model's own stop tokens are not added."""
    logprobs: int | None = None
    """How many alternatives to report beside each chosen token's log-probability."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens but the first, for which the model says nothing."""
    seed: int | None = None

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


MAX_LOGPROBS = 20


def validate_params(params: SamplingParams, vocab_size: int) -> None:
    """Raises InvalidRequest for the first field that no engine could honour."""
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        if not math.isfinite(getattr(params, name)):
            raise InvalidRequest(name, "must be a finite number")
    checks = (
        ("temperature", params.temperature >= 0, "must be at least 0"),
        ("top_k", params.top_k >= 0, "must be at least 0 (0 keeps every token)"),
        ("top_p", 0 < params.top_p <= 1, "must be in (0, 1]"),
        ("min_p", 0 <= params.min_p <= 1, "must be in [0, 1]"),
        ("repetition_penalty", params.repetition_penalty > 0, "must be above 0"),
        ("presence_penalty", abs(params.presence_penalty) <= 2, "must be in [-2, 2]"),
        ("frequency_penalty", abs(params.frequency_penalty) <= 2, "must be in [-2, 2]"),
        ("max_tokens", params.max_tokens >= 1, "must be at least 1"),
        (
            "min_tokens",
            0 <= params.min_tokens <= params.max_tokens,
            "must be between 0 and max_tokens",
        ),
        (
            "logprobs",
            params.logprobs is None or 0 <= params.logprobs <= MAX_LOGPROBS,
            f"must be in [0, {MAX_LOGPROBS}]",
        ),
        (
            "prompt_logprobs",
            params.prompt_logprobs is None or 0 <= params.prompt_logprobs <= MAX_LOGPROBS,
            f"must be in [0, {MAX_LOGPROBS}]",
        ),
        (
            "seed",
            params.seed is None or 0 <= params.seed < SEED_LIMIT,
            "must be a 64-bit unsigned integer",
        ),
    )
    for name, holds, problem in checks:
        if not holds:
            raise InvalidRequest(name, f"{problem}, got {getattr(params, name)}")
    for name, ids in (
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
    ):
        for token in ids:
            if not 0 <= token < vocab_size:
                raise InvalidRequest(name, f"token {token} is outside the vocabulary")
    for token, bias in params.logit_bias.items():
        if not -100 <= bias <= 100:
            raise InvalidRequest("logit_bias", f"bias of token {token} must be in [-100, 100]")
