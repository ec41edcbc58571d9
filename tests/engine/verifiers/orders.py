"""Builds verify orders for tests without a coordinator."""

from collections.abc import Sequence

from engine.protocol import Prefix, Start, Verdict, Verifier, VerifyOrder
from engine.sampling.params import SamplingParams
from engine.scopes import SHARED, Scope
from engine.soft_state import CommittedTokens
from policies.tree import DraftTree

SEED = 7


def order(
    request: str,
    tokens: Sequence[int],
    tree: DraftTree | None = None,
    *,
    params: SamplingParams | None = None,
    base: int = 0,
    chunk: int = 512,
    prompt_len: int | None = None,
    scope: Scope = SHARED,
    seed: int = SEED,
) -> VerifyOrder:
    committed = CommittedTokens()
    committed.extend(tokens)
    params = params or SamplingParams(temperature=0)
    start = Start(params, seed, prompt_len or len(tokens), scope)
    prefix = Prefix(
        request, 0, 0, base, committed.hashes[base], tuple(tokens[base:]), None if base else start
    )
    return VerifyOrder(prefix, tree or DraftTree.empty(), chunk)


def verdict(verifier: Verifier, one: VerifyOrder) -> Verdict:
    (answer,) = verifier.verify([one])
    assert isinstance(answer, Verdict)
    return answer
