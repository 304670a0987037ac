"""Topic ids and their text form."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.topic_ids import ONE_ID, ZERO_ID, from_text, new_id, to_text


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=16, max_size=16))
def test_an_id_survives_the_conversion_to_text(topic_id: bytes) -> None:
    """The text has 22 characters that need no quoting anywhere."""
    text = to_text(topic_id)
    assert len(text) == 22
    assert all(character.isalnum() or character in "-_" for character in text)
    assert from_text(text) == topic_id


def test_the_text_is_the_one_that_kafka_prints() -> None:
    """Known pairs: the zero id, and one that uses both special characters."""
    assert to_text(ZERO_ID) == "AAAAAAAAAAAAAAAAAAAAAA"
    every_bit = UUID("fbffffff-ffff-ffff-ffff-ffffffffffff").bytes
    assert to_text(every_bit) == "-____________________w"


@pytest.mark.parametrize(
    "text",
    ["", "AAAA", "A" * 21, "A" * 23, "A" * 22 + "==", "A" * 21 + "B", "A" * 21 + "/", "ä" * 22],
)
def test_other_texts_are_refused(text: str) -> None:
    """Also those that decode to an id by chance: every id has exactly one text."""
    with pytest.raises(ValueError, match="not an id"):
        from_text(text)


def test_an_id_of_the_wrong_length_is_refused() -> None:
    """It is a bug of the caller."""
    with pytest.raises(ValueError, match="16 bytes"):
        to_text(b"short")


def test_new_ids_are_not_reserved_and_do_not_start_with_a_dash() -> None:
    """An id that must not be used is drawn again."""
    dashed = b"\xf8" + bytes(15)
    assert to_text(dashed).startswith("-")
    good = b"\x01" * 16
    draws = iter([ZERO_ID, ONE_ID, dashed, good])
    assert new_id(lambda _size: next(draws)) == good
