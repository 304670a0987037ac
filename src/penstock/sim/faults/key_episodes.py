"""Episodes about encryption.

dropped_key    the key of a topic is dropped, and brought back later
keyless_start  a broker starts without the key provider, is killed, and a batch of it rots

While a key is gone, all logs of its topic go offline, nobody reads a record of it, and other topics
work as before. When the key is back and the brokers have restarted, the logs are as they were: the
invariants and the end of the run check that nothing was cut off. A broker that cannot open some
logs for want of a key still knows that its disk has lost nothing: it takes a rotten batch for
damage, and not for the torn tail of a log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.broker.partitions.topic_keys import CHECK_S
from penstock.client.errors import ClientError
from penstock.sim.faults.cluster_under_test import ANSWER_S, ClusterUnderTest
from penstock.sim.node import READY, BrokerNode
from penstock.sim.scenario import key_of
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import FetchRequest, FetchResponse

_POLL_S: Final = 0.5
_SLACK_S: Final = 10.0
"""How much later than by the interval of their checks brokers may notice that a key is gone."""
_FAILURES_NOTED_S: Final = 5.0
"""Within this time a broker notes that some logs are offline, and others are written to."""
_FETCH_VERSION_MAX: Final = 12
_BYTES_MAX: Final = 1 << 20


class KeyEpisodes:
    def __init__(self, cluster: ClusterUnderTest) -> None:
        self._cluster = cluster
        self._shared = cluster.shared
        self._world = cluster.world
        self.episodes: Mapping[str, Callable[[], Awaitable[bool]]] = {
            "dropped_key": self._dropped_key,
            "keyless_start": self._keyless_start,
        }

    async def _dropped_key(self) -> bool:
        scenario, keys, cluster = self._shared.scenario, self._world.keys, self._cluster
        topics = [topic for topic in scenario.all_topics if topic.name in scenario.encrypted]
        if keys is None or not topics:
            return False
        topic = cluster.draws.choice(topics)
        partition_names = list(topic.partition_names)
        cluster.actions.faults.drop_key(key_of(topic.name))
        begun_ms = self._shared.now_ms()
        if await self._goes_offline(partition_names):
            error = await self._read_everywhere(partition_names)
            cluster.probe(f"refusing reads of {topic.name} without its key", begun_ms, error)
            for other in scenario.topics:
                if other.name != topic.name:
                    name = other.partition_names[0]
                    await cluster.demand(f"writing to {name}", partial(cluster.write, name))
        elif not self._shared.over.is_set():
            cluster.probe(f"taking {topic.name} offline", begun_ms, "its key was dropped")
        cluster.actions.faults.drop_key(key_of(topic.name), on=False)
        for node in self._hosts(partition_names):
            cluster.actions.faults.kill(node.name)
            cluster.actions.start(node)
        return True

    async def _keyless_start(self) -> bool:
        """The broker has opened all logs that need no key before one of them rots. Before that, the
        machine may lose power: encrypted logs are then opened for the first time in the end."""
        scenario, cluster = self._shared.scenario, self._cluster
        node = None if self._world.keys is None else cluster.spoilable()
        if node is None:
            return False
        copied = cluster.copied(node)
        plain = [name for name in copied if name.rpartition("-")[0] not in scenario.encrypted]
        faults = cluster.actions.faults
        loses_power = cluster.draws.random() < 0.5
        faults.cut_keys(node.name)
        if loses_power:
            faults.power_loss(node.name)
        else:
            faults.kill(node.name)
        await self._shared.rest(cluster.draws.random())
        cluster.actions.start(node)
        is_ready = await cluster.wait(lambda: node.state == READY, ANSWER_S)
        await self._shared.rest(_FAILURES_NOTED_S)
        faults.kill(node.name)
        has_rotted = is_ready and cluster.rot(node, plain if loses_power else copied)
        faults.cut_keys(node.name, on=False)
        await self._shared.rest(cluster.pause_s())
        cluster.actions.start(node)
        return has_rotted

    def _hosts(self, partition_names: list[str]) -> list[BrokerNode]:
        ids = {each for name in partition_names for each in self._cluster.replicas_of(name)}
        return [node for node in self._world.brokers if node.id in ids]

    async def _goes_offline(self, partition_names: list[str]) -> bool:
        """Waits until no broker has the logs open. Returns whether that was in time."""
        end_s = self._world.now + CHECK_S + _SLACK_S
        while self._world.now < end_s and not self._shared.over.is_set():
            hosted = [
                self._cluster.hosted(node, name)
                for node in self._hosts(partition_names)
                for name in partition_names
            ]
            if all(each is None or each.log.failure is not None for each in hosted):
                return True
            await self._shared.rest(_POLL_S)
        return False

    async def _read_everywhere(self, partition_names: list[str]) -> str:
        """Asks every replica for the records. Returns what is wrong: one has answered with some."""
        found: list[str] = []

        async def read() -> None:
            async with self._cluster.operator.cluster() as cluster:
                for broker in sorted(cluster.brokers):
                    for name in partition_names:
                        connection = await cluster.connection(broker)
                        answer = await connection.call(
                            _fetch(name), FetchResponse, version_max=_FETCH_VERSION_MAX
                        )
                        part = answer.responses[0].partitions[0]
                        if part.records:
                            found.append(f"broker {broker} returned records of {name}")
                        elif not part.error_code:
                            found.append(f"broker {broker} has no error for {name}")

        with suppress(ClientError):  # A broker may be gone for another reason.
            await self._cluster.spawn(read())
        return "; ".join(found)


def _fetch(partition_name: str) -> FetchRequest:
    at = TopicPartition.parse(partition_name)
    part = FetchRequest.Partition(partition=at.partition, partition_max_bytes=_BYTES_MAX)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_BYTES_MAX,
        session_epoch=-1,
        topics=[FetchRequest.Topic(topic=at.topic, partitions=[part])],
    )
