"""Maps error codes to those that each version of a request has.

Older clients do not know PRODUCER_FENCED, only INVALID_PRODUCER_EPOCH; nor do they know
TRANSACTION_ABORTABLE. A failed append is the coordinator's problem and is reported as a coordinator
error: the client looks the coordinator up again.
"""

from __future__ import annotations

from typing import Final

from penstock.wire.errors import ErrorCode

_FENCED_SINCE: Final = {"init": 4, "add": 2, "add offsets": 2, "end": 2}
_ABORTABLE_SINCE: Final = {"add": 5, "add offsets": 4, "end": 4}
_APPEND: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def in_version(code: ErrorCode, api: str, version: int) -> ErrorCode:
    """Returns the code to use in this version of the request."""
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE[api]:
        code = ErrorCode.PRODUCER_FENCED
    if code is ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE[api]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def append_error(error: ErrorCode) -> ErrorCode:
    """Returns a producer's error code for a record that could not be appended."""
    return _APPEND.get(error, error)
