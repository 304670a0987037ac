"""Topic ids: 16 bytes on the wire, 22 characters as text.

The text is URL-safe base64 without padding, as Kafka's tools print it. A topic that is deleted and
created again gets a new id, so a request of an old client cannot reach the new topic.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from typing import Final

ID_BYTES: Final = 16
TEXT_CHARACTERS: Final = 22
ZERO_ID: Final = bytes(ID_BYTES)
"""Means "no id" on the wire."""
ONE_ID: Final = bytes(15) + b"\x01"
"""Kafka's id of its own metadata log. Clients never see it, and no topic may have it."""
RESERVED_IDS: Final = frozenset({ZERO_ID, ONE_ID})


def to_text(topic_id: bytes) -> str:
    if len(topic_id) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, this one has {len(topic_id)}")
    return urlsafe_b64encode(topic_id)[:TEXT_CHARACTERS].decode()


def from_text(text: str) -> bytes:
    """Decodes an id. Accepts only the text that `to_text` returns, so equal ids have equal
    texts."""
    try:
        topic_id = urlsafe_b64decode(text.encode("ascii") + b"==")
    except (Base64Error, UnicodeEncodeError) as error:
        raise ValueError(f"{text!r} is not an id: it must be url-safe base64") from error
    if len(topic_id) != ID_BYTES or to_text(topic_id) != text:
        raise ValueError(
            f"{text!r} is not an id: it must be {TEXT_CHARACTERS} characters of url-safe base64"
        )
    return topic_id


def new_id(draw: Callable[[int], bytes]) -> bytes:
    """Returns a random id. Calls `draw` again if the id must not be used.

    A text that begins with a dash would be taken for an option on a command line.
    """
    while True:
        topic_id = draw(ID_BYTES)
        if topic_id not in RESERVED_IDS and not to_text(topic_id).startswith("-"):
            return topic_id
