"""Shows and changes the levels of this process's loggers, with Kafka's level names (KIP-412).

A logger has the name of its module (`penstock.broker.control.controller`), and `root` is the parent
of all. A logger without its own level uses the level of its nearest ancestor. Changes last until
the process ends.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from penstock.metadata.config_changes import ConfigEdit, ConfigOperation
from penstock.wire.errors import ErrorCode, KafkaError

ROOT: Final = "root"
LEVELS: Final = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Python has no TRACE, so TRACE means DEBUG."""
_OPERATIONS: Final = (ConfigOperation.SET, ConfigOperation.DELETE)


def levels() -> dict[str, str]:
    """Returns the effective level of every logger of this process, by name."""
    return {name: _shown(_logger(name).getEffectiveLevel()) for name in sorted(_names())}


def alter(edits: Sequence[ConfigEdit], *, validate_only: bool = False) -> None:
    """Sets or removes levels. Raises `KafkaError` and changes nothing if one edit is invalid."""
    names = _names()
    for edit in edits:
        _check(edit, names)
    for edit in () if validate_only else edits:
        is_set = edit.operation == ConfigOperation.SET
        _logger(edit.name).setLevel(LEVELS[(edit.value or "").upper()] if is_set else 0)


def _check(edit: ConfigEdit, names: frozenset[str]) -> None:
    if edit.operation not in _OPERATIONS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The level of logger {edit.name} can be set (0) or deleted (1), nothing else.",
        )
    if edit.name not in names:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"This broker has no logger {edit.name}.")
    if edit.operation == ConfigOperation.DELETE:
        if edit.name == ROOT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The root logger must have a level: set it instead."
            )
    elif (edit.value or "").upper() not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{edit.value!r} is not a level for {edit.name}: use one of {', '.join(LEVELS)}.",
        )


def _names() -> frozenset[str]:
    return frozenset((ROOT, *logging.root.manager.loggerDict))


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _shown(level: int) -> str:
    """Returns Kafka's name of the highest level that is not above `level`."""
    shown = "DEBUG"
    for name, number in LEVELS.items():
        if number <= level:
            shown = name
    return shown
