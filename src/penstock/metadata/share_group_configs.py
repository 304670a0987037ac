"""Settings of share groups (KIP-932), under Kafka's names.

Those of brokers come from the config file. The others are of single groups only: the broker has no
setting that provides their defaults.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.metadata.config_types import (
    ConfigType,
    Definition,
    Value,
    at_least,
    between,
    one_of,
)
from penstock.metadata.dead_letter_configs import DEAD_LETTER_GROUP_CONFIGS

_INT = ConfigType.INT
_BACKOFF_MOST_MS: Final = 30 * 24 * 3_600_000
_DURATION: Final = r"P(?=\d|T)(\d{1,5}D)?(T(?=\d)(\d{1,9}H)?(\d{1,9}M)?(\d{1,9}(\.\d{1,9})?S)?)?"
_OFFSET_RESET: Final = re.compile(
    f"latest|earliest|by_duration:{_DURATION}", re.IGNORECASE | re.ASCII
)
"""`shares.offset_reset` tells what it means."""


def _offset_reset(value: Value) -> str | None:
    if isinstance(value, str) and _OFFSET_RESET.fullmatch(value.strip()):
        return None
    return "set it to latest, earliest, or by_duration: with a duration such as PT1H or P2DT3H4M"


SHARE_GROUP_CONFIGS: Final = (
    Definition(
        "group.share.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether brokers serve share groups (KIP-932). If not, their APIs are not advertised.",
        dynamic=False,
    ),
    Definition(
        "group.share.session.timeout.ms",
        _INT,
        45_000,
        "How long a member of a share group may send no heartbeat before it is removed.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "group.share.heartbeat.interval.ms",
        _INT,
        5_000,
        "How often members of share groups send heartbeats.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "group.share.assignment.interval.ms",
        _INT,
        1_000,
        "At least this long passes between two assignments of a share group. A change while the "
        "broker runs is used after its next start.",
        at_least(0),
    ),
    Definition(
        "group.share.initialize.retry.interval.ms",
        _INT,
        30_000,
        "The longest pause after which a share group tries again to initialize the state of a "
        "partition. The first pause is a second, and each further one is twice as long.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "group.share.max.size",
        _INT,
        200,
        "The maximum number of members of a share group.",
        between(1, 1_000),
        dynamic=False,
    ),
    Definition(
        "group.share.record.lock.duration.ms",
        _INT,
        30_000,
        "How long a record is locked for the member of a share group that it was delivered to.",
        between(100, 3_600_000),
        dynamic=False,
    ),
    Definition(
        "group.share.delivery.count.limit",
        _INT,
        5,
        "How often a record is delivered to members of a share group before it is given up.",
        between(2, 25),
        dynamic=False,
    ),
    Definition(
        "group.share.partition.max.record.locks",
        _INT,
        2_000,
        "How many records of a partition a share group may have in flight.",
        between(10, 10_000),
        dynamic=False,
    ),
)

SHARE_OFFSET_RESET: Final = "share.auto.offset.reset"
SHARE_ISOLATION: Final = "share.isolation.level"
SHARE_RENEW: Final = "share.renew.acknowledge.enable"
SHARE_BACKOFF: Final = "penstock.share.redelivery.backoff.ms"
SHARE_BACKOFF_MAX: Final = "penstock.share.redelivery.backoff.max.ms"

OF_GROUPS_ONLY: Final = (
    *DEAD_LETTER_GROUP_CONFIGS,
    Definition(
        SHARE_OFFSET_RESET,
        ConfigType.STRING,
        "latest",
        "Where a share group begins to read a partition: latest, earliest, or by_duration: with an "
        "ISO 8601 duration, such as by_duration:PT1H for the records of the last hour.",
        _offset_reset,
    ),
    Definition(
        SHARE_ISOLATION,
        ConfigType.STRING,
        "read_uncommitted",
        "Whether a share group gets records of open and aborted transactions: read_uncommitted or "
        "read_committed.",
        one_of("read_uncommitted", "read_committed"),
    ),
    Definition(
        SHARE_RENEW,
        ConfigType.BOOLEAN,
        True,
        "Whether members of a share group may extend the lock of a record.",
    ),
    Definition(
        SHARE_BACKOFF,
        ConfigType.LONG,
        0,
        "How long a record waits before it is delivered again, after a member of a share group "
        "released it or its lock ended. The time doubles with each delivery. 0: it does not wait.",
        between(0, _BACKOFF_MOST_MS),
    ),
    Definition(
        SHARE_BACKOFF_MAX,
        ConfigType.LONG,
        300_000,
        "The longest time that a record of a share group waits before it is delivered again.",
        between(0, _BACKOFF_MOST_MS),
    ),
)
"""Configs of single share groups without a setting of the broker."""
