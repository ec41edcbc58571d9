"""Replicas draft from each other's past outputs, of their own scope alone, whatever gets lost."""

import asyncio
import pickle
import random

from actors.router.output_sharing import OutputSharing
from actors.router.router import MOST_REPLICAS
from actors.router.shared_outputs import Answer, Message, Output, SharedOutputs
from engine.drafters.lookup import SuffixDrafter
from engine.drafters.text_index import NONE, TOKENS
from engine.scopes import SHARED, Scope
from tests.engine.drafters.orders import Stream

A, B = Scope("a"), Scope("b")


class Connection:
    """To a router that may be down, slow or replaced, by messages that may get lost."""

    def __init__(self, router: SharedOutputs | None, lost: float = 0.0) -> None:
        self.router = router
        self.seconds = 0.01
        self.calls = 0
        self.largest = 0
        self._lost, self._random = lost, random.Random(0)

    async def share(self, message: Message) -> Answer:
        self.calls += 1
        sent = pickle.dumps(message)
        self._fail_at_random()
        await asyncio.sleep(self.seconds)
        if self.router is None:
            raise RuntimeError("the router is dead")
        answer = pickle.dumps(self.router.exchange(pickle.loads(sent)))
        self.largest = max(self.largest, len(sent), len(answer))
        self._fail_at_random()
        received: Answer = pickle.loads(answer)
        return received

    def _fail_at_random(self) -> None:
        if self._random.random() < self._lost:
            raise RuntimeError("this message is lost")


class Replica:
    def __init__(self, name: str, connection: Connection, past_tokens: int = 100_000) -> None:
        self.drafter = SuffixDrafter(past_tokens=past_tokens)
        self.sharing = OutputSharing(name, connection.share, [self.drafter])
        self._name, self._answered = name, 0
        self.task = asyncio.create_task(self.sharing.run())

    def answer(self, scope: Scope, tokens: list[int]) -> None:
        self._answered += 1
        stream = Stream(f"{self._name} {self._answered}", [1, 2], scope=scope)
        stream.draft(self.drafter, depth=0)
        stream.committed.extend(tokens)
        stream.draft(self.drafter, depth=0)
        self.drafter.forget([stream.name])

    def texts(self, scope: Scope) -> list[list[int]]:
        """The past outputs of a scope, sorted."""
        index = self.drafter.past.index(scope)
        texts: list[list[int]] = [[]]
        for token in index.store[TOKENS, : index.end].tolist():
            texts[-1].append(token) if token != NONE else texts.append([])
        return sorted(text for text in texts if text)

    def drafts(self, scope: Scope, prompt: list[int]) -> list[int]:
        tree = Stream(f"{scope}", prompt, scope=scope).draft(self.drafter, depth=4)
        self.drafter.forget([f"{scope}"])
        tokens: list[int] = tree.tokens.tolist()
        return tokens


async def test_a_replica_drafts_from_anothers_answers_within_the_scope_alone() -> None:
    connection = Connection(SharedOutputs(100_000))
    first, second = Replica("first", connection), Replica("second", connection)
    for number, scope in enumerate((A, B, SHARED, Scope("a", "salt"))):
        first.answer(scope, [3, 4, 50 + number])
    await asyncio.sleep(11)
    newest = Replica("newest", connection)
    await asyncio.sleep(1)
    for replica in (second, newest):
        for number, scope in enumerate((A, B, SHARED, Scope("a", "salt"))):
            assert replica.drafts(scope, [3, 4]) == [50 + number]
        for scope in (Scope("c"), Scope("b", "salt"), Scope("", "salt")):
            assert replica.drafts(scope, [3, 4]) == []


async def test_every_answer_arrives_once_though_messages_and_routers_are_lost() -> None:
    """Two thousand answers of three replicas, half of all messages lost, two new routers."""
    connection, chance = Connection(SharedOutputs(200_000), lost=0.3), random.Random(1)
    replicas = [Replica(f"r{number}", connection) for number in range(3)]
    answered: dict[Scope, list[list[int]]] = {A: [], B: []}
    for number in range(2_000):
        scope = chance.choice([A, B])
        answered[scope].append([number, *range(chance.randrange(40))])
        chance.choice(replicas).answer(scope, answered[scope][-1])
        if number in (700, 1400):
            connection.router = None
            await asyncio.sleep(20)
            connection.router = SharedOutputs(200_000)
        await asyncio.sleep(0.1)
    late = Replica("late", connection)
    await asyncio.sleep(300)
    for replica in (*replicas, late):
        for scope, texts in answered.items():
            assert replica.texts(scope) == sorted(texts)
    assert connection.largest < 100_000, "Ray sends it with the call, not by its object store"


async def test_a_router_that_hangs_delays_nothing_and_is_asked_again() -> None:
    connection = Connection(SharedOutputs(1_000))
    connection.seconds = 1e6
    replica = Replica("one", connection)
    for number in range(990):
        replica.answer(A, [number] * 10)
        await asyncio.sleep(0.1)
    assert connection.calls == 10  # five seconds of waiting, five of pause
    assert replica.drafts(A, [989]) == [989] * 4


async def test_what_is_kept_is_bounded_and_a_tenant_that_floods_evicts_its_own() -> None:
    connection = Connection(SharedOutputs(1_000))
    router = connection.router
    assert router is not None
    loud, quiet = Replica("loud", connection, 1_000), Replica("quiet", connection, 1_000)
    quiet.answer(B, list(range(300)))
    await asyncio.sleep(6)
    for number in range(3_000):
        loud.answer(Scope("a", f"{number % 7}"), [2_000, number, *range(number % 60)])
        await asyncio.sleep(0.01)
    await asyncio.sleep(6)
    kept = router.all()
    assert 900 < sum(output.size for output in kept) <= 1_000
    assert loud.texts(B) == [list(range(300))]
    assert [output for output in kept if output.scope == B]
    assert sum(output.size for output in loud.sharing._own) <= 1_000


def test_the_number_of_replicas_is_bounded_and_the_longest_silent_are_forgotten() -> None:
    router, tokens = SharedOutputs(1_000_000), b"\0\0\0\0"
    for number in range(2 * MOST_REPLICAS):
        router.add(Output(f"r{number}", 1, A, tokens))
        router.add(Output("busy", number + 1, A, tokens))
    names = {output.replica for output in router.all()}
    assert len(names) == MOST_REPLICAS
    assert {"busy", f"r{2 * MOST_REPLICAS - 1}"} <= names
