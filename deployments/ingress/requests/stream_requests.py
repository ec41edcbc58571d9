"""Turns a client's request into one StreamRequest per choice, as sent to a replica."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cluster.config import AppConfig
from deployments.ingress.clients import Client
from deployments.ingress.errors import ApiError, quoted
from deployments.ingress.requests.completions import ChatRequest, GenerationRequest, echoes
from deployments.ingress.requests.fields import SloTargets
from deployments.ingress.requests.json_bounds import json_length
from deployments.ingress.tokenizer import LONG_TEXT, Tokens
from deployments.messages import SpeculationFields, StreamRequest
from engine.errors import InvalidRequest
from engine.request import TargetLimits, check_request
from engine.sampling.params import SamplingParams, choice_seed
from engine.scopes import scope_of
from policies.ranges import DRAWN_SEED_BITS
from policies.request import Slo

_PAUSE_S = 0.1
"""Between the messages of a request whose client reads the whole answer at once. What a lost
replica had computed since its last message is computed again."""


class StreamRequestBuilder:
    """Checks what does not depend on load, so that a replica refuses a request only for lack of
    capacity."""

    def __init__(self, config: AppConfig, tokens: Tokens, ingress: str) -> None:
        self._config = config
        self._tokens = tokens
        self._ingress = ingress

    def check_size(
        self, request: GenerationRequest, client: Client, limits: TargetLimits, most_choices: int
    ) -> int:
        """The number of choices, after the checks that need no token of the prompts.
        `most_choices`: how many of one request can ever be admitted. Raises ApiError or
        InvalidRequest, naming the field."""
        prompts, field = prompts_of(request), prompt_field(request)
        if request.n > self._config.limits.max_choices:
            raise InvalidRequest(
                "n", f"at most {self._config.limits.max_choices} here, got {request.n}"
            )
        if not prompts:
            raise InvalidRequest(field, "is empty; it needs at least one token")
        choices = request.n * len(prompts)
        if choices > most_choices:
            raise InvalidRequest(
                field,
                f"{len(prompts)} prompts with n = {request.n} can never be admitted: one client "
                f"may have {most_choices} choices at once",
            )
        most = self._tokens.most_characters(limits.max_context)
        for prompt in prompts:
            if isinstance(prompt, str) and len(prompt) > most:
                raise _too_long(
                    field,
                    f"this model's maximum context length is {limits.max_context} tokens, which "
                    f"{len(prompt)} characters exceed; shorten the prompt",
                )
        if request.priority and not client.may_prioritize:
            raise ApiError(
                403, "priority: this client may not set it (priority_for in the config)", "priority"
            )
        return choices

    async def choices(
        self, request: GenerationRequest, name: str, tenant: str, limits: TargetLimits
    ) -> list[StreamRequest]:
        """`n` choices per prompt, in OpenAI's order, each under `name` and its number. Raises
        ApiError or InvalidRequest, naming the field."""
        prompts, field = await self._encoded(request, tenant), prompt_field(request)
        slo = self._slo(request)
        speculation = self._speculation(request)
        # A stop string ends a request here, so what comes after it would be computed in vain.
        # Responses list the log-probabilities of the verdicts that add to their text.
        joins = not (request.stream or request.stops or request.alternatives is not None)
        pause_s = _PAUSE_S if joins else 0.0
        scope_tenant = tenant if self._config.isolates_tenants else ""
        adapter = request.model if request.model in self._config.target.lora_modules else ""
        choices: list[StreamRequest] = []
        for prompt_ids in prompts:
            # Checking a large grammar takes long, and streams go on meanwhile.
            await asyncio.sleep(0)
            max_tokens = _max_tokens(request, len(prompt_ids), limits, field)
            params = sampling_params(request, max_tokens, adapter)
            _check(prompt_ids, params, limits, field)
            self._check_logprobs(request, len(prompts), len(prompt_ids), params)
            for seed in choice_seeds(request.given_seed, request.n):
                choices.append(
                    {
                        "name": f"{name}-{len(choices)}",
                        "attempt": 0,
                        "ingress": self._ingress,
                        "prompt_ids": prompt_ids,
                        "output_ids": [],
                        "params": replace(params, seed=seed),
                        "slo": slo,
                        # Inside, requests of higher priority run first.
                        "priority": -request.priority,
                        "tenant": tenant,
                        "scope": scope_of(scope_tenant, request.cache_salt),
                        "remember": request.store is not False,
                        "speculation": speculation,
                        "may_teach": request.may_teach and self._config.may_teach(tenant),
                        "trace": request.spindle.trace,
                        "pause_s": pause_s,
                        "avoid": [],
                        "routed_to": None,
                    }
                )
        return choices

    async def _encoded(self, request: GenerationRequest, tenant: str) -> list[list[int]]:
        """The prompts as token ids."""
        if isinstance(request, ChatRequest):
            ids = await self._tokens.encode_chat(
                (message.for_template for message in request.messages),
                (tool.for_template for tool in request.tool_use.tools),
                request.generation_prompt,
                request.continue_final_message,
                request.template_variables,
                tenant,
                _template_size(request),
            )
            return [ids]
        texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
        if texts:
            return await self._tokens.encode_all(texts, request.add_special_tokens, tenant)
        return [prompt for prompt in request.prompts if not isinstance(prompt, str)]

    def _check_logprobs(
        self, request: GenerationRequest, prompts: int, prompt_len: int, params: SamplingParams
    ) -> None:
        """An output that is kept is in memory until its end, as is what a stream says of its
        prompt; log-probabilities take most of both."""
        listings = (
            (params.max_tokens, params.logprobs if request.keeps_output else None),
            (prompt_len, params.prompt_logprobs),
        )
        one = sum(tokens * (1 + beside) for tokens, beside in listings if beside is not None)
        listed, most = prompts * request.n * one, self._config.limits.full_logprobs
        if listed > most:
            raise InvalidRequest(
                "logprobs",
                f"the response could have {listed} of them, at most {most} are returned at once; "
                "lower n, the number or length of prompts, max_tokens or the alternatives"
                + (", or stream a completion or a chat" if request.keeps_output else ""),
            )

    def _slo(self, request: GenerationRequest) -> Slo:
        slo = request.slo
        if isinstance(slo, str):
            classes = self._config.slo_classes
            if slo not in classes:
                raise InvalidRequest("slo", f"{quoted(slo)} is none of {_names(classes)}")
            return classes[slo].slo
        slo = slo or SloTargets()
        return Slo(_seconds(slo.ttft_ms), _seconds(slo.tpot_ms))

    def _speculation(self, request: GenerationRequest) -> SpeculationFields:
        options = request.speculation_options
        if options is None:
            return {"enabled": False, "drafter": None, "max_depth": None}
        names = [drafter.name for drafter in self._config.drafters]
        if options.drafter is not None and options.drafter not in names:
            raise InvalidRequest(
                "speculation",
                f"{quoted(options.drafter)} is neither 'off' nor one of {_names(names)}",
            )
        return {"enabled": True, "drafter": options.drafter, "max_depth": options.max_depth}


def _template_size(request: ChatRequest) -> int:
    """About how many characters the template is given; not exact where it is a long text anyway."""
    calls = [call for message in request.messages for call in message.tool_calls or ()]
    texts = [
        *(message.text for message in request.messages),
        *(message.reasoning or message.reasoning_content or "" for message in request.messages),
        *(call.function.arguments for call in calls),
    ]
    functions = [tool.function for tool in request.tools]
    return sum(map(len, texts)) + json_length(
        [
            request.chat_template_kwargs,
            *(function.description for function in functions),
            *(function.parameters for function in functions),
            *(one.model_extra for one in (*request.tools, *functions)),
        ],
        LONG_TEXT,
    )


def prompts_of(request: GenerationRequest) -> Sequence[str | list[int]]:
    """The prompts before they are encoded; a chat is one, without what its template adds."""
    if isinstance(request, ChatRequest):
        return ["".join(message.text for message in request.messages)]
    return request.prompts


def prompt_field(request: GenerationRequest) -> str:
    return "messages" if isinstance(request, ChatRequest) else "prompt"


def choice_seeds(seed: int | None, n: int) -> list[int]:
    """One seed per choice; a single choice uses the request's seed itself. Missing seeds are drawn
    here, before anything is sent, so that every attempt uses the same ones."""
    if seed is None:
        return [secrets.randbits(DRAWN_SEED_BITS) for _ in range(n)]
    return [seed] if n == 1 else [choice_seed(seed, index) for index in range(n)]


def _max_tokens(
    request: GenerationRequest, prompt_len: int, limits: TargetLimits, field: str
) -> int:
    """As in vLLM: what the context has no room for is left out, but more than the whole context is
    refused."""
    context, wanted = limits.max_context, request.token_limit
    room = context - prompt_len
    if room < 1:
        raise _too_long(
            field,
            f"this model's maximum context length is {context} tokens, and the prompt has "
            f"{prompt_len}; shorten it to at most {context - 1} to leave room for output",
        )
    if wanted is not None and wanted > context:
        raise _too_long(
            request.token_limit_field,
            f"this model's maximum context length is {context} tokens, and {wanted} are asked for "
            f"beside a prompt of {prompt_len}; ask for at most {room}",
        )
    # With max_tokens = 0 (echo only) one token is generated all the same, and not shown.
    return room if wanted is None else min(max(1, wanted), room)


def _too_long(field: str, problem: str) -> ApiError:
    return ApiError(400, f"{field}: {problem}", field, "context_length_exceeded")


def _check(
    prompt_ids: Sequence[int], params: SamplingParams, limits: TargetLimits, field: str
) -> None:
    try:
        check_request(prompt_ids, params, limits)
    except InvalidRequest as error:
        if error.field != "prompt":
            raise
        raise InvalidRequest(field, error.problem) from None


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _names(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(repr(name) for name in names) or "none (the config names none)"


def sampling_params(
    request: GenerationRequest, max_tokens: int, adapter: str = ""
) -> SamplingParams:
    """All sampling parameters except the seed, which differs by choice."""
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
        logprobs=request.alternatives,
        prompt_logprobs=request.alternatives if echoes(request) else None,
        grammar=request.grammar,
        adapter=adapter,
    )
