"""The suffix tree against counting by hand, while texts grow, join and leave."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.suffix_tree import Leaf, Node, SuffixTree, Text, continuations

DEPTH = 4
Operation = list[int] | int | tuple[int, ...]
"""A list: a text that joins. A tuple: what the newest one grows by. A number: which one leaves."""
TOKENS = st.lists(st.integers(0, 1), max_size=8)
OPERATIONS = st.lists(
    st.one_of(TOKENS, TOKENS.map(tuple), st.integers(0, 9)),
    max_size=12,
)


def run(operations: Sequence[Operation]) -> tuple[SuffixTree, list[Text]]:
    tree = SuffixTree(DEPTH)
    texts: list[Text] = []
    for operation in operations:
        if isinstance(operation, list):
            texts.append(Text())
            tree.extend(texts[-1], operation)
        elif not texts:
            continue
        elif isinstance(operation, tuple):
            tree.extend(texts[-1], operation)
        else:
            newest_leaves = operation % len(texts) == len(texts) - 1
            tree.remove(texts.pop(operation % len(texts)))
            if newest_leaves:
                texts.append(Text())
    return tree, texts


def places(tree: SuffixTree) -> int:
    """Nodes and leaves: what the tree holds beside the texts themselves."""

    def below(place: Node | Leaf) -> int:
        return 1 if isinstance(place, Leaf) else 1 + sum(map(below, place.children.values()))

    return below(tree._root) - 1


def followers(texts: Sequence[Text], pattern: tuple[int, ...]) -> Counter[int]:
    return Counter(
        text.tokens[start + len(pattern)]
        for text in texts
        for start in range(len(text.tokens) - len(pattern))
        if tuple(text.tokens[start : start + len(pattern)]) == pattern
    )


@settings(max_examples=300)
@given(OPERATIONS)
def test_every_short_pattern_has_its_followers_with_their_counts(
    operations: list[Operation],
) -> None:
    tree, texts = run(operations)
    patterns = {
        tuple(text.tokens[start : start + length])
        for text in texts
        for start in range(len(text.tokens))
        for length in range(1, DEPTH)
    }
    for pattern in patterns:
        expected = followers(texts, pattern)
        found = tree.longest_match(pattern, limit=len(pattern))
        if not expected:
            assert found is None or found[1] < len(pattern)
            continue
        assert found is not None
        place, length = found
        assert length == len(pattern)
        assert {token: count for token, count, _ in continuations(place)} == expected


@settings(max_examples=300)
@given(OPERATIONS, st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_the_match_is_the_longest_suffix_that_was_followed(
    operations: list[Operation], recent: list[int]
) -> None:
    tree, texts = run(operations)
    longest = max(
        (n for n in range(1, DEPTH) if n <= len(recent) and followers(texts, tuple(recent[-n:]))),
        default=0,
    )
    found = tree.longest_match(recent, limit=DEPTH)
    assert (0 if found is None else found[1]) == longest


@given(OPERATIONS, st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_a_place_is_read_on_to_its_texts_end(operations: list[Operation], new: list[int]) -> None:
    """Behind a suffix that stands once, all of its text is at hand, beyond the tree's depth."""
    tree, _ = run(operations)
    alone = Text()
    tree.extend(alone, [7, *new])
    found = tree.longest_match([7], limit=1)
    assert found is not None
    place, read = found[0], []
    while branches := continuations(place):
        ((token, _, place),) = branches
        read.append(token)
    assert read == new


@given(OPERATIONS)
def test_nothing_is_left_when_all_texts_have_left(operations: list[Operation]) -> None:
    tree, texts = run(operations)
    for text in texts:
        tree.remove(text)
    assert places(tree) == 0
    assert tree.longest_match([0], limit=1) is None


def test_text_without_repeats_takes_a_leaf_for_each_token() -> None:
    tree = SuffixTree(DEPTH)
    tree.extend(Text(), range(100))
    assert places(tree) == 100


def test_text_that_repeats_itself_takes_no_more_than_the_depth_allows() -> None:
    tree = SuffixTree(DEPTH)
    tree.extend(Text(), [0] * 100)
    assert places(tree) == DEPTH
    tree.extend(Text(), range(1, 101))
    tree.extend(Text(), range(1, 101))
    before = places(tree)
    tree.extend(Text(), range(1, 101))
    assert before <= DEPTH + 100 * DEPTH
    assert places(tree) == before  # every path is there already


def test_only_the_newest_text_grows() -> None:
    tree, older = SuffixTree(DEPTH), Text()
    tree.extend(older, [1, 2])
    tree.extend(Text(), [1, 2])
    with pytest.raises(ValueError, match="complete"):
        tree.extend(older, [3])
