"""The API over replicas that answer with a recorded text: the built-in models call no tools.

Everything before and after the model's tokens is real: HTTP, the template, the parsers.
"""

import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from transformers import AutoTokenizer

from actors.coordinator.stream import Statistics
from cluster.built_in_models import TARGET, model_path
from deployments.ingress.api import Api
from deployments.ingress.tokenizer import Tokens
from deployments.messages import Committed, Message, StreamRequest
from engine.protocol import Finish, TokenLogprobs
from tests.deployments.local import Handle, make_config, serving

TOKENS_PER_VERDICT = 3
TEMPLATE = """
{%- if tools %}<|tools|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function %}[{{ function.name }} {{ function.arguments | tojson }}]
{%- endfor %}{% if message.tool_call_id %}@{{ message.tool_call_id }}{% endif %}
{%- if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""


@dataclass
class ScriptedReplicas(Handle):
    tokens: Tokens
    text: str = ""
    """The model's answer."""
    replies: Callable[[str], str] | None = None
    """The model's answer to a prompt, instead of `text`."""
    requests: list[StreamRequest] = field(default_factory=list)

    follows_grammars = True

    @property
    def stop_token_ids(self) -> list[int]:  # type: ignore[override]
        return [self.tokens._tokenizer.eos_token_id]

    @property
    def prompt(self) -> str:
        """The last request's."""
        return self.tokens.decode(self.requests[-1]["prompt_ids"])

    async def _stream(self, request: StreamRequest) -> AsyncGenerator[Message, None]:
        self.requests.append(request)
        yield {"kind": "accepted", "replica": "scripted"}
        limit = request["params"].max_tokens
        text = self.text if self.replies is None else self.replies(self.prompt)
        ids = self.tokens.encode_blocking(text, add_special_tokens=False)
        finish: Finish = "stop"
        ids.append(self.tokens._tokenizer.eos_token_id)
        if len(ids) > limit:
            ids, finish = ids[:limit], "length"
        for at in range(0, len(ids), TOKENS_PER_VERDICT):
            verdict = ids[at : at + TOKENS_PER_VERDICT]
            ends = at + TOKENS_PER_VERDICT >= len(ids)
            yield self._commit(request, at, verdict, finish if ends else None)

    def _commit(
        self, request: StreamRequest, first: int, ids: list[int], finish: Finish | None
    ) -> Committed:
        wanted = request["params"].logprobs is not None
        return {
            "kind": "commit",
            "first_index": first,
            "token_ids": ids,
            "logprobs": [TokenLogprobs(-0.5, ((one, -0.5),)) for one in ids] if wanted else None,
            "prompt_logprobs": None,
            "finish": finish,
            "statistics": Statistics(),
            "trace": None,
        }


def with_tool_template(path: Path, template: str = TEMPLATE) -> Path:
    """A checkpoint's directory, without weights."""
    tokenizer = AutoTokenizer.from_pretrained(model_path(TARGET))
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    shutil.copy(model_path(TARGET) / "config.json", path)
    return path


@asynccontextmanager
async def scripted(
    path: Path, text: str, limits: Mapping[str, Any] | None = None, **target: Any
) -> AsyncIterator[tuple[AsyncOpenAI, ScriptedReplicas]]:
    """OpenAI's client of a server whose model answers with the text. `limits`, `target`: of the
    config."""
    model = {"model": str(path), "dtype": "float32", "placement": "inline", **target}
    config = make_config(target=model, served_name="target", drafters=[], limits=dict(limits or {}))
    replicas = ScriptedReplicas(Tokens(path), text)
    api = Api(config, replicas)
    try:
        async with serving(api) as url, AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client:
            yield client, replicas
    finally:
        api.close()
