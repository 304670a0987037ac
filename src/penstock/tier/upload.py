"""Uploads segment objects, and verifies them before a manifest may name them. Pure."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from penstock.tier.errors import AlreadyExists, CorruptObject, NotFound, OutcomeUnknown
from penstock.tier.keys import RANDOM_BYTES, SEGMENTS, Claim, DataKey
from penstock.tier.manifest import Entry
from penstock.tier.requests import BackOff, Create, Procedure, head, read_range
from penstock.tier.segment_object import EncodedObject
from penstock.tier.spill import Draw

_ATTEMPTS_MAX: Final = 8


def upload(encoded: EncodedObject, claim: Claim, draw: Draw) -> Procedure[Entry]:
    """Returns the entry to commit, when the object is in the store and was verified.

    The claim must be committed, and must be the one that the entry is committed under.
    """
    random = draw(RANDOM_BYTES).hex()
    footer = encoded.footer
    key = str(DataKey(SEGMENTS, footer.owner, footer.base_offset, claim, random))
    for attempt in range(_ATTEMPTS_MAX):
        if attempt:
            yield BackOff(attempt)
        # The name is random, so if it exists, this leader has created it.
        with suppress(AlreadyExists, OutcomeUnknown):
            yield Create(key, encoded.parts)
        if (yield from _is_stored(key, encoded)):
            return Entry.of(key, encoded)
    raise OutcomeUnknown(f"{key} could not be uploaded in {_ATTEMPTS_MAX} attempts; try again")


def _is_stored(key: str, encoded: EncodedObject) -> Procedure[bool]:
    """Reads back the size, footer and trailer. Raises `CorruptObject` if they are not those
    sent."""
    tail = encoded.tail
    found = b""
    try:
        info = yield from head(key)
        if info.size == encoded.size:
            found = yield from read_range(key, encoded.size - len(tail), len(tail))
    except NotFound:
        # Nothing has arrived. Or this leader is fenced, and the collector was here in between.
        return False
    if found != tail:
        raise CorruptObject(
            f"{key} was read back with {info.size} bytes, which differ from the "
            f"{encoded.size} bytes that were sent: the store or the network damages data"
        )
    return True
