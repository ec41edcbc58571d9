"""One admitted request as the server keeps it. Its committed tokens are authoritative; every host's
copy is soft state."""

import operator
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.errors import InvalidRequest
from engine.feature_buffer import FeatureBuffer
from engine.protocol import Commit, Finish, Prefix, Start, TokenLogprobs, fast_new
from engine.sampling.params import SamplingParams, validate_params
from engine.scopes import SHARED, Scope
from engine.soft_state import CommittedTokens

VERIFIER = ""
"""The verifier's key in `ServedRequest.known`; drafters have non-empty names."""


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """The properties of the target that admission needs."""

    vocab_size: int
    max_context: int
    """The most tokens of prompt and output together that one request may have."""
    stop_token_ids: tuple[int, ...]
    """The model's own end-of-sequence tokens."""
    trees: bool = True
    """Whether the verifier takes draft trees; otherwise only chains."""
    follows_grammars: bool = True
    """Whether the verifier can keep outputs to a grammar."""


@dataclass(slots=True)
class ServedRequest:
    name: str
    committed: CommittedTokens
    prompt_len: int
    params: SamplingParams
    seed: int
    attempt: int = 0
    scope: Scope = SHARED
    remember: bool = True
    """Whether its output may be kept for later requests of its scope."""
    round: int = 0
    known: dict[str, int] = field(default_factory=dict)
    """The number of committed tokens that each host has; absent or 0: the next order needs a
    `Start`. Policies see this very dict as `RequestView.read`."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Log-probabilities of the prompt's tokens except the first, as far as the verifier has
    returned them. None: not requested, or already delivered with the first commit."""
    features: FeatureBuffer | None = None
    """The target's features that lanes have not read yet (engine/features.py)."""

    @property
    def prompt_logprobs_from(self) -> int | None:
        """The index of the prompt token with which the verifier continues
        (`VerifyOrder.prompt_logprobs_from`)."""
        return None if self.prompt_logprobs is None else 1 + len(self.prompt_logprobs)

    @property
    def produced(self) -> int:
        return len(self.committed.ids) - self.prompt_len

    def prefix_for(self, host: str, at_most: int | None = None) -> Prefix:
        """The committed tokens that the host lacks, or the first `at_most` of them."""
        base = self.known.get(host, 0)
        end = None if at_most is None else base + at_most
        committed = self.committed
        start = None
        if not base:
            start = Start(self.params, self.seed, self.prompt_len, self.scope, self.remember)
        base_hash, delta = committed.hashes[base], tuple(committed.ids[base:end])
        return fast_new(
            Prefix, (self.name, self.attempt, self.round, base, base_hash, delta, start)
        )

    def add_prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Adds a verdict's log-probabilities of the prompt; the first commit delivers them."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs.extend(logprobs)

    def commit(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] | None = None
    ) -> Commit:
        """Commits a verdict's tokens up to the first that ends the output."""
        first, params = len(self.committed.ids) - self.prompt_len, self.params
        room, stops = params.max_tokens - first, params.stop_token_ids
        output = tuple(tokens[:room])
        finish: Finish | None = "length" if len(output) == room else None
        if stops and not set(stops).isdisjoint(output):
            stop = next(index for index, token in enumerate(output) if token in stops)
            output, finish = output[: stop + 1], "stop"
        self.committed.extend(output)
        prompt, self.prompt_logprobs = self.prompt_logprobs, None
        output_logprobs = None if logprobs is None else tuple(logprobs[: len(output)])
        prompt_logprobs = None if prompt is None else tuple(prompt)
        return fast_new(
            Commit,
            (
                self.name,
                self.attempt,
                first,
                output,
                output_logprobs,
                finish,
                prompt_logprobs,
                None,
            ),
        )


def admit(
    name: str,
    prompt: Sequence[int],
    params: SamplingParams,
    target: TargetLimits,
    *,
    output: Sequence[int] = (),
    attempt: int = 0,
    scope: Scope = SHARED,
    remember: bool = True,
) -> ServedRequest:
    """Validates a request and returns its state; raises InvalidRequest naming the field.

    `output`: tokens that an earlier attempt has committed. They count as output, so positions,
    penalties and max_tokens continue.
    """
    validate_params(params, target.vocab_size)
    prompt = _tokens("prompt", prompt, target)
    output = _tokens("output_ids", output, target)
    _check_room(prompt, params.max_tokens, target)
    if len(output) >= params.max_tokens:
        raise InvalidRequest("output_ids", f"{len(output)} tokens leave none to generate")
    seed = secrets.randbits(64) if params.seed is None else params.seed
    params = _settled(params, target)
    committed = CommittedTokens()
    committed.extend(prompt)
    committed.extend(output)
    served = ServedRequest(name, committed, len(prompt), params, seed, attempt, scope, remember)
    if params.prompt_logprobs is not None and not output:
        served.prompt_logprobs = []
    return served


def _settled(params: SamplingParams, target: TargetLimits) -> SamplingParams:
    """Adds the model's own stop tokens, and normalises values that mean "all"."""
    if params.top_k < 0 or params.top_k >= target.vocab_size:
        params = replace(params, top_k=0)
    # With ignore_eos, too, a structured output ends: where its grammar allows only a stop token.
    if not params.ignore_eos or params.grammar is not None:
        stops = {*params.stop_token_ids, *target.stop_token_ids}
        params = replace(params, stop_token_ids=tuple(sorted(stops)))
    if params.grammar is not None and not params.stop_token_ids:
        raise InvalidRequest(
            "stop_token_ids",
            "a structured output needs a token to end with, and this model has none; name one",
        )
    if params.grammar is not None and not target.follows_grammars:
        raise params.grammar.invalid("this target has no tokenizer to follow a grammar with")
    if params.min_tokens and len(set(params.stop_token_ids)) >= target.vocab_size:
        raise InvalidRequest(
            "min_tokens",
            "every token of the vocabulary is a stop token, and none of them can be chosen before "
            "min_tokens; set it to 0, or leave tokens out of stop_token_ids",
        )
    return params


def _tokens(field: str, tokens: Sequence[int], target: TargetLimits) -> list[int]:
    """The tokens as plain integers, whatever integer type the caller uses."""
    try:
        plain = [operator.index(token) for token in tokens]
    except TypeError:
        raise InvalidRequest(field, "holds something that is not a token id") from None
    for index, token in enumerate(plain):
        if not 0 <= token < target.vocab_size:
            raise InvalidRequest(
                field,
                f"the token at index {index} is outside the vocabulary of {target.vocab_size}",
            )
    return plain


def _check_room(prompt: Sequence[int], max_tokens: int, target: TargetLimits) -> None:
    if not prompt:
        raise InvalidRequest("prompt", "is empty; it needs at least one token")
    room = target.max_context - len(prompt)
    if room < 1:
        raise InvalidRequest(
            "prompt",
            f"{len(prompt)} tokens leave no room for output in the {target.max_context} that "
            "a request may have here; shorten it",
        )
    if max_tokens > room:
        raise InvalidRequest(
            "max_tokens",
            f"{max_tokens} tokens after a prompt of {len(prompt)} exceed the "
            f"{target.max_context} that a request may have here; ask for at most {room}",
        )
