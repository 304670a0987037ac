"""The check that logs stay open while the key provider is away."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.sim.faults.key_faults import OpenLogs
from penstock.sim.node import BrokerNode
from penstock.topic_partition import TopicPartition


class Stub:
    """An object with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def node(*, life: int = 1, epoch: int = 5, offline: tuple[str, ...] = ()) -> BrokerNode:
    logs = {TopicPartition(name, 0): "it is offline" for name in offline}
    replicas = Stub(broker_epoch=epoch, offline=logs)
    return cast(BrokerNode, Stub(life=life, broker=Stub(replicas=replicas)))


HELD = OpenLogs(1, 0.0, [cast(Any, Stub(topic=name, partition=0)) for name in ("a", "b")])


def test_a_log_that_went_offline_is_lost() -> None:
    assert [log.topic for log in HELD.lost(node(offline=("b", "c")))] == ["b"]


@pytest.mark.parametrize(
    "later",
    [
        node(offline=("a", "b"), epoch=-1),
        node(offline=("a", "b"), life=2),
        cast(BrokerNode, Stub(life=1, broker=None)),
        node(),
    ],
    ids=["stopping", "restarted", "down", "moved away"],
)
def test_a_log_that_was_closed_or_deleted_is_not_lost(later: BrokerNode) -> None:
    """A broker that stops has given up its registration before it closes its logs. A partition that
    has moved is neither hosted nor offline.
    """
    assert HELD.lost(later) == []
