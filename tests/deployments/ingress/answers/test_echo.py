"""`echo`: a completion begins with its prompt, and so do its log-probabilities."""

import asyncio
from typing import Any

import pytest

from deployments.ingress.answers.output_text import echo
from tests.deployments.ingress.answers.test_output_text import BROKEN_IDS, ZOO
from tests.deployments.local import local_api

TEXT = "<|user|>Count to 7, naïve 漢字.<|end|>"
IDS = ZOO.encode_blocking(TEXT)
ASKED = {"model": "target", "prompt": TEXT, "max_tokens": 12, "seed": 3, "ignore_eos": True}


def answer(**fields: Any) -> dict[str, Any]:
    async def inside() -> dict[str, Any]:
        async with local_api() as (api, _):
            return await api.generate({**ASKED, **fields})

    return asyncio.run(inside())


@pytest.mark.parametrize("prompt", [TEXT, IDS])
def test_the_text_begins_with_the_prompts_and_all_else_is_as_without(prompt: Any) -> None:
    plain, echoed = answer(prompt=prompt), answer(prompt=prompt, echo=True)
    assert echoed["choices"][0]["text"] == TEXT + plain["choices"][0]["text"]
    assert echoed["choices"][0]["logprobs"] is None
    assert echoed["usage"] == plain["usage"]
    only_output = answer(prompt=prompt, echo=True, return_token_ids=True)["choices"][0]
    assert len(only_output["token_ids"]) == 12


def test_logprobs_begin_with_the_prompts() -> None:
    """Their values: served/test_openai_client.py."""
    plain = answer(logprobs=2)["choices"][0]["logprobs"]
    choice = answer(logprobs=2, echo=True)["choices"][0]
    logprobs, prompt = choice["logprobs"], len(IDS)
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert logprobs["tokens"][:prompt] == [ZOO.spelling(token)[0] for token in IDS]
    for token, value, top in list(
        zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    )[1:]:
        assert top[token] == value
        assert 2 <= len(top) <= 3
    assert logprobs["tokens"][prompt:] == plain["tokens"]
    assert logprobs["token_logprobs"][prompt:] == pytest.approx(plain["token_logprobs"], abs=1e-4)
    offsets = logprobs["text_offset"]
    assert offsets[prompt:] == [len(TEXT) + offset for offset in plain["text_offset"]]
    for token, begin, end in zip(logprobs["tokens"], offsets, offsets[1:prompt], strict=False):
        assert token.startswith("bytes:") or choice["text"][begin:end] == token


def test_stop_strings_are_searched_in_the_output_only() -> None:
    plain = answer()["choices"][0]["text"]
    stop = plain[len(plain) // 2 :][:6]
    prompt = f"{TEXT}{stop}"
    undisturbed = answer(prompt=prompt)["choices"][0]["text"]
    choice = answer(prompt=prompt, stop=stop, echo=True)["choices"][0]
    assert choice["text"] == prompt + undisturbed.partition(stop)[0]
    stopped = answer(stop=stop, echo=True)["choices"][0]
    assert stopped["text"] == TEXT + plain.partition(stop)[0]
    assert stopped["finish_reason"] == "stop"


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("streamed", [False, True])
async def test_max_tokens_0_returns_the_prompt_alone(streamed: bool) -> None:
    fields = {**ASKED, "echo": True, "logprobs": 1, "max_tokens": 0, "return_token_ids": True}
    async with local_api() as (api, _):
        if streamed:
            options = {"stream_options": {"include_usage": True}}
            chunk, usage = [chunk async for chunk in api.stream({**fields, **options})]
            body = {**chunk, "usage": usage["usage"]}
        else:
            body = await api.generate(fields)
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == (TEXT, "length")
    assert (choice["token_ids"], len(choice["logprobs"]["tokens"])) == ([], len(IDS))
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["total_tokens"] == len(IDS)


@pytest.mark.parametrize("ids", [IDS, [5], [*BROKEN_IDS[:40], *IDS, BROKEN_IDS[3]]])
def test_a_prompts_text_is_that_of_its_tokens(ids: list[int]) -> None:
    echoed = echo(ZOO, ids)
    assert echoed.text == ZOO.decode(ids)
    assert len(echoed.offsets) == len(ids)
    assert list(echoed.offsets) == sorted(echoed.offsets)
