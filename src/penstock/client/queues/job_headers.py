"""The headers of jobs, and the topic settings that they need. Pure.

A broker that does not have a setting would ignore the header without a word, and deliver the job at
once, or twice. So `put` refuses what the topic does not do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple
from zlib import crc32

from penstock.client.errors import ClientError, OptionError
from penstock.client.model import Headers
from penstock.records.job_headers import DEDUP_ID, DELIVER_AT, EXPIRES_AT

REPLY_PARTITION: Final = "penstock-reply-partition"
CORRELATION_ID: Final = "penstock-correlation-id"
RESERVED: Final = frozenset({DELIVER_AT, EXPIRES_AT, DEDUP_ID, REPLY_PARTITION, CORRELATION_ID})

TIMED: Final = "penstock.timed.records"
DEDUP_WINDOW: Final = "penstock.dedup.window.ms"
PRIORITY_LEVELS: Final = "penstock.priority.levels"

Seconds = float | timedelta
"""A length of time: seconds, or a timedelta."""


def seconds(name: str, given: Seconds, *, least: float = 0.0) -> float:
    """Returns a length of time in seconds, or raises `OptionError`."""
    value = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise OptionError(f"{name} is {given!r}: give seconds or a timedelta, {least:g} or more")
    return float(value)


class Extras(NamedTuple):
    """What `put` was asked for beyond the value."""

    delay: Seconds | None = None
    ttl: Seconds | None = None
    priority: int | None = None
    dedup: str | None = None

    @property
    def needs_settings(self) -> bool:
        return any(each is not None for each in self)


def job_headers(given: Iterable[tuple[str, bytes | None]], extras: Extras, now_ms: int) -> Headers:
    """Returns the headers of a job. The time to live begins when the job is due."""
    headers = list(given)
    for name, _ in headers:
        if name in RESERVED:
            raise OptionError(f"the header {name} is reserved: use the keywords of put()")
    due_ms = now_ms
    if extras.delay is not None:
        due_ms += round(seconds("delay", extras.delay) * 1000)
        headers.append((DELIVER_AT, str(due_ms).encode()))
    if extras.ttl is not None:
        expires_ms = due_ms + round(seconds("ttl", extras.ttl, least=0.001) * 1000)
        headers.append((EXPIRES_AT, str(expires_ms).encode()))
    if extras.dedup is not None:
        if not extras.dedup:
            raise OptionError("dedup is empty: give an id, such as that of the order")
        headers.append((DEDUP_ID, extras.dedup.encode()))
    return tuple(headers)


def missing_setting(topic: str, extras: Extras, settings: Mapping[str, str]) -> ClientError | None:
    """Returns the error for something that the topic does not do; None if it does everything."""
    for keyword, given, setting, example in (
        ("delay", extras.delay, TIMED, "true"),
        ("ttl", extras.ttl, TIMED, "true"),
        ("dedup", extras.dedup, DEDUP_WINDOW, "300000"),
        ("priority", extras.priority, PRIORITY_LEVELS, "4"),
    ):
        if given is not None and settings.get(setting, "") in ("", "0", "false"):
            known = setting in settings
            advice = (
                f"set it, for instance: penstock topic alter {topic} --config {setting}={example}"
                if known
                else "the brokers of this cluster do not have this setting"
            )
            return ClientError(f"{keyword} needs the setting {setting} of topic {topic}: {advice}")
    return None


def priority_levels(settings: Mapping[str, str]) -> int:
    """Returns the number of levels, 0 if the topic has none."""
    text = settings.get(PRIORITY_LEVELS, "0")
    return int(text) if text.isascii() and text.isdecimal() else 0


def partition_for(priority: int, levels: int, partitions: int, key: bytes | None, turn: int) -> int:
    """Returns a partition of this level: partition p has level p modulo the number of levels."""
    if not 0 <= priority < levels:
        raise OptionError(
            f"priority is {priority}: the topic has the levels 0 to {levels - 1} "
            f"({PRIORITY_LEVELS}={levels})"
        )
    candidates = range(priority, partitions, levels)
    if not candidates:
        raise OptionError(
            f"the topic has {partitions} partitions, and so none for priority {priority}: give it "
            f"at least {levels} (penstock topic alter --partitions)"
        )
    return candidates[(crc32(key) if key is not None else turn) % len(candidates)]
