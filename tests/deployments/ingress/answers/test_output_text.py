"""Text from tokens: whole characters, the same text however the tokens arrive, stops cut off."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from cluster.built_in_models import TARGET, model_path
from deployments.ingress.answers.output_text import AnswerText, Detokenizer, StopRule, TextPiece
from deployments.ingress.tokenizer import Tokens
from engine.protocol import Finish

ZOO = Tokens(model_path(TARGET))
# Byte-level: with those of its tokens that are parts of characters over-represented.
BROKEN_IDS = [token for token in range(len(ZOO)) if "\ufffd" in ZOO.decode([token])]
token_lists = st.lists(
    st.one_of(st.integers(0, len(ZOO) - 1), st.sampled_from(BROKEN_IDS)), max_size=60
)
EMOJI = "naïve — 漢字 👩‍🚀 done"


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    """A tokenizer of the SentencePiece kind: ▁ for spaces, unknown characters as byte tokens."""
    pieces = ["<unk>", "</s>", "▁", "▁the", "▁cat", "s", "a", *(f"<0x{b:02X}>" for b in range(256))]
    bpe = models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    path: Path = tmp_path_factory.mktemp("byte_fallback")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(path)
    return Tokens(path)


def pieces_of(tokens: Tokens, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokens)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def plain_text(ids: list[int]) -> str:
    return ZOO.decode([token for token in ids if not ZOO.is_special(token)])


@given(ids=token_lists)
def test_pieces_add_up_to_the_whole_text(ids: list[int]) -> None:
    assert "".join(pieces_of(ZOO, ids)) == plain_text(ids)


@given(text=st.text(st.characters(codec="utf-8"), max_size=40))
def test_no_piece_of_a_valid_text_is_broken(text: str) -> None:
    ids = ZOO.encode_blocking(text)
    pieces = pieces_of(ZOO, ids)
    assert "".join(pieces) == plain_text(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_text_is_returned_as_soon_as_it_is_final() -> None:
    ids = ZOO.encode_blocking("one two three")
    assert pieces_of(ZOO, ids)[:-1] == [ZOO.decode([token]) for token in ids]


def test_a_long_run_of_broken_bytes_is_not_held_back() -> None:
    ids = [BROKEN_IDS[0]] * 500
    detokenizer = Detokenizer(ZOO)
    text = "".join(detokenizer.push(token) for token in ids)
    assert len(text) > 450
    assert text + detokenizer.flush() == ZOO.decode(ids)
    assert len(detokenizer._window) < 50, "each step would decode all of it again"


@pytest.mark.parametrize("seed", range(20))
def test_byte_fallback_and_stripped_spaces(byte_fallback: Tokens, seed: int) -> None:
    """A decoder that strips the first space of a text, and spells characters out in bytes."""
    rng = random.Random(seed)
    ids: list[int] = []
    for _ in range(30):
        if rng.random() < 0.5:
            ids.append(rng.randrange(2, 7))
        else:
            ids += [7 + byte for byte in rng.choice(EMOJI).encode()]
    pieces = pieces_of(byte_fallback, ids)
    assert "".join(pieces) == byte_fallback.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def answer_in_cuts(
    ids: list[int],
    stops: list[str],
    finish: Finish | None = "length",
    cuts: list[int] | None = None,
    min_tokens: int = 0,
) -> tuple[str, int, list[int], Finish | None]:
    """Text, number of tokens, offsets and finish when verdicts end at `cuts`."""
    answer = AnswerText(ZOO, StopRule(stops, min_tokens=min_tokens))
    ends = [*sorted(set(cuts or []) & set(range(1, len(ids)))), len(ids)]
    text, tokens, start = "", 0, 0
    offsets: list[int] = []
    for end in ends:
        last: TextPiece = answer.take(ids[start:end], finish if end == len(ids) else None)
        text += last.text
        tokens += last.tokens
        offsets += last.offsets
        start = end
        if last.finish is not None:
            return text, tokens, offsets, last.finish
    raise AssertionError("the last verdict finishes")


@given(ids=token_lists.filter(bool), data=st.data())
@settings(max_examples=200)
def test_nothing_depends_on_how_the_tokens_are_cut_into_verdicts(
    ids: list[int], data: st.DataObject
) -> None:
    whole = plain_text(ids)
    starts = st.integers(0, max(0, len(whole) - 1))
    stops = [
        whole[start : start + length]
        for start, length in data.draw(
            st.lists(st.tuples(starts, st.integers(1, 8)), max_size=3), label="stops"
        )
    ]
    stops = [stop for stop in stops if stop]
    cuts = data.draw(st.lists(st.integers(1, 60)), label="cuts")
    at_once = answer_in_cuts(ids, stops)
    assert answer_in_cuts(ids, stops, cuts=cuts) == at_once
    text, tokens, offsets, finish = at_once
    assert whole.startswith(text)
    assert len(offsets) == tokens
    if finish == "stop":
        # The stop string is what comes next, and no earlier token completed one.
        assert any(whole[len(text) :].startswith(stop) for stop in stops)
        before = "".join(pieces_of(ZOO, ids[: tokens - 1])[:-1])
        assert not any(stop in before for stop in stops)
    else:
        assert text == whole


def test_what_has_stopped_the_output_is_named() -> None:
    ids = ZOO.encode_blocking("one two three")
    end = ids[-1]
    rule = StopRule(["w", "tw"], token_ids=[end])
    by_string = AnswerText(ZOO, rule).take(ids, "length")
    assert (by_string.text, by_string.stop_reason) == ("one ", "tw")
    by_token = AnswerText(ZOO, replace(rule, strings=[])).take(ids, "stop")
    assert by_token.text == ZOO.decode(ids[:-1])
    assert by_token.stop_reason == end
    of_the_model = AnswerText(ZOO, StopRule()).take(ids, "stop")
    assert (of_the_model.finish, of_the_model.stop_reason) == ("stop", None)


def test_stop_strings_wait_for_min_tokens() -> None:
    ids = ZOO.encode_blocking("a a a a a a")
    text, tokens, _, finish = answer_in_cuts(ids, ["a"], min_tokens=3)
    assert finish == "stop"
    assert tokens > 3
    assert text == ZOO.decode(ids[: tokens - 1]) + " "


def test_each_tokens_spelling_has_its_bytes() -> None:
    for text in (EMOJI, "def f(x):\n    return x"):
        raw: list[int] = []
        for token in ZOO.encode_blocking(text):
            spelling, of_token = ZOO.spelling(token)
            assert of_token is not None
            raw += of_token
            assert spelling.startswith("bytes:") or spelling.encode() == bytes(of_token)
        assert bytes(raw).decode() == text


def test_spelling_of_byte_tokens(byte_fallback: Tokens) -> None:
    assert byte_fallback.spelling(3) == (" the", list(b" the"))
    assert byte_fallback.spelling(7 + 0xE6) == ("bytes:\\xe6", [0xE6])
    assert byte_fallback.spelling(7 + 0x41) == ("A", [0x41])
