"""The first four milestones of a message queue, tested as its users would see them.

One: topics and partitions, keys and offsets, and their files. Two: a producer that batches, retries
and loses nothing while brokers die. Three: consumer groups that share partitions, commit offsets,
and recover. Four: replicas that fall behind and catch up. Everything goes through our command line
and unmodified clients. Each test has its own cluster, because it reads its files or kills it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from chaos import network
from compat.clients.base import (
    Client,
    Code,
    Consumer,
    ConsumerOptions,
    Record,
    Refused,
    wait_until,
)
from compat.clients.confluent import ConfluentClient
from compat.clients.kafkapython import KafkaPythonClient
from compat.cluster import PENSTOCK, Cluster
from penstock.testing.slowness import patient

Keep = Callable[[Consumer], Consumer]
COMMAND_S = 150

pytestmark = pytest.mark.skipif(
    "PENSTOCK_COMPAT_BOOTSTRAP" in os.environ, reason="these tests start and kill their own brokers"
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters, and stops them at the end of the test."""
    started: list[Cluster] = []

    def start_one(brokers: int = 1) -> Cluster:
        cluster = Cluster(tmp_path / f"data{len(started)}", brokers)
        started.append(cluster)
        cluster.start()
        return cluster

    yield start_one
    for cluster in started:
        cluster.kill()
        print(cluster.output())


@pytest.fixture
def cluster(start: Callable[..., Cluster]) -> Cluster:
    return start()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    made = KafkaPythonClient(cluster.bootstrap)
    yield made
    made.close()


