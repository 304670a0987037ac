"""Carries out reassignments: starts a few at a time and watches them until they are done.

Only reassignments that were started are stored in the cluster. If the process that watches them
stops, the cluster completes those, and the same command continues from there: a plan is made from
the partitions' current and target replicas.

A reassignment is done when the cluster no longer lists it and the partition has its target
replicas. One that is not listed and has other replicas was cancelled. This must be observed several
times, because a broker that has just become the controller may return stale data.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from penstock.client.admin.admin import Admin
from penstock.client.admin.operations import PartitionInfo
from penstock.client.errors import BrokerError, ClientError
from penstock.metadata.config_types import ConfigSource
from penstock.metadata.rebalance import Step
from penstock.ports import Clock
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

_INTERVAL_S: Final = 0.25
_LOOKS: Final = 4
_AT_ONCE_MAX: Final = 20
_QUICK_LOOKS: Final = 4
_ASKED_AT_ONCE: Final = 50
GENTLE_BYTES_PER_S: Final = 20_000_000
_FASTEST_BYTES_PER_S: Final = 10**12
_PATIENCE_S: Final = 60.0
RATE: Final = "follower.replication.throttled.rate"
REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"


@dataclass(slots=True)
class Ended:
    done: list[TopicPartition] = field(default_factory=list)
    refused: list[BrokerError] = field(default_factory=list)
    cancelled: list[TopicPartition] = field(default_factory=list)
    """Cancelled by someone else, or the topic was deleted."""
    unled: list[BrokerError] = field(default_factory=list)
    """Errors of partitions that are not led by their preferred replicas."""

    @property
    def is_whole(self) -> bool:
        return not self.refused and not self.cancelled


def total_work(steps: Iterable[Step]) -> int:
    """Returns the sum of everything that `advance` will be called with."""
    return sum(_work(step) for step in steps)


def _work(step: Step) -> int:
    return max(1, len(step.added))


def _brokers(step: Step) -> set[int]:
    return {*step.before, *step.after}


class Moves:
    """Runs `at_once` reassignments at a time.

    If `at_once` is not given, no broker takes part in two at once, because clients notice the end
    of each: old replicas are removed and leaders change. The number grows as long as everything
    that was started ends within a second, as it does for small partitions.

    With `lead`, preferred replicas become leaders as soon as their reassignment is done, and not
    all of them at the end.
    """

    def __init__(
        self,
        admin: Admin,
        steps: Sequence[Step],
        clock: Clock,
        at_once: int | None,
        *,
        lead: bool = False,
    ) -> None:
        self.steps = steps
        self._admin = admin
        self._clock = clock
        self._at_once = self._at_first = at_once or 1
        self._at_once_max = at_once or _AT_ONCE_MAX
        self._is_told = at_once is not None
        self._lead = lead
        self._waiting = deque(steps)
        self._steps: dict[TopicPartition, Step] = {}
        """The reassignments in progress."""
        self._counted: dict[TopicPartition, int] = {}
        self._looks: dict[TopicPartition, int] = {}
        self.ended = Ended()

    @property
    def under_way(self) -> int:
        return len(self._steps)

    @property
    def left(self) -> int:
        """How many have not started."""
        return len(self._waiting)

    @property
    def arrived(self) -> int:
        """How many replicas have caught up so far."""
        return sum(self._counted.values())

    async def run(self, advance: Callable[[int], None]) -> Ended:
        """Runs until all are done. Calls `advance` with the number of replicas that have caught up
        since."""
        looks = 0
        while self._waiting or self._steps:
            await self._begin(advance)
            if self._steps:
                await self._look(advance)
            looks += 1
            if self._steps:
                await self._clock.sleep(_INTERVAL_S)
                continue
            quick = looks <= _QUICK_LOOKS
            self._at_once = min(2 * self._at_once, self._at_once_max) if quick else self._at_first
            looks = 0
        return self.ended

    async def watch(self, advance: Callable[[int], None]) -> Ended:
        """Watches reassignments that were started elsewhere."""
        while self._waiting:
            step = self._waiting.popleft()
            self._steps[TopicPartition(step.topic, step.index)] = step
        return await self.run(advance)

    async def _begin(self, advance: Callable[[int], None]) -> None:
        steps = self._next()
        if not steps:
            return
        begun = {TopicPartition(step.topic, step.index): step for step in steps}
        answers = await self._admin.alter_partition_reassignments(
            {topic_partition: step.after for topic_partition, step in begun.items()}
        )
        for topic_partition, step in begun.items():
            refusal = answers.get(topic_partition)
            if refusal is None:
                self._steps[topic_partition] = step
            else:
                self.ended.refused.append(refusal)
                advance(_work(step))

    def _next(self) -> list[Step]:
        """Returns the reassignments that may start now."""
        if self._is_told or self._at_once > 1:
            count = min(self._at_once - len(self._steps), len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]
        busy = {broker for step in self._steps.values() for broker in _brokers(step)}
        steps: list[Step] = []
        for step in [*self._waiting]:
            if len(self._steps) + len(steps) == self._at_once_max:
                break
            if busy.isdisjoint(_brokers(step)):
                busy |= _brokers(step)
                steps.append(step)
                self._waiting.remove(step)
        return steps

    async def _look(self, advance: Callable[[int], None]) -> None:
        listed = await self._admin.list_partition_reassignments([*self._steps])
        partitions = await self._partitions()
        done = []
        for topic_partition, step in [*self._steps.items()]:
            found = partitions.get(topic_partition)
            if topic_partition in listed and found is not None:
                caught_up = sum(each in found.in_sync for each in step.added)
                self._count(topic_partition, caught_up, advance)
                self._looks[topic_partition] = 0
                continue
            self._looks[topic_partition] = self._looks.get(topic_partition, 0) + 1
            if found is not None and found.replicas == step.after:
                done.append(topic_partition)
            elif self._looks[topic_partition] >= _LOOKS:
                self.ended.cancelled.append(topic_partition)
            else:
                continue
            del self._steps[topic_partition]
            self._count(topic_partition, _work(step), advance)
        self.ended.done += done
        if self._lead:
            self.ended.unled += await _prefer(self._admin, done)

    def _count(
        self, topic_partition: TopicPartition, number: int, advance: Callable[[int], None]
    ) -> None:
        before = self._counted.get(topic_partition, 0)
        if number > before:
            advance(number - before)
            self._counted[topic_partition] = number

    async def _partitions(self) -> dict[TopicPartition, PartitionInfo]:
        names = sorted({topic_partition.topic for topic_partition in self._steps})
        found = await self._admin.describe_topics(names)
        return {
            TopicPartition(topic.name, partition.index): partition
            for topic in found.values()
            if not isinstance(topic, BrokerError)
            for partition in topic.partitions
        }


async def _prefer(admin: Admin, topic_partitions: Sequence[TopicPartition]) -> list[BrokerError]:
    """Elects the preferred replicas as leaders. Returns the errors of those that could not be
    elected."""
    if not topic_partitions:
        return []
    answers = await admin.elect_leaders(topic_partitions)
    return [
        error
        for error in answers.values()
        if error is not None and error.code != ErrorCode.ELECTION_NOT_NEEDED
    ]


# Throttling.


@asynccontextmanager
async def braked(
    admin: Admin,
    moves: Moves,
    bytes_per_s: int | None,
    clock: Clock,
    on_eased: Callable[[int], None],
) -> AsyncIterator[None]:
    """Limits how many bytes per second each broker copies during the block; 0 means no limit.

    If `bytes_per_s` is None the rate starts low, and doubles whenever no replica has caught up for
    a while: a partition that is written faster than it may be copied would never catch up.
    `on_eased` is called with the new rate. If the block fails, the throttle stays on the
    reassignments in progress.
    """
    steps = moves.steps
    if bytes_per_s == 0 or not any(step.added for step in steps):
        yield
        return
    await throttle(admin, steps, bytes_per_s or GENTLE_BYTES_PER_S)
    easing = None
    if bytes_per_s is None:
        easing = asyncio.create_task(_ease(admin, moves, clock, on_eased))
    try:
        yield
    finally:
        if easing is not None:
            easing.cancel()
            await asyncio.wait([easing])
    await lift_throttle(admin)


async def _ease(admin: Admin, moves: Moves, clock: Clock, on_eased: Callable[[int], None]) -> None:
    rate = GENTLE_BYTES_PER_S
    while rate < _FASTEST_BYTES_PER_S:
        arrived = moves.arrived
        await clock.sleep(_PATIENCE_S)
        if moves.arrived != arrived:
            continue
        try:
            await _set_rates(admin, moves.steps, rate * 2)
        except ClientError:
            continue  # The code that runs the moves gets the error as well.
        rate *= 2
        on_eased(rate)


async def throttle(admin: Admin, steps: Sequence[Step], bytes_per_s: int) -> None:
    """Limits how much each broker may receive per second for added replicas, and send from existing
    ones."""
    lists: dict[str, dict[str, list[str]]] = {}
    for step in steps:
        if not step.added:
            continue
        for broker in step.added:
            _named(lists, step, REPLICAS, broker)
        for broker in step.before:
            _named(lists, step, LEADER_REPLICAS, broker)

    async def name(topic: str) -> None:
        values = {name: ",".join(each) for name, each in lists[topic].items()}
        try:
            await admin.alter_configs(topic=topic, set_values=values)
        except BrokerError as error:
            # The request for its reassignment will report this.
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise

    await _each(name, lists)
    await _set_rates(admin, steps, bytes_per_s)


async def _set_rates(admin: Admin, steps: Iterable[Step], bytes_per_s: int) -> None:
    rates: dict[int, dict[str, str]] = {}
    for step in steps:
        if not step.added:
            continue
        for broker in step.added:
            rates.setdefault(broker, {})[RATE] = str(bytes_per_s)
        for broker in step.before:
            rates.setdefault(broker, {})[LEADER_RATE] = str(bytes_per_s)
    info = await admin.describe_cluster()
    running = {broker.id for broker in info.brokers}
    for broker, rate in rates.items():
        if broker in running:
            await admin.alter_configs(broker=broker, set_values=rate)


def _named(lists: dict[str, dict[str, list[str]]], step: Step, name: str, broker: int) -> None:
    lists.setdefault(step.topic, {}).setdefault(name, []).append(f"{step.index}:{broker}")


async def lift_throttle(admin: Admin) -> bool:
    """Removes the throttle everywhere. Returns whether there was one."""
    info = await admin.describe_cluster()
    found = False
    for broker in info.brokers:
        configs = await admin.describe_configs(broker=broker.id)
        if rates := _set_of(configs, RATE, LEADER_RATE):
            await admin.alter_configs(broker=broker.id, delete=rates)
            found = True

    async def lift(topic: str) -> None:
        configs = await admin.describe_configs(topic=topic)
        if lists := _set_of(configs, REPLICAS, LEADER_REPLICAS):
            await admin.alter_configs(topic=topic, delete=lists)

    if found:
        await _each(lift, [topic.name for topic in await admin.list_topics(internal=True)])
    return found


async def _each(work: Callable[[str], Awaitable[None]], names: Iterable[str]) -> None:
    """Processes a few at a time: there may be thousands of topics."""
    rest = iter(names)
    while some := [*islice(rest, _ASKED_AT_ONCE)]:
        await asyncio.gather(*map(work, some))


def _set_of(configs: Mapping[str, object], *names: str) -> list[str]:
    dynamic = ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG
    return [name for name in names if getattr(configs.get(name), "source", None) in dynamic]
