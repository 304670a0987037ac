"""A faulty network between producers, a coordinator and partitions.

Messages are delayed, duplicated and lost. A message on a dead connection may arrive much later.
The coordinator and the leaders of partitions die and are replaced.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from penstock.coordination.effects import Token
from penstock.topic_partition import TopicPartition
from penstock.txns.config import TransactionConfig
from penstock.txns.effects import SendMarkers
from penstock.wire.errors import ErrorCode

from .partitions import Partition
from .world import World


class Network:
    def __init__(self, seed: int, partition_names: Sequence[str]) -> None:
        self.random = random.Random(seed)
        self.world = World(TransactionConfig(retry_ms=50))
        self.world.holds_log = self.world.holds_markers = self.world.holds_ids = True
        self.world.additions_wait = seed % 2 == 1
        self.partitions = {partition_name: Partition() for partition_name in partition_names}
        self.wire: list[Callable[[], None]] = []
        self.sure: list[Callable[[], None]] = []
        """Like `wire`, but nothing is lost: the sender is notified when the connection breaks."""
        self.late: list[Callable[[], None]] = []
        """Messages on dead connections. They may be delivered at any time, or never."""
        self.waiting: dict[Token, Callable[[], None]] = {}
        self.late_share = 0.12
        """The share of messages that arrive late: some of them only then, the others a second
        time."""

    def ask(self, send: Callable[[], Token], answered: Callable[[Token], None]) -> None:
        """Sends a request to the coordinator over the wire, and its response back."""

        def arrive() -> None:
            token = send()
            self.waiting[token] = lambda: self.wire.append(lambda: answered(token))

        self.wire.append(arrive)

    def pump(self) -> None:
        for token in [token for token in self.waiting if token in self.world.replies]:
            self.waiting.pop(token)()
        while self.world.sent:
            self.send_markers(self.world.sent.pop(0))

    def send_markers(self, sent: SendMarkers) -> None:
        """Sends the marker to each partition. If a connection breaks, the coordinator gets an
        error instead, and the marker is lost or arrives at any later time."""
        shard = self.world.shard

        def answer(where: TopicPartition, code: ErrorCode) -> None:
            if self.world.shard is shard:
                answers = {where: code}
                self.world.carry_out(
                    shard.on_markers(sent.transactional_id, sent.marker, answers, self.world.now)
                )

        def write(where: TopicPartition, is_heard: bool) -> None:
            code = self.partitions[f"{where.topic}-{where.partition}"].mark(sent.marker)
            if is_heard:
                answer(where, code)

        for where in sent.partitions:
            roll = self.random.random()
            if roll < 0.85:
                self.sure.append(partial(write, where, True))
            else:
                self.sure.append(partial(answer, where, ErrorCode.NETWORK_EXCEPTION))
                if roll < 0.95 and self.late_share:
                    self.late.append(partial(write, where, False))

    def settle(self) -> None:
        world = self.world
        if world.waiting and self.random.random() < 0.7:
            refuses = self.random.random() < 0.03
            world.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS if refuses else None
            world.settle_one()
        if world.allocating and self.random.random() < 0.7:
            world.allocate_one()
        self.pump()

    def deliver(self) -> None:
        """Delivers the next message, mostly in order: some late, some twice, some never."""
        if self.late and self.random.random() < 0.07:
            self.late.pop(self.random.randrange(len(self.late)))()
        elif self.sure and (not self.wire or self.random.random() < 0.2):
            self.sure.pop(self.random.randrange(len(self.sure)))()
        elif self.wire:
            index = 0 if self.random.random() < 0.8 else self.random.randrange(len(self.wire))
            message = self.wire.pop(index)
            roll = self.random.random()
            if roll < self.late_share:
                self.late.append(message)
            if roll > self.late_share / 4:
                message()

    def disturb(self) -> None:
        """Lets time pass, kills the coordinator, or gives a partition another leader."""
        roll = self.random.random()
        if roll < 0.7:
            self.world.advance(self.random.choice((1, 5, 20, 100, 100, 500)))
        elif roll < 0.85:
            self.fail_over()
        else:
            self.random.choice(list(self.partitions.values())).restart()

    def fail_over(self) -> None:
        """Replaces the coordinator. Appends that were not confirmed may be in the log, up to some
        point."""
        world = self.world
        for _ in range(self.random.randint(0, len(world.waiting))):
            world.log += world.waiting.popleft().records
        self.waiting.clear()
        self.sure = [message for message in self.sure if self.random.random() < 0.5]
        world.fail_over()

    def verify(self) -> None:
        self.world.shard.verify()
        for partition in self.partitions.values():
            partition.verify()

    def heal(self, timeout_ms: int) -> None:
        """Delivers everything and lets timeouts pass. No client does anything new."""
        world = self.world
        world.fails_log = None
        for _ in range(4):
            world.advance(timeout_ms)
            for _ in range(2000):
                self.pump()
                if self.wire or self.sure or self.late:
                    (self.wire or self.sure or self.late).pop(0)()
                elif world.waiting:
                    world.settle_one()
                elif world.allocating:
                    world.allocate_one()
                else:
                    break
                self.verify()

    def verify_nothing_hangs(self) -> None:
        for partition_name, partition in self.partitions.items():
            assert partition.last_stable_offset == len(partition.log), f"{partition_name} hangs"
