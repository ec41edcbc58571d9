"""The official `openai` client against the application over Serve, on either backend: nothing may
differ."""

import asyncio
import json
import re
from typing import Any

import jsonschema
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import Response

from tests.deployments.served.application import ADMITTED, KEYS
from tests.deployments.serving import (
    PROMPT,
    eventually,
    expected_ids,
    expected_text,
    is_idle,
    tokenizer,
)

ANIMAL: dict[str, Any] = {
    "name": "animal",
    "schema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "legs": {"type": "integer", "minimum": 0, "maximum": 100},
            "kind": {"enum": ["mammal", "bird", "fish"]},
        },
        "required": ["name", "legs", "kind"],
        "additionalProperties": False,
    },
    "strict": True,
}
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Count to 7."}]


@pytest.fixture
def client(app: str) -> OpenAI:
    return OpenAI(base_url=f"{app}/v1", api_key=KEYS["alpha"], max_retries=0)


def complete(client: OpenAI, **fields: object) -> openai.types.Completion:
    asked = {"model": "target", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **fields}
    answer: openai.types.Completion = client.completions.create(**asked)  # type: ignore[call-overload]  # fields vary
    return answer


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, 0), (1.0, 5)])
def test_a_completion_is_the_oracles(client: OpenAI, temperature: float, seed: int) -> None:
    answer = complete(client, temperature=temperature, seed=seed)
    choice = answer.choices[0]
    ids = expected_ids(temperature, seed, 24)
    assert choice.text == expected_text(temperature, seed, 24)
    assert choice.finish_reason == ("length" if len(ids) == 24 else "stop")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(tokenizer()(PROMPT)["input_ids"])
    assert answer.usage.completion_tokens == len(ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(ids)


def test_outputs_keep_to_their_form_with_and_without_speculation(client: OpenAI) -> None:
    """Sampled, streamed or not, by either of the two fields; `stop` says that the form is whole."""
    forms: list[tuple[dict[str, Any], re.Pattern[str] | None]] = [
        ({"response_format": {"type": "json_schema", "json_schema": ANIMAL}}, None),
        ({"structured_outputs": {"json": json.dumps(ANIMAL["schema"])}}, None),
        ({"structured_outputs": {"regex": "[a-z]{3}-[0-9]{2}"}}, re.compile("[a-z]{3}-[0-9]{2}")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, re.compile("yes|no")),
        ({"structured_outputs": {"grammar": 'root ::= "a" root | "b"'}}, re.compile("a*b")),
    ]
    for form, pattern in forms:
        texts = []
        for options in ({}, {"speculation": "off"}, {"stream": True}):
            chunks = _chat(client, temperature=1, seed=3, **form, **options)
            choices = [choice for chunk in chunks for choice in chunk.choices]
            assert choices[-1].finish_reason == "stop"
            texts.append("".join(_content(choice) for choice in choices))
        assert texts[0] == texts[1] == texts[2]
        if pattern is None:
            jsonschema.validate(json.loads(texts[0]), ANIMAL["schema"])
        else:
            assert pattern.fullmatch(texts[0])


def _chat(client: OpenAI, stream: bool = False, **fields: Any) -> list[Any]:
    """The answer, or the pieces of a streamed one."""
    create: Any = client.chat.completions.create  # fields vary
    answer = create(
        model="target", messages=MESSAGES, max_tokens=200, stream=stream, extra_body=fields
    )
    return list(answer) if stream else [answer]


def test_forced_calls_keep_to_their_schemas_with_and_without_speculation(client: OpenAI) -> None:
    """By chats and responses, whole and streamed: the same arguments, each valid."""
    function = {"name": "describe", "parameters": ANIMAL["schema"]}
    chat: dict[str, Any] = {
        "model": "target",
        "messages": MESSAGES,
        "tools": [{"type": "function", "function": function}],
        "max_tokens": 200,
        "temperature": 1,
        "seed": 3,
        "parallel_tool_calls": False,
    }
    named: Any = {"type": "function", "function": {"name": "describe"}}
    choice: Any
    for choice, finish in ((named, "stop"), ("required", "tool_calls")):
        written = []
        for extra in ({}, {"speculation": "off"}):
            answer = client.chat.completions.create(**chat, tool_choice=choice, extra_body=extra)
            assert answer.choices[0].finish_reason == finish
            (call,) = answer.choices[0].message.tool_calls
            written.append((call.function.name, call.function.arguments))
        with client.chat.completions.stream(**chat, tool_choice=choice) as stream:
            (read,) = stream.get_final_completion().choices[0].message.tool_calls or []
        written.append((read.function.name, read.function.arguments))
        assert set(written) == {written[0]}
        jsonschema.validate(json.loads(written[0][1]), ANIMAL["schema"])
    fields: dict[str, Any] = {
        "model": "target",
        "input": MESSAGES,
        "tools": [{"type": "function", **function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 200,
        "temperature": 1,
        "extra_body": {"seed": 3},
    }
    response: Response = client.responses.create(**fields)
    assert response.output[0].type == "function_call"
    assert response.output[0].arguments == written[0][1]


def _content(choice: Any) -> str:
    message = choice.delta if hasattr(choice, "delta") else choice.message
    return message.content or ""


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"grammar": "root ::= x"}, "'x' not found"),
        ({"json": {"not": {}}}, r'Unimplemented keys: \["not"\]'),
        ({"json": "{"}, "EOF while parsing"),
        ({"choice": []}, "at least 1"),
    ],
)
def test_a_form_that_cannot_be_kept_to_is_refused(
    form: dict[str, object], problem: str, client: OpenAI
) -> None:
    with pytest.raises(openai.BadRequestError, match=problem) as refusal:
        complete(client, extra_body={"structured_outputs": form})
    assert str(refusal.value.param).startswith("structured_outputs")


