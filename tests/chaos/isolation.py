"""A follower is cut off from its leader, and every log is checked at each step.

Three replicas have fifty records. One follower loses its connection to the leader, and twenty more
records are sent. They are acknowledged and can be read only after the follower has left the ISR,
because it does not have them. When the connection is restored, the follower fetches them and joins
the ISR again.

Runs in a network namespace, as `chaos.network` does, and prints its result as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import confluent_kafka as ck

from penstock.testing.ask import ask
from penstock.wire.messages import ListOffsetsRequest, ListOffsetsResponse

from .broker_processes import BrokerProcesses, dump, wait_for
from .loaded_cluster import PROGRESS_S
from .network import Wires, on_wires
from .workload import create_topic

TOPIC = "audit"
FIRST, MORE = 50, 20
LATEST = -1
CONSUMER = -1
NEWS_S = 30.0


class Walk:
    def __init__(self, fleet: BrokerProcesses, wires: Wires) -> None:
        self.fleet = fleet
        self.wires = wires
        self.acknowledged: list[int] = []
        self.producer = ck.Producer(
            {"bootstrap.servers": fleet.bootstrap, "acks": "all", "log_level": 0}
        )

    def send(self, numbers: range) -> None:
        def on_delivery(error: ck.KafkaError | None, message: ck.Message) -> None:
            assert error is None, str(error)
            self.acknowledged.append(int(message.value() or b""))

        for number in numbers:
            self.producer.produce(TOPIC, b"%d" % number, on_delivery=on_delivery)
        self.producer.poll(0)

    def stored(self) -> dict[int, list[int]]:
        """Returns the records in each replica's files."""
        return {
            broker_id: [
                int(line["value"])
                for line in dump(node.data / "logs" / f"{TOPIC}-0")
                if line["type"] == "record"
            ]
            for broker_id, node in self.fleet.nodes.items()
        }

    def high_watermark(self, leader: int) -> int:
        """Returns the offset up to which the leader lets consumers read."""
        asked = ListOffsetsRequest.Partition(0, timestamp=LATEST)
        topics = [ListOffsetsRequest.Topic(TOPIC, [asked])]
        request = ListOffsetsRequest(replica_id=CONSUMER, topics=topics)
        answer = ask(self.fleet.nodes[leader].address, request, ListOffsetsResponse, 6, 5.0)
        return answer.topics[0].partitions[0].offset

    def in_sync(self) -> list[int]:
        return self.fleet.partitions(TOPIC)[0].isr_nodes

    def has_left(self, leader: int, follower: int) -> bool:
        """Returns whether the follower left the ISR; until then its missing records do not
        count."""
        self.producer.poll(0)
        if self.high_watermark(leader) > FIRST:
            # The leader knows first; the metadata of the other brokers follows a moment later.
            wait_for("the metadata tell it", lambda: follower not in self.in_sync(), NEWS_S)
        return follower not in self.in_sync()

    def run(self) -> None:
        self.send(range(FIRST))
        assert self.producer.flush(PROGRESS_S) == 0
        self._check_all_have(FIRST)
        partition = self.fleet.partitions(TOPIC)[0]
        leader = partition.leader_id
        follower = next(b for b in reversed(partition.replica_nodes) if b != leader)
        self.wires.cut(leader, follower)
        self.send(range(FIRST, FIRST + MORE))

        wait_for(
            "the follower leaves the in-sync replicas",
            lambda: self.has_left(leader, follower),
            PROGRESS_S,
        )
        assert len(self.in_sync()) == 2
        assert self.producer.flush(PROGRESS_S) == 0
        assert self.high_watermark(leader) == FIRST + MORE
        held = {broker_id: len(numbers) for broker_id, numbers in self.stored().items()}
        assert held.pop(follower) == FIRST
        assert set(held.values()) == {FIRST + MORE}
        self.wires.heal()
        self.fleet.wait_in_sync(TOPIC)
        self._check_all_have(FIRST + MORE)
        assert sorted(self.acknowledged) == list(range(FIRST + MORE))
        self._read_back()

    def _check_all_have(self, count: int) -> None:
        """Checks that every replica has all records: all replicas are in sync."""
        for broker_id, numbers in self.stored().items():
            assert numbers == list(range(count)), f"broker {broker_id} holds {numbers}"

    def _read_back(self) -> None:
        options = {"bootstrap.servers": self.fleet.bootstrap, "group.id": "look", "log_level": 0}
        consumer = ck.Consumer(options)
        try:
            consumer.assign([ck.TopicPartition(TOPIC, 0, 0)])
            got = consumer.consume(FIRST + MORE, PROGRESS_S)
            assert [int(m.value() or b"") for m in got] == list(range(FIRST + MORE))
        finally:
            consumer.close()


def main() -> int:
    complaints = []
    with (
        tempfile.TemporaryDirectory(prefix="penstock-isolation-") as directory,
        on_wires(Path(directory), "sqlite") as (fleet, wires),
    ):
        fleet.start()
        create_topic(fleet.bootstrap, TOPIC, 1)
        fleet.wait_in_sync(TOPIC)
        try:
            Walk(fleet, wires).run()
        except AssertionError as error:
            complaints.append(repr(error))
            complaints += [f"broker {n.broker_id}: {n.said()}" for n in fleet.nodes.values()]
    print(json.dumps({"complaints": complaints}))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
