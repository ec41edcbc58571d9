"""Measures what structured output costs: compiling a grammar, masks per token, and nothing without.

`python -m lab.micro.structured_output [--json FILE]`.

Names: structured_output/compile/GRAMMAR/VOCABULARY (CPU time, once per grammar and process),
structured_output/mask/VOCABULARY (a row's mask), .../apply/VOCABULARY (into a row of logits),
.../forced/VOCABULARY: of an answer's tokens, those that the grammar forces; .../per_token: the time
of a generated token under a grammar that allows every text, over that without a grammar (the same
text, 8 requests together); .../rounds: forwards for the tokens of sampled answers by a schema,
without a drafter, over the tokens, which are the forwards where nothing is forced; and .../none:
what the verifier's check for grammars adds to a round of 32 requests that have none.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch

from benchmarks.report import Record, paired_ratio, parser, publish, seconds
from cluster.built_in_models import TARGET, has_smollm2, model_path, smollm2_path
from engine.generate import generate
from engine.grammar.compiler import Grammars
from engine.grammar.gate import GrammarGate
from engine.grammar.matcher import OutputMatcher
from engine.grammar.spec import OutputGrammar
from engine.model import PackedModel
from engine.protocol import Commit, Prefix, Start, VerifyOrder
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Row, adjust
from engine.soft_state import SoftState
from engine.tokenizer import load_tokenizer
from engine.verifiers.native import NativeVerifier
from policies.tree import DraftTree

PAIRS = 20
REQUESTS = 8
TOKENS = 64
ROUND = 32
STOP = 4
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 5},
        "kind": {"enum": ["person", "company"]},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 40},
                "code": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street", "code"],
        },
    },
    "required": ["name", "age", "tags", "kind", "address"],
}
ANSWER = (
    '{"name": "Ada Byron", "age": 36, "tags": ["math", "poetry"], "kind": "person", '
    '"address": {"street": "St. James Square", "code": "12345"}}'
)
GRAMMARS = {
    "json_object": OutputGrammar("json_object"),
    "schema": OutputGrammar("json_schema", json.dumps(SCHEMA)),
    "regex": OutputGrammar("regex", r"[a-z]+@[a-z]+\.(com|org)"),
    "choice": OutputGrammar("choice", '["yes", "no", "perhaps"]'),
}
EVERYTHING = OutputGrammar("regex", "(.|\\n)*")


def main() -> None:
    options = parser(__doc__).parse_args()
    records: list[Record] = []
    vocabularies = {"2k": (model_path(TARGET), 2048)}
    if has_smollm2():
        vocabularies["49k"] = (smollm2_path(), 49_152)
    for name, (checkpoint, size) in vocabularies.items():
        records += of_vocabulary(name, checkpoint, size)
    records += [per_token(), rounds(), without_grammars()]
    publish(records, options.json)


def of_vocabulary(name: str, checkpoint: Path, size: int) -> list[Record]:
    grammars = Grammars(checkpoint, size)
    grammars.compile(EVERYTHING).result()  # loads the tokenizer
    records = []
    for kind, grammar in GRAMMARS.items():
        begun = process_time()
        grammars.compile(grammar).result()
        spent = 1000 * (process_time() - begun)
        records.append(Record(f"structured_output/compile/{kind}/{name}", spent, "ms"))
    params = SamplingParams(stop_token_ids=(STOP,), grammar=GRAMMARS["schema"])
    matcher = OutputMatcher(grammars.compile(GRAMMARS["schema"]).result(), params, size)
    output = load_tokenizer(checkpoint).encode(ANSWER, add_special_tokens=False)
    masks, applied = [], []
    logits = torch.randn(1, size)
    for end in range(len(output)):
        matcher.follow(output[:end])
        row = Row(params, 0, end, 0, (), (), matcher.allowed())
        masks.append(1e6 * seconds(matcher.allowed))
        applied.append(1e6 * _of_call(partial(adjust, logits, [row])))
    forced = 0
    for end in range(len(output) + 1):
        matcher.follow(output[:end])
        forced += len(matcher.forced((), 1))
    records.append(
        Record.over(len(output) + 1, f"structured_output/forced/{name}", forced, "tokens")
    )
    records.append(Record(f"structured_output/mask/{name}", median(masks), "us"))
    records.append(Record(f"structured_output/apply/{name}", median(applied), "us"))
    return records


def _of_call(work: Callable[[], object]) -> float:
    return min(seconds(work) for _ in range(3))


def per_token() -> Record:
    model = PackedModel.load(model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=8192)
    verifier = NativeVerifier(model, Grammars(model_path(TARGET), model.vocab_size))
    prompts = [[2, 100 + number, 300, 3] for number in range(REQUESTS)]

    def run(grammar: OutputGrammar | None) -> float:
        params = SamplingParams(
            temperature=1, max_tokens=TOKENS, seed=1, ignore_eos=True, grammar=grammar
        )
        begun = perf_counter()
        for _ in generate(verifier, prompts, params):
            pass
        return (perf_counter() - begun) / TOKENS

    for grammar in (EVERYTHING, None):
        run(grammar)
    pairs = [(run(EVERYTHING), run(None)) for _ in range(PAIRS)]
    ratio = paired_ratio([ours for ours, _ in pairs], [theirs for _, theirs in pairs])
    print(f"time of a round of {REQUESTS} requests with a grammar, over that without: {ratio}")
    plain = median(theirs for _, theirs in pairs)
    return Record.over(1e6 * plain, "structured_output/per_token", 1e6 * plain * ratio.median, "us")


def rounds() -> Record:
    model = PackedModel.load(model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=8192)
    verifier = NativeVerifier(model, Grammars(model_path(TARGET), model.vocab_size))
    params = SamplingParams(
        max_tokens=400, seed=1, stop_token_ids=(STOP,), grammar=GRAMMARS["schema"]
    )
    tokens = forwards = 0
    for number in range(REQUESTS):
        for event in generate(verifier, [[2, 100 + number, 300, 3]], params):
            if isinstance(event, Commit):
                tokens, forwards = tokens + len(event.token_ids), forwards + 1
    return Record.over(tokens, "structured_output/rounds", forwards, "forwards")


def without_grammars() -> Record:
    state = SoftState(ROUND, on_drop=lambda _request, _held: None)
    start = Start(SamplingParams(), 0, 1)
    orders = [
        VerifyOrder(Prefix(f"r{n}", 0, 0, 0, 0, (1,), start), DraftTree.empty(), 1)
        for n in range(ROUND)
    ]
    states = state.accept([order.prefix for order in orders])
    gate = GrammarGate(None)
    spent = median(seconds(lambda: gate.pass_ready(orders, states)) for _ in range(200))
    return Record("structured_output/none", 1e6 * spent, "us")


if __name__ == "__main__":
    main()
