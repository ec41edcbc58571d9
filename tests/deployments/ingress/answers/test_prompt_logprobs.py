"""`prompt_logprobs`: an answer lists how probable its prompt was, as in vLLM."""

import asyncio
from typing import Any

import pytest
from transformers import PreTrainedModel

from engine.protocol import TokenLogprobs
from tests import prompt_logprobs
from tests.checkpoints import llama
from tests.deployments.ingress.answers.test_output_text import ZOO
from tests.deployments.local import CONTEXT, VOCAB, local_api, make_config

TEXT = "<|user|>" + "Count to 7, and then to 8 again. " * 12 + "<|end|>"
IDS = ZOO.encode_blocking(TEXT)
MESSAGES = [{"role": "user", "content": "Count to 7."}]
COMPLETION = {"model": "target", "prompt": TEXT, "max_tokens": 4, "seed": 3, "ignore_eos": True}
CHAT = {"model": "target", "messages": MESSAGES, "max_tokens": 4, "seed": 3, "ignore_eos": True}
Position = dict[str, dict[str, Any]] | None


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    model = llama(vocab=VOCAB, context=CONTEXT)
    model.set_attn_implementation("eager")
    return model


def answers(*asked: dict[str, Any], **limits: int) -> list[dict[str, Any]]:
    """One after the other, from one server."""

    async def inside() -> list[dict[str, Any]]:
        async with local_api(make_config(limits=limits)) as (api, _):
            return [await api.generate(fields) for fields in asked]

    return asyncio.run(inside())


def check(target: PreTrainedModel, ids: list[int], positions: list[Position], top_n: int) -> None:
    """That these are the stock model's, spelled as the tokenizer does."""
    first, *others = positions
    assert first is None
    reported = []
    for token, position in zip(ids[1:], others, strict=True):
        assert position is not None
        own, ranks = position[str(token)], [one["rank"] for one in position.values()]
        assert set(range(1, top_n + 1)) <= set(ranks)
        assert len(position) <= top_n + 1
        assert all(one["decoded_token"] == ZOO.spelling(int(id_))[0]
                   for id_, one in position.items())  # fmt: skip
        ranked = sorted(position.items(), key=lambda item: item[1]["rank"])
        values = [one["logprob"] for _, one in ranked]
        assert values == sorted(values, reverse=True), "ranks are in the order of probabilities"
        top = tuple((int(id_), one["logprob"]) for id_, one in ranked[:top_n])
        reported.append(TokenLogprobs(own["logprob"], top, own["rank"]))
    prompt_logprobs.check(target, ids, top_n, reported)


@pytest.mark.parametrize("top_n", [0, 3])
def test_each_choice_of_a_completion_lists_its_prompt(target: PreTrainedModel, top_n: int) -> None:
    asked = {**COMPLETION, "prompt": [IDS, [5, 6, 7]], "n": 2, "prompt_logprobs": top_n}
    plain, listed = answers(COMPLETION, asked)
    choices = listed["choices"]
    for choice, ids in zip(choices, [IDS, IDS, [5, 6, 7], [5, 6, 7]], strict=True):
        check(target, ids, choice["prompt_logprobs"], top_n)
        assert choice["logprobs"] is None
    assert "prompt_logprobs" not in plain["choices"][0]
    assert "prompt_logprobs" not in listed


def test_a_chat_lists_its_prompt_once_and_its_text_is_the_same(target: PreTrainedModel) -> None:
    plain, listed = answers(CHAT, {**CHAT, "n": 2, "prompt_logprobs": 1})
    ids = asyncio.run(ZOO.encode_chat(MESSAGES, [], True, False, {}))
    check(target, ids, listed["prompt_logprobs"], 1)
    assert all("prompt_logprobs" not in choice for choice in listed["choices"])
    (alone,) = answers({**CHAT, "prompt_logprobs": 1})
    assert alone["choices"][0]["message"] == plain["choices"][0]["message"]


def test_an_echo_keeps_its_own_number_of_alternatives(target: PreTrainedModel) -> None:
    fields = {**COMPLETION, "echo": True, "logprobs": 1}
    echo, both = answers(fields, {**fields, "prompt_logprobs": 3})
    (choice,) = both["choices"]
    check(target, IDS, choice["prompt_logprobs"], 3)
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(
        echo["choices"][0]["logprobs"]["token_logprobs"], abs=1e-4
    )
    assert all(len(one) <= 2 for one in choice["logprobs"]["top_logprobs"] if one)


def test_a_stream_has_none_of_them() -> None:
    async def inside() -> list[dict[str, Any]]:
        async with local_api() as (api, replicas):
            chunks = [chunk async for chunk in api.stream({**COMPLETION, "prompt_logprobs": 1})]
            assert not replicas.requests
            return chunks

    (refused,) = asyncio.run(inside())
    assert (refused["error"]["status"], refused["error"]["param"]) == (400, "prompt_logprobs")
    assert "leave stream out" in refused["error"]["message"]


def test_more_than_a_response_may_have_is_refused_before_the_work() -> None:
    asked = {**COMPLETION, "prompt_logprobs": 3}
    most = 4 * len(IDS)
    served, refused = answers(asked, {**asked, "n": 2}, full_logprobs=most)
    assert "error" not in served
    assert (refused["error"]["status"], refused["error"]["param"]) == (400, "prompt_logprobs")
    assert f"at most {most}" in refused["error"]["message"]
