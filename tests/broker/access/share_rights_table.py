"""The rights that share groups need, like `rights_table`.

Some requests look at their topics only if the group is a share group, or if the member has a share
session. `broker/handlers/test_share_groups.py` and `broker/shares/test_share_limits.py`
have the rights on topics for these.
"""

from __future__ import annotations

from typing import Final

from broker.access.rights_table import Case, G, Names, T, one
from penstock.security.acls import AclOperation as Op
from penstock.wire import messages as m
from penstock.wire.api import ApiKey
from penstock.wire.messages.base import Request


def _share_fetch(names: Names, version: int) -> Request:
    topic = m.ShareFetchRequest.Topic(names.topic_id, [m.ShareFetchRequest.Partition(0)])
    return m.ShareFetchRequest(
        names.group, "member", 0, 0, 0, 1 << 20, max_records=1, batch_size=1, topics=[topic]
    )


def _offsets(names: Names, version: int) -> Request:
    topic = m.DescribeShareGroupOffsetsRequest.Topic(names.topic, [0])
    group = m.DescribeShareGroupOffsetsRequest.Group(names.group, [topic])
    return m.DescribeShareGroupOffsetsRequest([group])


def _alteration(names: Names, version: int) -> Request:
    partition = m.AlterShareGroupOffsetsRequest.Partition(0, 0)
    topic = m.AlterShareGroupOffsetsRequest.Topic(names.topic, [partition])
    return m.AlterShareGroupOffsetsRequest(names.group, [topic])


def _deletion(names: Names, version: int) -> Request:
    topic = m.DeleteShareGroupOffsetsRequest.Topic(names.topic)
    return m.DeleteShareGroupOffsetsRequest(names.group, [topic])


def _queue(names: Names, version: int) -> Request:
    topic = m.DescribeQueueRequest.Topic(names.topic, [m.DescribeQueueRequest.Partition(0, 0)])
    return m.DescribeQueueRequest(names.group, [topic])


SHARE_CASES: Final = (
    Case(
        "share group heartbeat",
        ApiKey.SHARE_GROUP_HEARTBEAT,
        lambda names, version: m.ShareGroupHeartbeatRequest(
            names.group, "member", 0, None, [names.topic]
        ),
        one((G, Op.READ), (T, Op.DESCRIBE)),
    ),
    Case(
        "describe share groups",
        ApiKey.SHARE_GROUP_DESCRIBE,
        lambda names, version: m.ShareGroupDescribeRequest([names.group]),
        one((G, Op.DESCRIBE)),
    ),
    Case(
        "share fetch",
        ApiKey.SHARE_FETCH,
        _share_fetch,
        one((G, Op.READ), (T, Op.READ)),
        by_id=True,
    ),
    Case(
        "share acknowledge",
        ApiKey.SHARE_ACKNOWLEDGE,
        lambda names, version: m.ShareAcknowledgeRequest(names.group, "member", 1),
        one((G, Op.READ)),
    ),
    Case(
        "describe share group offsets",
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        _offsets,
        one((G, Op.DESCRIBE)),
    ),
    Case(
        "alter share group offsets",
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        _alteration,
        one((G, Op.READ)),
    ),
    Case(
        "delete share group offsets",
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        _deletion,
        one((G, Op.DELETE)),
    ),
    Case(
        "describe queue",
        ApiKey.DESCRIBE_QUEUE,
        _queue,
        one((G, Op.DESCRIBE), (T, Op.DESCRIBE)),
    ),
)
