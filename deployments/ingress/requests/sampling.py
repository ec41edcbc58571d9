"""A request's sampling parameters, for the engine."""

from collections.abc import Sequence

from deployments.ingress.requests.completions import GenerationRequest, echoes
from deployments.ingress.tokenizer import Tokens
from engine.errors import InvalidRequest
from engine.sampling.params import SamplingParams


def sampling_params(
    request: GenerationRequest, max_tokens: int, bad_words: Sequence[tuple[int, ...]] = ()
) -> SamplingParams:
    """All sampling parameters except the seed, which differs by choice."""
    allowed = request.allowed_token_ids
    return SamplingParams(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=request.logit_bias,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        allowed_token_ids=None if allowed is None else tuple(sorted(set(allowed))),
        bad_words=tuple(bad_words),
        logprobs=request.alternatives,
        prompt_logprobs=_listed_of_prompt(request),
        grammar=request.grammar,
    )


def _listed_of_prompt(request: GenerationRequest) -> int | None:
    """Alternatives beside each token of the prompt, for `echo` and `prompt_logprobs`."""
    wanted = (request.prompt_logprobs, request.alternatives if echoes(request) else None)
    return max((most for most in wanted if most is not None), default=None)


def tokens_of_bad_words(tokens: Tokens, words: Sequence[str]) -> list[tuple[int, ...]]:
    """How the tokenizer writes each word at the beginning of a text and after a space. Takes
    milliseconds for a thousand words."""
    sequences: dict[tuple[int, ...], None] = {}
    for word in dict.fromkeys(word.strip() for word in words):
        for text in (word, f" {word}"):
            ids = tokens.encode_blocking(text, add_special_tokens=False)
            if not word or not ids:
                raise InvalidRequest("bad_words", "one of them has no token; leave it out")
            sequences[tuple(ids)] = None
    return list(sequences)
