"""The calls of group coordinators at the share coordinator."""

from __future__ import annotations

import asyncio

from penstock.broker.coordinators.share_calls import ShareCalls
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.effects import InitializeShare, ShareStateCall
from penstock.shares.state_port import CallOrder, SharePartitionId
from shares.fake_state import FakeShareState

PARTITION = TopicIdPartition(bytes(15) + b"\1", 0)


class OrderedState(FakeShareState):
    """Notes the order of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[CallOrder] = []

    async def initialize(
        self,
        share_partition: SharePartitionId,
        state_epoch: int,
        start_offset: int,
        order: CallOrder,
    ) -> None:
        self.orders.append(order)
        await super().initialize(share_partition, state_epoch, start_offset, order)

    async def delete(self, share_partition: SharePartitionId, order: CallOrder) -> None:
        self.orders.append(order)
        await super().delete(share_partition, order)


def test_later_calls_have_a_higher_order() -> None:
    """Also if the clock goes back, and those of a later coordinator before all."""
    state, calls = OrderedState(), ShareCalls()
    calls.share_state = state
    begin = ShareStateCall("jobs", 1, initialize=(InitializeShare(PARTITION, 1, 0),))
    remove = ShareStateCall("jobs", 2, delete=(PARTITION,))

    async def play() -> None:
        await calls.make(begin, 4, 1_000)
        await calls.make(remove, 4, 1_000)
        await calls.make(begin, 4, 700)
        later = ShareCalls()
        later.share_state = state
        await later.make(remove, 5, 600)

    asyncio.run(play())
    assert state.orders == [
        *(CallOrder(4, 1_000), CallOrder(4, 1_001), CallOrder(4, 1_002)),
        CallOrder(5, 600),
    ]
    assert state.orders == sorted(state.orders)
