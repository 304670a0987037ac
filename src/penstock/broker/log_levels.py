"""The levels of this process's loggers, under Kafka's names for them (KIP-412).

A logger is named by its module (`penstock.broker.controller`); `root` is above them all. A logger
without a level of its own has that of the nearest logger above it. Levels last as long as the
process.
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
"""Python has no TRACE: DEBUG is its lowest."""
_OPERATIONS: Final = (ConfigOperation.SET, ConfigOperation.DELETE)


def levels() -> dict[str, str]:
    """Each logger of this process and the level that holds for it, by name."""
    return {name: _shown(_logger(name).getEffectiveLevel()) for name in sorted(_names())}


def alter(edits: Sequence[ConfigEdit], *, validate_only: bool = False) -> None:
    """Set or take away levels: all of them, or with `KafkaError` none."""
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
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"There is no logger {edit.name} here.")
    if edit.operation == ConfigOperation.DELETE:
        if edit.name == ROOT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The root logger must keep a level: set it."
            )
    elif (edit.value or "").upper() not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{edit.value!r} is no level for {edit.name}: use one of {', '.join(LEVELS)}.",
        )


def _names() -> frozenset[str]:
    return frozenset((ROOT, *logging.root.manager.loggerDict))


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _shown(level: int) -> str:
    """The name of the highest level that is not above it."""
    shown = "DEBUG"
    for name, number in LEVELS.items():
        if number <= level:
            shown = name
    return shown
