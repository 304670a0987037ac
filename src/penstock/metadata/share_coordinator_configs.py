"""Settings of the share coordinator (KIP-932), under Kafka's names. They come from the config
file."""

from __future__ import annotations

from typing import Final

from penstock.metadata.config_types import ConfigType, Definition, at_least

_INT = ConfigType.INT
_SHORT = ConfigType.SHORT

SHARE_COORDINATOR_CONFIGS: Final = (
    Definition(
        "share.coordinator.state.topic.num.partitions",
        _INT,
        50,
        "The number of partitions of __share_group_state.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "share.coordinator.state.topic.replication.factor",
        _SHORT,
        3,
        "The replica count of __share_group_state; it is created once there are as many brokers.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "share.coordinator.state.topic.min.isr",
        _SHORT,
        2,
        "min.insync.replicas of __share_group_state.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "share.coordinator.state.topic.segment.bytes",
        _INT,
        100 << 20,
        "segment.bytes of __share_group_state.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "share.coordinator.snapshot.update.records.per.snapshot",
        _INT,
        500,
        "The number of updates of a share partition after which its state is stored as a whole.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "share.coordinator.write.timeout.ms",
        _INT,
        5_000,
        "How long a share coordinator waits for the replicas before it answers with an error.",
        at_least(1),
        dynamic=False,
    ),
)