def test_logprobs_in_each_apis_own_shape(client: OpenAI) -> None:
    logprobs = complete(client, logprobs=3).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    chat = client.chat.completions.create(
        model="target",
        messages=MESSAGES,
        max_tokens=24,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content
    assert content is not None
    assert [one.token for one in content] == logprobs.tokens
    assert [one.logprob for one in content] == pytest.approx(logprobs.token_logprobs, abs=1e-4)
    for one, top in zip(content, logprobs.top_logprobs, strict=True):
        assert {other.token for other in one.top_logprobs} == set(top), "greedy: it is among them"
        assert one.logprob == max(other.logprob for other in one.top_logprobs)
        assert one.bytes is not None
    text = b"".join(bytes(one.bytes or []) for one in content)
    assert text.decode().startswith(chat.choices[0].message.content or "nothing")


def test_each_of_500_at_once_is_served_or_refused_with_retry_after(client: OpenAI) -> None:
    async def ask(impatient: AsyncOpenAI, seed: int) -> str | openai.RateLimitError:
        try:
            answer = await impatient.completions.create(
                model="target", prompt=PROMPT, max_tokens=24, temperature=1, seed=seed
            )
        except openai.RateLimitError as refusal:
            return refusal
        return answer.choices[0].text

    async def all_at_once() -> list[str | openai.RateLimitError]:
        async with AsyncOpenAI(
            base_url=client.base_url, api_key=client.api_key, max_retries=0, timeout=60
        ) as impatient:
            return await asyncio.gather(*(ask(impatient, number % 4) for number in range(500)))

    results = asyncio.run(all_at_once())
    served = [(number % 4, text) for number, text in enumerate(results) if isinstance(text, str)]
    refused = [one for one in results if isinstance(one, openai.RateLimitError)]
    assert ADMITTED <= len(served) < 500
    assert all(int(one.response.headers["retry-after"]) > 0 for one in refused)
    assert all(text == expected_text(1.0, seed, 24) for seed, text in served)
    eventually(is_idle, "all KV is free or cached")


def test_errors_are_the_clients_own_exceptions(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        complete(client, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unknown:
        complete(client, extra_body={"frobnicate": 1}, extra_headers={"x-spindle-strict": "1"})
    assert unknown.value.param == "frobnicate"
    with pytest.raises(openai.NotFoundError):
        complete(client, model="other")
    with pytest.raises(openai.AuthenticationError):
        complete(client.with_options(api_key="unknown"))
    with pytest.raises(openai.BadRequestError) as long:
        complete(client, max_tokens=10**6)
    assert long.value.code == "context_length_exceeded"
