"""What clients of vLLM's server expect beside OpenAI's API, over HTTP in this process."""

from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError

from cluster.built_in_models import TARGET, model_path
from tests.adapters import write_adapter
from tests.deployments.ingress.answers.test_output_text import ZOO
from tests.deployments.ingress.scripted import scripted
from tests.deployments.ingress.test_ingress import PROMPT, App, events, http_app
from tests.deployments.local import within

pytestmark = pytest.mark.usefixtures("loop")


def choice_of(body: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = body["choices"][0]
    return choice


@within(http_app)
async def test_the_reason_of_a_stop_whole_and_streamed(app: App) -> None:
    fields: dict[str, Any] = {"max_tokens": 40, "return_token_ids": True}
    plain = choice_of((await app.ask(**fields)).json())
    assert (plain["finish_reason"], plain["stop_reason"]) == ("length", None)
    token, stop = plain["token_ids"][9], plain["text"][8:12]
    by_token = choice_of((await app.ask(**fields, stop_token_ids=[token])).json())
    assert (by_token["finish_reason"], by_token["stop_reason"]) == ("stop", token)
    fields["stop"] = [stop]
    by_string = choice_of((await app.ask(**fields)).json())
    assert by_string["stop_reason"] == stop
    assert by_string["text"] == plain["text"][: plain["text"].index(stop)]
    asked = {**PROMPT, **fields, "stream": True}
    async with app.client.stream("POST", "/v1/completions", json=asked) as response:
        chunks = [chunk["choices"][0] for chunk in await events(response)]
    assert "".join(chunk["text"] for chunk in chunks) == by_string["text"]
    assert chunks[-1]["stop_reason"] == stop


@within(http_app)
async def test_usage_counts_what_the_prefix_cache_had(app: App) -> None:
    """Blocks have 16 tokens, and the last token is always computed."""

    async def cached(**fields: Any) -> int:
        body = {**PROMPT, "max_tokens": 2, "prompt": list(range(100, 148)), **fields}
        answer = await app.client.post("/v1/completions", json=body)
        usage = answer.json()["usage"]
        assert usage["prompt_tokens"] == len(body["prompt"])
        count: int = usage["prompt_tokens_details"]["cached_tokens"]
        return count

    assert await cached() == 0
    assert await cached() == 32
    assert await cached(prompt=list(range(100, 130))) == 16
    assert await cached(echo=True, logprobs=0) == 0, "computed again for its log-probabilities"
    new = list(range(200, 248))
    assert await cached(prompt=new, n=3) == 0, "shared between choices, but not cached before"
    assert await cached(prompt=new, n=3) == 32, "a prompt counts once"


@within(http_app)
async def test_ids_have_the_clients_name(app: App) -> None:
    headers = {"X-Request-Id": "run-1"}
    body = {**PROMPT, "max_tokens": 2}
    for _ in range(2):
        answer = await app.client.post("/v1/completions", json=body, headers=headers)
        assert answer.json()["id"] == "cmpl-run-1"
    names = [request["name"] for request in app.replicas.requests]
    assert len(set(names)) == 2, "a name may come again"
    assert all("run-1" in one for one in names)
    odd = {"X-Request-Id": "with space"}
    answer = await app.client.post("/v1/completions", json=PROMPT, headers=odd)
    assert answer.headers["x-spindle-ignored"] == "X-Request-Id"


@within(http_app)
async def test_special_tokens_are_left_in_the_text_where_that_is_wanted(app: App) -> None:
    end = ZOO.encode_blocking("<|end|>")[0]
    fields: dict[str, Any] = {"max_tokens": 3, "logit_bias": {str(end): 100}, "temperature": 0}
    hidden = choice_of((await app.ask(**fields)).json())
    shown = choice_of((await app.ask(**fields, skip_special_tokens=False)).json())
    assert (hidden["text"], shown["text"]) == ("", "<|end|>" * 3)


async def test_each_adapter_is_a_model_of_its_own(tmp_path: Path) -> None:
    base = model_path(TARGET)
    folder = write_adapter(tmp_path / "mine", base, seed=0)
    modules = {"mine": str(folder)}
    async with scripted(base, "Yes.", backend="vllm", lora_modules=modules) as (client, replicas):
        models = {one.id: one.to_dict().get("parent") async for one in client.models.list()}
        assert models == {"target": None, "mine": "target"}
        answer = await client.completions.create(model="mine", prompt="Yes?")
        streamed = await client.completions.create(model="target", prompt="Yes?", stream=True)
        names = {chunk.model async for chunk in streamed}
        response = await client.responses.create(model="mine", input="Yes?")
        assert (answer.model, names, response.model) == ("mine", {"target"}, "mine")
        sent = [request["params"].adapter for request in replicas.requests]
        assert sent == ["mine", "", "mine"]
        with pytest.raises(NotFoundError, match="there is 'target', 'mine'"):
            await client.completions.create(model="yours", prompt="Yes?")
