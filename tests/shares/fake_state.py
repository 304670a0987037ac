"""A share coordinator in memory, for tests of its users."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.shares.image import Delta, ShareImage
from penstock.shares.state_port import CallOrder, SharePartitionId, StateSummary
from penstock.shares.states import DONE
from penstock.wire.errors import ErrorCode, KafkaError


@dataclass
class Stored:
    image: ShareImage
    leader_epoch: int = -1


class FakeShareState:
    """Implements `ShareState`. A test can hold writes back, and let calls fail."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionId, Stored] = {}
        self.writes: list[Delta] = []
        self.replaced: list[ShareImage] = []
        self.reads = 0
        self.error: ErrorCode | None = None
        """All calls fail with it."""
        self.calls: list[tuple[str, SharePartitionId]] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.may_read = asyncio.Event()
        self.may_read.set()

    @property
    def images(self) -> dict[SharePartitionId, ShareImage]:
        return {each: stored.image for each, stored in self.states.items()}

    def begin(self, share_partition: SharePartitionId, start_offset: int, epoch: int = 1) -> None:
        """Does what `initialize` does, at once."""
        self.states[share_partition] = Stored(ShareImage.starting_at(start_offset, epoch))

    async def read(self, share_partition: SharePartitionId, leader_epoch: int) -> ShareImage:
        self._note("read", share_partition)
        self.reads += 1
        await self.may_read.wait()
        return self._checked(share_partition, leader_epoch).image.copy()

    async def write(
        self, share_partition: SharePartitionId, leader_epoch: int, delta: Delta
    ) -> None:
        self._note("write", share_partition)
        await self.may_write.wait()
        stored = self._checked(share_partition, leader_epoch)
        if delta.state_epoch != stored.image.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        stored.image.apply(delta)
        self.writes.append(delta)

    async def replace(
        self, share_partition: SharePartitionId, leader_epoch: int, image: ShareImage
    ) -> None:
        self._note("replace", share_partition)
        stored = self._checked(share_partition, leader_epoch)
        stored.image = image.copy()
        self.replaced.append(image.copy())

    async def initialize(
        self,
        share_partition: SharePartitionId,
        state_epoch: int,
        start_offset: int,
        order: CallOrder,
    ) -> None:
        self._note("initialize", share_partition)
        self._refuse()
        stored = self.states.get(share_partition)
        if stored is None or stored.image.state_epoch < state_epoch:
            self.begin(share_partition, start_offset, state_epoch)

    async def delete(self, share_partition: SharePartitionId, order: CallOrder) -> None:
        self._note("delete", share_partition)
        self._refuse()
        self.states.pop(share_partition, None)

    async def summary(self, share_partition: SharePartitionId) -> StateSummary | None:
        self._note("summary", share_partition)
        self._refuse()
        stored = self.states.get(share_partition)
        if stored is None:
            return None
        image = stored.image
        done = sum(each.last - each.first + 1 for each in image.spans if each.state in DONE)
        promoted = sum(each.last - each.first + 1 for each in image.promoted)
        return StateSummary(
            image.state_epoch, stored.leader_epoch, image.start_offset, done, promoted
        )

    def _note(self, name: str, share_partition: SharePartitionId) -> None:
        self.calls.append((name, share_partition))

    def _refuse(self) -> None:
        if self.error is not None:
            raise KafkaError(self.error)

    def _checked(self, share_partition: SharePartitionId, leader_epoch: int) -> Stored:
        self._refuse()
        stored = self.states.get(share_partition)
        if stored is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if leader_epoch < stored.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        stored.leader_epoch = leader_epoch
        return stored
