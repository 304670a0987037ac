"""The rights that consumer groups of the new protocol need, like `rights_table`."""

from __future__ import annotations

from typing import Final

from broker.access.rights_table import Case, G, T, one
from penstock.security.acls import AclOperation as Op
from penstock.wire import messages as m
from penstock.wire.api import ApiKey

CONSUMER_CASES: Final = (
    Case(
        "consumer group heartbeat",
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        lambda names, version: m.ConsumerGroupHeartbeatRequest(
            names.group, "member", 0, None, None, 60_000, [names.topic], None, None, []
        ),
        one((G, Op.READ), (T, Op.DESCRIBE)),
    ),
    Case(
        "describe consumer groups",
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        lambda names, version: m.ConsumerGroupDescribeRequest([names.group]),
        one((G, Op.DESCRIBE)),
    ),
)