def penstock(*arguments: str, given: str = "") -> list[dict[str, Any]]:
    """Runs one of our commands and returns its JSON output, line by line."""
    result = subprocess.run(
        [PENSTOCK, *arguments, "--json"],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(COMMAND_S),
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def partition_directory(cluster: Cluster, topic: str, partition: int) -> Path:
    (found,) = cluster.data.glob(f"**/{topic}-{partition}")
    return found


def records_on_disk(cluster: Cluster, topic: str, partition: int) -> list[dict[str, Any]]:
    dumped = penstock("log", "dump", str(partition_directory(cluster, topic, partition)))
    return [line for line in dumped if line["type"] == "record"]


def test_keys_partitions_and_offsets(cluster: Cluster, client: Client, keep: Keep) -> None:
    """Milestone 1: a key has one partition, offsets count from 0, the end offsets are right."""
    at = ("--bootstrap", cluster.bootstrap)
    (created,) = penstock("topic", "create", "orders", "--partitions", "3", *at)
    assert created["partition_count"] == 3
    (listing,) = penstock("topic", "list", *at)
    assert "orders" in {topic["name"] for topic in listing["topics"]}
    keys = [b"user1", b"user2", b"user1", b"user2", None]
    placed = client.produce("orders", [Record(b"%d" % i, key=k) for i, k in enumerate(keys)])
    assert placed[0].partition == placed[2].partition
    assert placed[1].partition == placed[3].partition
    assert all(p.leader >= 0 for p in client.describe_topic("orders").values())
    counts = Counter(p.partition for p in placed)
    (described,) = penstock("topic", "describe", "orders", *at)
    for partition in described["topics"][0]["partitions"]:
        number = partition["partition"]
        assert partition["next_offset"] == counts[number]
        got = keep(client.reader("orders", [number])).read(counts[number])
        assert [r.offset for r in got] == list(range(counts[number]))
        shown = penstock(
            *("consume", "orders", "--partition", str(number), "--from-beginning", "--until-end"),
            *at,
        )
        assert [r["value"].encode() for r in shown] == [r.value for r in got]
        assert [r["offset"] for r in records_on_disk(cluster, "orders", number)] == [
            r.offset for r in got
        ]


def test_records_without_a_key_are_spread(cluster: Cluster, client: Client) -> None:
    """Milestone 1: every partition gets some of the records without a key."""
    client.create_topic("spread", 3)
    placed = client.produce("spread", [Record(b"%d" % i) for i in range(90)])
    counts = Counter(p.partition for p in placed)
    assert set(counts) == {0, 1, 2}
    lines = "".join(f"{i}\n" for i in range(90))
    at = ("--bootstrap", cluster.bootstrap)
    (sent,) = penstock("produce", "spread", *at, given=lines)
    assert sent["records"] == 90
    (described,) = penstock("topic", "describe", "spread", *at)
    ends = [p["next_offset"] for p in described["topics"][0]["partitions"]]
    assert sum(ends) == 180


def test_segments_roll_and_are_indexed(cluster: Cluster, client: Client, keep: Keep) -> None:
    """Milestone 1: full segments are followed by new ones, named by offset, and read as one log."""
    client.create_topic("rolling", 1, configs={"segment.bytes": "1048576"})
    for first in range(0, 60, 10):
        client.produce("rolling", [Record(b"%06d" % i * 10_000) for i in range(first, first + 10)])
    directory = partition_directory(cluster, "rolling", 0)
    segments = sorted(int(path.stem) for path in directory.glob("*.log"))
    assert len(segments) >= 3
    assert segments[0] == 0
    for base in segments[:-1]:
        for suffix in (".index", ".timeindex"):
            assert (directory / f"{base:020d}{suffix}").exists()
    reader = keep(client.reader("rolling"))
    assert [r.offset for r in reader.read(60)] == list(range(60))
    reader.seek(0, segments[1])
    assert reader.read(1)[0].offset == segments[1]


def test_everything_survives_a_restart(cluster: Cluster, client: Client, keep: Keep) -> None:
    """Milestone 1: topics, records and their offsets are there again, and offsets continue."""
    client.create_topic("kept", 2)
    client.produce("kept", [Record(b"%d" % i, partition=i % 2) for i in range(20)])
    client.close()
    assert cluster.stop() == 0
    cluster.start()
    again = KafkaPythonClient(cluster.bootstrap)
    try:
        reader = keep(again.reader("kept", (0, 1)))
        assert sorted(int(r.value or b"") for r in reader.read(20)) == list(range(20))
        assert again.produce("kept", [Record(b"next", partition=0)])[0].offset == 10
    finally:
        again.close()


def test_keyed_records_keep_their_order_within_a_partition(
    cluster: Cluster, client: Client, keep: Keep
) -> None:
    """Milestone 2: on disk and when read back they have the order in which they were sent."""
    client.create_topic("keyed", 2)
    client.produce("keyed", [Record(b"%d" % i, key=b"key-%d" % i) for i in range(100)])
    got = keep(client.reader("keyed", (0, 1))).read(100)
    assert sorted(int(r.value or b"") for r in got) == list(range(100))
    for partition in (0, 1):
        numbers = [int(r.value or b"") for r in got if r.partition == partition]
        assert numbers == sorted(numbers)
        assert numbers
        stored = [int(r["value"]) for r in records_on_disk(cluster, "keyed", partition)]
        assert stored == numbers


class AsyncProducer:
    """Batches of two records, a linger of 100 ms, acks=all; every delivery callback is recorded."""

    def __init__(self, bootstrap: str) -> None:
        self.delivered: list[tuple[int, int]] = []
        self.failed: list[str] = []
        self.producer = ck.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "batch.num.messages": 2,
                "linger.ms": 100,
                "message.timeout.ms": 300_000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "socket.timeout.ms": 5000,
                "log_level": 0,
            }
        )

    def send(self, topic: str, number: int) -> None:
        def on_delivery(error: ck.KafkaError | None, message: ck.Message) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.delivered.append((number, message.offset() or 0))

        self.producer.produce(topic, b"%d" % number, partition=0, on_delivery=on_delivery)
        self.producer.poll(0)

    def flush(self, within_s: float = 300) -> None:
        left = self.producer.flush(within_s)
        assert not left, f"{left} records are neither acknowledged nor refused"


def assert_each_once(sender: AsyncProducer, reader: Consumer, count: int) -> None:
    """Checks that every callback reported success, and that each record is stored once."""
    assert not sender.failed
    assert sorted(number for number, _ in sender.delivered) == list(range(count))
    got = reader.read(count)
    got += reader.read_nothing(0.5)
    assert [int(r.value or b"") for r in got] == list(range(count))
    assert {r.offset: int(r.value or b"") for r in got} == {
        offset: number for number, offset in sender.delivered
    }


