"""Maps error codes to those that each version of a request has.

Older clients do not know PRODUCER_FENCED, only INVALID_PRODUCER_EPOCH; nor do they know
TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from typing import Final

from penstock.wire.errors import ErrorCode

_FENCED_SINCE: Final = {"init": 4, "add": 2, "add offsets": 2, "end": 2}
_ABORTABLE_SINCE: Final = {"add": 5, "add offsets": 4, "end": 4}


def in_version(code: ErrorCode, api: str, version: int) -> ErrorCode:
    """Returns the code to use in this version of the request."""
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE[api]:
        code = ErrorCode.PRODUCER_FENCED
    if code is ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE[api]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
