"""A consumer group with members from different client libraries, and its invariants."""

from __future__ import annotations

from client.membership.our_consumer import OurConsumer
from compat.clients.base import (
    Client,
    Consumer,
    ConsumerOptions,
    ProducerOptions,
    Record,
    wait_until,
)
from compat.clients.confluent import ConfluentClient
from compat.clients.kafkapython import KafkaPythonClient
from penstock.testing.slowness import patient

OURS, CONFLUENT, KAFKA_PYTHON = "ours", "confluent", "kafka-python"
PARTITIONS = 6


class MixedGroup:
    """The members of one group, from any library."""

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        """The topic must have `PARTITIONS` partitions."""
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = group
        self.options = ConsumerOptions(strategy=strategy, session_timeout_ms=int(patient(10_000)))
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
        """Checks that each partition has one owner, and that its owner reads each new record once.

        If partitions move meanwhile, their new owners may read uncommitted records again.
        """
        assert wait_until(self._is_covered, *self.members), self._shown()
        moves = self._moves()
        before = {id(member): len(member.received) for member in self.members}
        numbers = range(self.produced, self.produced + 10 * PARTITIONS)
        self.produced = numbers.stop
        records = [Record(b"%d" % n, partition=n % PARTITIONS) for n in numbers]
        self.clients[CONFLUENT].produce(self.topic, records, ProducerOptions(idempotent=True))

        def news() -> list[int]:
            return [
                int(record.value or b"-1")
                for member in self.members
                for record in member.received[before[id(member)] :]
            ]

        def is_read() -> bool:
            return set(numbers) <= set(news()) and self._is_covered()

        assert wait_until(is_read, *self.members), f"{news()}\n{self._shown()}"
        if self._moves() == moves:
            assert sorted(news()) == list(numbers), f"{news()}\n{self._shown()}"
            for member in self.members:
                got = {record.partition for record in member.received[before[id(member)] :]}
                assert got == member.assignment(), self._shown()
        assert set(news()) == set(numbers), f"{news()}\n{self._shown()}"
        for member in self.members:
            member.commit()

    def _is_covered(self) -> bool:
        """Returns whether the partitions are divided evenly. Uneven shares occur in the middle of a
        cooperative rebalance, when more partitions are still to move."""
        owned = [member.assignment() for member in self.members]
        share = PARTITIONS // len(owned)
        is_even = all(len(partitions) == share for partitions in owned)
        return is_even and frozenset().union(*owned) == frozenset(range(PARTITIONS))

    def _moves(self) -> int:
        """Counts how often partitions moved. A rebalance that moves no partition does not count."""
        return sum(bool(moved) for member in self.members for _, moved in member.rebalances)

    def _shown(self) -> str:
        return "\n".join(
            f"{type(m).__name__} {sorted(m.assignment())} {m.rebalances}" for m in self.members
        )
