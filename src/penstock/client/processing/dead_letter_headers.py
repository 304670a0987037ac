"""The headers of dead letters: where the original record was, and what went wrong. Pure.

They follow the record's own headers, as text, so that any client can read them.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.client.model import Headers, Record

TOPIC: Final = "penstock.original.topic"
PARTITION: Final = "penstock.original.partition"
OFFSET: Final = "penstock.original.offset"
TIMESTAMP: Final = "penstock.original.timestamp"
ERROR: Final = "penstock.error"
ATTEMPTS: Final = "penstock.attempts"

_ERROR_CHARACTERS_MAX: Final = 1000
"""An error message may quote a whole document. The record itself needs the space up to the size
limit."""


def dead_letter_headers(record: Record[Any, Any], error: Exception, attempts: int) -> Headers:
    text = f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS_MAX]
    return (
        *record.headers,
        (TOPIC, record.topic.encode()),
        (PARTITION, str(record.partition).encode()),
        (OFFSET, str(record.offset).encode()),
        (TIMESTAMP, str(record.timestamp).encode()),
        (ERROR, text.encode("utf-8", "replace")),
        (ATTEMPTS, str(attempts).encode()),
    )
