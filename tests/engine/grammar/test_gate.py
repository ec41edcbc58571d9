"""A host that waits for a grammar serves what arrives meanwhile."""

from concurrent.futures import Future
from threading import Thread
from typing import cast

from engine.grammar.compiler import Grammars
from engine.grammar.gate import GrammarGate
from engine.grammar.spec import OutputGrammar
from engine.protocol import Verdict
from engine.sampling.params import SamplingParams
from engine.soft_state import SoftState
from tests.engine.verifiers.orders import order


class NeverCompiles:
    def compile(self, _grammar: OutputGrammar) -> Future[None]:
        return Future()


def test_a_host_with_nothing_else_to_do_does_not_wait_long_for_a_grammar() -> None:
    gate = GrammarGate(cast(Grammars, NeverCompiles()))
    one = order("a", [1, 2], params=SamplingParams(grammar=OutputGrammar("json_object")))
    states = SoftState(1, on_drop=lambda _name, _held: None).accept([one.prefix])
    answers: list[object] = []
    waits = Thread(target=lambda: answers.extend(gate.pass_ready([one], states)), daemon=True)
    waits.start()
    waits.join(5)
    assert [type(answer) for answer in answers] == [Verdict]