@pytest.mark.slow
def test_a_producer_survives_a_kill_of_its_broker(
    cluster: Cluster, client: Client, keep: Keep
) -> None:
    """Milestone 2: the broker is killed with records in flight; at the end each is stored once."""
    client.create_topic("logs")
    client.close()
    sender = AsyncProducer(cluster.bootstrap)
    for number in range(200):
        sender.send("logs", number)
    assert wait_until(lambda: bool(sender.producer.poll(0.01)) or bool(sender.delivered))
    cluster.kill()
    for number in range(200, 300):
        sender.send("logs", number)
    cluster.start()
    sender.flush()
    with closing(ConfluentClient(cluster.bootstrap)) as again:
        assert_each_once(sender, keep(again.reader("logs")), 300)


@pytest.mark.slow
def test_a_producer_survives_a_kill_of_the_leader(
    start: Callable[..., Cluster], keep: Keep
) -> None:
    """Milestone 2: the leader of three replicas is killed; another leads, nothing is lost."""
    cluster = start(3)
    at = ("--bootstrap", cluster.bootstrap)
    with closing(ConfluentClient(cluster.bootstrap)) as admin:
        admin.create_topic("logs", 1, replication=3)
        (status,) = penstock("status", *at)
        pids = {broker["id"]: broker["pid"] for broker in status["brokers"]}
        assert wait_until(lambda: len(admin.describe_topic("logs")[0].in_sync) == 3)
        leader = admin.describe_topic("logs")[0].leader
        sender = AsyncProducer(cluster.bootstrap)
        for number in range(10):
            sender.send("logs", number)
        os.kill(pids[leader], signal.SIGKILL)
        sender.flush()
        assert wait_until(lambda: admin.describe_topic("logs")[0].leader != leader)
        assert_each_once(sender, keep(admin.reader("logs")), 10)


def numbers(*members: Consumer) -> list[int]:
    return sorted(int(r.value or b"") for m in members for r in m.received)


def produce_numbered(client: Client, topic: str, partitions: int, wanted: range) -> None:
    client.produce(topic, [Record(b"%d" % i, partition=i % partitions) for i in wanted])


def test_two_consumers_share_partitions_and_the_remaining_one_takes_over(
    cluster: Cluster, client: Client, keep: Keep
) -> None:
    """Milestone 3: each reads two partitions, commits persist, and one member gets all four."""
    client.create_topic("events", 4)
    produce_numbered(client, "events", 4, range(100))
    first, second = (keep(client.member("grp1", "events")) for _ in range(2))
    assert wait_until(
        lambda: (
            len(first.assignment()) == len(second.assignment()) == 2
            and first.assignment().isdisjoint(second.assignment())
        ),
        *(first, second),
    )
    own = {member: member.assignment() for member in (first, second)}
    # On a slow machine the first member may have been alone for a while and have read all four.
    alone = {member: len(member.received) for member in own}

    def own_read(member: Consumer) -> set[tuple[int, int]]:
        return {(r.partition, r.offset) for r in member.received if r.partition in own[member]}

    assert wait_until(lambda: all(len(own_read(member)) == 50 for member in own), first, second)
    read: dict[int, int] = defaultdict(int)
    for member in (first, second):
        assert {r.partition for r in member.received[alone[member] :]} <= own[member]
        upto = dict.fromkeys(own[member], (20, ""))
        member.commit(upto)
        read.update({p: offset for p, (offset, _) in upto.items()})
    at = ("--bootstrap", cluster.bootstrap)
    (described,) = penstock("group", "describe", "grp1", *at)
    assert {p["partition"]: p["committed_offset"] for p in described["partitions"]} == read
    second.close()
    first.received.clear()
    assert wait_until(lambda: first.assignment() == {0, 1, 2, 3}, first, within_s=120)

    def inherited() -> list[tuple[int, int]]:
        return sorted((r.partition, r.offset) for r in first.received if r.partition in own[second])

    assert wait_until(lambda: len(inherited()) >= 10, first), first.rebalances
    first.read_nothing(0.4)
    assert inherited() == [(p, offset) for p in sorted(own[second]) for offset in range(20, 25)]


