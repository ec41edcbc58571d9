"""One request's sampling parameters, which drafters and the verifier use alike."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

from engine.errors import InvalidRequest
from engine.grammar.spec import OutputGrammar, check_length
from policies.ranges import (
    BIAS,
    DRAWN_SEED_BITS,
    LOGPROBS,
    MAX_BIASES,
    MAX_STOP_TOKENS,
    SAMPLING_INTEGERS,
    SAMPLING_REALS,
    Range,
)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 1.0
    """0: greedy."""
    top_k: int = 0
    """0 keeps every token, as do -1 and values not below the vocabulary's size."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_tokens: int = 16
    min_tokens: int = 0
    """Before this many output tokens no stop token can be chosen."""
    stop_token_ids: tuple[int, ...] = ()
    """Each of these ends the output, as its last token; the model's own are added at admission."""
    ignore_eos: bool = False
    """Do not add the model's own stop tokens."""
    logprobs: int | None = None
    """How many alternatives to report beside each chosen token's log-probability."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens except the first, for which there is no prediction."""
    seed: int | None = None
    grammar: OutputGrammar | None = None
    """The texts that the output may be; None: any."""
    adapter: str = ""
    """The LoRA adapter that the target runs with; empty: none."""

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def validate_params(params: SamplingParams, vocab_size: int) -> None:
    """Raises InvalidRequest for the first field with an invalid value."""
    for name, limits in SAMPLING_INTEGERS.items():
        check_integer(name, getattr(params, name), limits)
    for name, limits in SAMPLING_REALS.items():
        check_number(name, getattr(params, name), limits)
    if params.min_tokens > params.max_tokens:
        raise InvalidRequest("min_tokens", f"must be at most max_tokens = {params.max_tokens}")
    most = min(int(LOGPROBS.most), vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        if (getattr(params, name) or 0) > most:
            raise InvalidRequest(name, f"must be in [0, {most}]: the vocabulary has no more")
    _validate_tokens("logit_bias", params.logit_bias, MAX_BIASES, vocab_size)
    _validate_tokens("stop_token_ids", params.stop_token_ids, MAX_STOP_TOKENS, vocab_size)
    if params.grammar is not None:
        check_length(params.grammar)
    for token, bias in params.logit_bias.items():
        if not (isinstance(bias, Real) and BIAS.holds(bias)):
            raise InvalidRequest("logit_bias", f"bias of token {token} must be in {BIAS}")


def check_integer(name: str, value: int | None, limits: Range) -> None:
    """Raises InvalidRequest naming the field; None is valid and means absent."""
    if value is not None and not (isinstance(value, Integral) and limits.holds(value)):
        raise InvalidRequest(name, f"must be an integer in {limits}")


def check_number(name: str, value: float | None, limits: Range) -> None:
    """Like check_integer, for real numbers."""
    if value is not None and not (isinstance(value, Real) and limits.holds(value)):
        raise InvalidRequest(name, f"must be a number in {limits}")


def _validate_tokens(name: str, tokens: Collection[int], most: int, vocab_size: int) -> None:
    if len(tokens) > most:
        raise InvalidRequest(name, f"names {len(tokens)} tokens; at most {most} can be given")
    for token in tokens:
        if not (isinstance(token, Integral) and 0 <= token < vocab_size):
            raise InvalidRequest(
                name, f"a token is outside the vocabulary; ids are in [0, {vocab_size - 1}]"
            )


_WORD = 0xFFFF_FFFF_FFFF_FFFF
_WORD_BITS = 64
_GOLDEN_GAMMA = 0x9E37_79B9_7F4A_7C15


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of several: as many leading bits of SplitMix64's output as every
    language's JSON numbers hold exactly, so that a client can send it again."""
    return splitmix64(seed, index) >> (_WORD_BITS - DRAWN_SEED_BITS)


def splitmix64(seed: int, index: int) -> int:
    """Output number `index`, from 0, of the generator with this seed (Steele, Lea, Flood, "Fast
    splittable pseudorandom number generators", 2014)."""
    mixed = (seed + (index + 1) * _GOLDEN_GAMMA) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _WORD
    return mixed ^ (mixed >> 31)
