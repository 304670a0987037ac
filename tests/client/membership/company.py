"""A group of members from different libraries, and what must hold for it at all times."""

from __future__ import annotations

from client.membership.ours import OurConsumer
from compat.clients.base import Client, Consumer, ConsumerOptions, Record, wait_until
from compat.clients.confluent import ConfluentClient
from compat.clients.kafkapython import KafkaPythonClient

OURS, CONFLUENT, KAFKA_PYTHON = "ours", "confluent", "kafka-python"
PARTITIONS = 6


class Company:
    """The members of one group, whatever they are made of."""

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        """The topic has `PARTITIONS` partitions."""
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = group
        self.options = ConsumerOptions(strategy=strategy)
        self.clients: dict[str, Client] = {
            CONFLUENT: ConfluentClient(bootstrap),
            KAFKA_PYTHON: KafkaPythonClient(bootstrap),
        }
        self.members: list[Consumer] = []
        self.produced = 0

    def enter(self, kind: str) -> None:
        if kind == OURS:
            self.admit(OurConsumer(self.bootstrap, self.group, self.topic, self.options))
        else:
            self.admit(self.clients[kind].member(self.group, self.topic, self.options))

    def admit(self, member: Consumer) -> None:
        self.members.append(member)

    def leave(self, member: Consumer) -> None:
        self.members.remove(member)
        member.close()

    def close(self) -> None:
        for member in self.members:
            member.close()
        for client in self.clients.values():
            client.close()

    def check(self) -> None:
        """Each partition has one owner, and what is written is read by its owner, once."""
        assert wait_until(self._is_covered, *self.members), self._shown()
        before = {id(member): len(member.received) for member in self.members}
        numbers = range(self.produced, self.produced + 10 * PARTITIONS)
        self.produced = numbers.stop
        records = [Record(b"%d" % n, partition=n % PARTITIONS) for n in numbers]
        self.clients[CONFLUENT].produce(self.topic, records)

        def news() -> list[int]:
            return [
                int(record.value or b"-1")
                for member in self.members
                for record in member.received[before[id(member)] :]
            ]

        assert wait_until(lambda: len(news()) >= len(numbers), *self.members), self._shown()
        assert sorted(news()) == list(numbers), f"{news()}\n{self._shown()}"
        for member in self.members:
            got = {record.partition for record in member.received[before[id(member)] :]}
            assert got == member.assignment()
            member.commit()

    def _is_covered(self) -> bool:
        owned = sorted(p for member in self.members for p in member.assignment())
        return owned == list(range(PARTITIONS)) and all(m.assignment() for m in self.members)

    def _shown(self) -> str:
        return "\n".join(
            f"{type(m).__name__} {sorted(m.assignment())} {m.rebalances}" for m in self.members
        )