def loaded_offsets(client: Client) -> dict[int, int] | None:
    """Returns the committed offsets; None while the coordinator loads them after a restart."""
    try:
        return dict(client.group_offsets("grp1", "events"))
    except Refused as refused:
        assert refused.code == Code.COORDINATOR_LOAD_IN_PROGRESS
        return None


def test_committed_offsets_survive_a_kill_of_the_broker(
    cluster: Cluster, client: Client, keep: Keep
) -> None:
    """Milestone 3: committed offsets are in the internal topic, and survive kill -9."""
    client.create_topic("events", 2)
    produce_numbered(client, "events", 2, range(40))
    member = keep(client.member("grp1", "events"))
    assert wait_until(lambda: len(member.received) >= 40, member)
    member.commit()
    member.close()
    offsets = "__consumer_offsets"
    partitions = sorted(client.describe_topic(offsets))
    reader = keep(client.reader(offsets, partitions))
    assert wait_until(lambda: any(b"grp1" in (r.key or b"") for r in reader.received), reader)
    assert client.group_offsets("grp1", "events") == {0: 20, 1: 20}
    reader.close()
    client.close()
    cluster.kill()
    cluster.start()
    again = KafkaPythonClient(cluster.bootstrap)
    try:
        assert wait_until(lambda: loaded_offsets(again) == {0: 20, 1: 20})
        produce_numbered(again, "events", 2, range(40, 50))
        resumed = keep(again.member("grp1", "events"))
        assert wait_until(lambda: len(resumed.received) >= 10, resumed)
        resumed.read_nothing(0.4)
        assert numbers(resumed) == list(range(40, 50))
    finally:
        again.close()


MEMBER = """
import sys
from compat.clients.base import ConsumerOptions
from compat.clients.kafkapython import KafkaPythonClient
member = KafkaPythonClient(sys.argv[1]).member(
    "grp2", "shared", ConsumerOptions(session_timeout_ms=12_000)
)
while True:
    for record in member.poll(0.1):
        print(record.value.decode(), flush=True)
    if member.received:
        member.commit()
"""


class MemberProcess:
    """A group member that can be killed without leaving the group."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[int] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, bootstrap],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            self.values.extend(map(int, self.process.stdout))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join(120)


@pytest.mark.slow
def test_a_killed_consumer_is_replaced(cluster: Cluster, client: Client, keep: Keep) -> None:
    """Milestone 3: a member dies; the other takes over, then shares with a new member."""
    client.create_topic("shared", 3)
    options = ConsumerOptions(session_timeout_ms=12_000)
    survivor = keep(client.member("grp2", "shared", options))
    victim = MemberProcess(cluster.bootstrap)
    try:
        assert wait_until(
            lambda: (
                0 < len(survivor.assignment()) < 3
                and len(client.describe_group("grp2").members) == 2
            ),
            survivor,
        )
        produce_numbered(client, "shared", 3, range(100))
        assert wait_until(lambda: len(survivor.received) + len(victim.values) >= 100, survivor)
        assert sorted(numbers(survivor) + victim.values) == list(range(100))
        assert victim.values
        survivor.commit()
        own = survivor.assignment()
        committed = [p for p in range(3) if p not in own]
        assert wait_until(
            lambda: set(committed) <= set(client.group_offsets("grp2", "shared")), survivor
        )
    finally:
        victim.kill()
    assert wait_until(lambda: survivor.assignment() == {0, 1, 2}, survivor, within_s=120)
    produce_numbered(client, "shared", 3, range(100, 130))
    assert wait_until(lambda: set(range(100, 130)) <= set(numbers(survivor)), survivor)
    newcomer = keep(client.member("grp2", "shared", options))
    assert wait_until(
        lambda: (
            len(survivor.assignment()) + len(newcomer.assignment()) == 3
            and bool(newcomer.assignment())
        ),
        *(survivor, newcomer),
    )
    assert set(numbers(survivor) + victim.values) == set(range(130))


@pytest.mark.slow
@pytest.mark.skipif(network.why_not() != "", reason=network.why_not())
def test_a_follower_that_is_cut_off_falls_behind_and_comes_back() -> None:
    """Milestone 4: the ISR shrinks to two, no record that the follower lacks is acknowledged before
    that, and after the connection is restored the follower has everything and is in sync again."""
    assert network.run_apart("chaos.isolation", timeout_s=110) == []
