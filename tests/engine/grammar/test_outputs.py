"""What the model writes under schemas of clients: valid, and the same whatever drafts."""

import json

import torch

from benchmarks.generation import generate
from cluster.built_in_models import TARGET, model_path
from engine.checkpoint import load_stock
from engine.drafters.model import ModelDrafter, make_runner
from engine.grammar.spec import OutputGrammar
from engine.model import PackedModel
from engine.protocol import Commit, Drafter
from engine.sampling.params import SamplingParams
from engine.tokenizer import load_tokenizer
from engine.verifiers.native import NativeVerifier
from tests.engine.grammar.oracle import VOCAB, grammars
from tests.engine.grammar.random_outputs import STOP
from tests.engine.grammar.schemas import FOLLOWED, validator

SCHEMAS = dict(list(FOLLOWED.items())[::2])
MAX_TOKENS = 120


def outputs(drafter: Drafter | None) -> list[list[int]]:
    model = PackedModel.load(model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=8192)
    params = [
        SamplingParams(
            temperature=number % 3 / 2,
            seed=number,
            max_tokens=MAX_TOKENS,
            stop_token_ids=(STOP,),
            grammar=OutputGrammar("json_schema", json.dumps(schema)),
        )
        for number, schema in enumerate(SCHEMAS.values())
    ]
    prompts = [[2, 100 + number, 300, 3] for number in range(len(params))]
    written: list[list[int]] = [[] for _ in params]
    for event in generate(NativeVerifier(model, grammars()), prompts, params, drafter=drafter):
        assert isinstance(event, Commit)
        written[int(event.request)] += event.token_ids
    return written


def test_the_model_keeps_to_its_schemas_with_and_without_a_drafter() -> None:
    small = load_stock(model_path("tiny"), torch.float32)
    tiny = ModelDrafter(
        "tiny", make_runner(small, kv_tokens=8192), target_vocab_size=VOCAB, grammars=grammars()
    )
    plain = outputs(None)
    assert plain == outputs(tiny)
    tokenizer = load_tokenizer(model_path(TARGET))
    ended = 0
    for schema, tokens in zip(SCHEMAS.values(), plain, strict=True):
        if tokens[-1] == STOP:
            ended += 1
            validator(schema).validate(json.loads(tokenizer.decode(tokens[:-1])))
    assert ended >= len(SCHEMAS) // 2, "hardly any output ends"
