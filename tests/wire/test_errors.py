"""Our error codes compared with those of kafka-python and aiokafka."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest

from penstock.wire.errors import ErrorCode

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import aiokafka.errors
    import kafka.errors

RENAMED = {
    "UNKNOWN": "UNKNOWN_SERVER_ERROR",
    "NO_ERROR": "NONE",
    "NOT_LEADER_FOR_PARTITION": "NOT_LEADER_OR_FOLLOWER",
    "MESSAGE_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "INVALID_TOPIC": "INVALID_TOPIC_EXCEPTION",
    "INVALID_REPLICATION_ASSIGNMENT": "INVALID_REPLICA_ASSIGNMENT",
}
"""Older names that these clients still use."""


def codes(module: ModuleType) -> dict[int, Any]:
    classes = [found for found in vars(module).values() if isinstance(found, type)]
    return {
        code: found for found in classes if isinstance(code := getattr(found, "errno", None), int)
    }


def test_names_and_retries_agree_with_kafka_python() -> None:
    """Every code that kafka-python knows has the same name and is retriable in the same way."""
    known = codes(kafka.errors)
    assert len(known) > 125
    for code, error in known.items():
        ours = ErrorCode(code)
        assert ours.name == RENAMED.get(error.message, error.message)
        if (
            ours is not ErrorCode.CORRUPT_MESSAGE
        ):  # Java and librdkafka retry it, kafka-python does not.
            assert ours.retriable == bool(error.retriable), ours


def test_every_error_code_of_aiokafka_exists_here() -> None:
    """No code that aiokafka can receive is missing."""
    known = codes(aiokafka.errors)
    assert len(known) > 60
    assert set(known) <= {int(code) for code in ErrorCode}


@pytest.mark.parametrize("code", ErrorCode)
def test_error_messages_are_words_and_do_not_repeat_the_name(code: ErrorCode) -> None:
    """Each code has its own message."""
    assert len(code.message.split()) >= 2
    assert code.name not in code.message
    assert sum(other.message == code.message for other in ErrorCode) == 1
