"""Ranking prompts: every request is there once, quoted, and cannot break out."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.scheduling.rank_prompts import FORMS, MAX_BATCH, REQUEST_CHARS, quoted


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [2, MAX_BATCH])
def test_each_request_is_at_its_position(form: str, size: int) -> None:
    requests = [f"Do task number {index}." for index in range(size)]
    system, user = FORMS[form](requests)
    assert (system["role"], user["role"]) == ("system", "user")
    for position, request in enumerate(requests):
        assert f"Position {position}: <{request}> [{position}]" in user["content"].split("\n")


def test_a_prompt_for_lengths_has_no_numbers_besides_positions() -> None:
    for message in FORMS["length_only"](["Count.", "Stop."]):
        other = [line for line in message["content"].split("\n") if "Position" not in line]
        assert not re.search(r"\d", "".join(other))


@given(st.text(max_size=600))
def test_a_quoted_request_stays_inside_its_quotes(text: str) -> None:
    line = quoted(text)
    assert len(line) <= REQUEST_CHARS
    assert not {"<", ">", "\n"}.intersection(line)


def test_a_long_request_keeps_both_ends() -> None:
    line = quoted(f"Summarise this. {'word ' * 200} In 3 lines.")
    assert line.startswith("Summarise this.")
    assert line.endswith("In 3 lines.")
