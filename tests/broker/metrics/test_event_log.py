"""The event log: one line for each change that operators ask about later, and no more."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from broker.replication.test_replication import on_three
from broker.three_brokers import ThreeBrokers
from penstock.broker import log_format
from penstock.broker.config import BrokerConfig
from penstock.broker.counters import BrokerCounters
from penstock.broker.log_format import HumanFormatter, JsonFormatter, configure_logging, tell
from penstock.broker.metrics import event_log
from penstock.broker.metrics.event_log import LINES_MAX, EventLog, why_leader
from penstock.metadata.image import BrokerChange, Changed, ClusterImage, TopicChange
from penstock.metadata.model import BrokerInfo, Controller, Partition, Topic
from penstock.runtime import SystemClock

ME = 0


def partition(leader: int, epoch: int = 0, isr: tuple[int, ...] = (0, 1, 2)) -> Partition:
    return Partition((0, 1, 2), isr, (), leader, epoch, epoch * 10 + len(isr), 7)


def topic(*partitions: Partition, name: str = "orders") -> Topic:
    return Topic(name, b"i" * 16, partitions, {})


def broker(broker_id: int, epoch: int = 7) -> BrokerInfo:
    return BrokerInfo(broker_id, "h", 9092, None, b"%d" % broker_id, broker_epoch=epoch)


class Cluster:
    """A broker's view of the cluster, changed by the test."""

    def __init__(self, *, controls: bool = False) -> None:
        self.image = ClusterImage()
        self.image._brokers.update({each: broker(each) for each in range(3)})
        fake = SimpleNamespace(
            cluster=SimpleNamespace(image=self.image, listen=lambda listener: None),
            counters=BrokerCounters(SystemClock()),
            replicas=SimpleNamespace(get=lambda *_: None),
            controller=SimpleNamespace(term=object() if controls else None),
            services=object(),
        )
        self.counters = fake.counters
        self.event_log = EventLog(fake, ME)  # type: ignore[arg-type]

    def tell(self, *topics: TopicChange) -> None:
        async def run_case() -> None:
            self.event_log.on_change(Changed(topics=topics))
            self.event_log.close()

        asyncio.run(run_case())


def change(before: Partition, after: Partition, name: str = "orders") -> TopicChange:
    return TopicChange(name, topic(before, name=name), topic(after, name=name))


class Notes(logging.Handler):
    """Collects what the event log writes in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._log = logging.getLogger(event_log.__name__)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def __enter__(self) -> Notes:
        self._log.addHandler(self)
        self._log.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        self._log.removeHandler(self)
        self._log.setLevel(logging.NOTSET)


@pytest.fixture
def told() -> Iterator[list[logging.LogRecord]]:
    with Notes() as notes:
        yield notes.records


def test_a_new_leader_logs_its_predecessor_and_the_reason(told: list[logging.LogRecord]) -> None:
    """In one line. The followers log nothing."""
    cluster = Cluster()
    del cluster.image._brokers[2]
    cluster.tell(change(partition(2), partition(ME, 1, (0, 1))))
    (line,) = told
    assert line.getMessage() == (
        "orders-0: leader 2 -> 0: broker 2 left the cluster; leader epoch 1, "
        "ISR [0, 1] of replicas [0, 1, 2]"
    )
    assert line.__dict__["event"] == "leader_change"
    assert line.__dict__["fields"]["leader_before"] == 2
    assert cluster.counters.leader_changes == 1
    assert cluster.counters.isr_shrinks == 1
    told.clear()
    cluster.tell(change(partition(2), partition(1, 1)))
    assert told == []


def test_a_leader_logs_and_counts_isr_changes(told: list[logging.LogRecord]) -> None:
    cluster = Cluster()
    cluster.tell(change(partition(ME), partition(ME, isr=(0, 1))))
    cluster.tell(change(partition(ME, isr=(0, 1)), partition(ME)))
    cluster.tell(change(partition(1), partition(1, isr=(0, 1))))
    swapped = replace(partition(ME, isr=(0, 2)), partition_epoch=99)
    cluster.tell(change(partition(ME, isr=(0, 1)), swapped))
    assert [line.getMessage() for line in told] == [
        "orders-0: broker 2 left the ISR; ISR [0, 1] of replicas [0, 1, 2]",
        "orders-0: broker 2 joined the ISR; ISR [0, 1, 2] of replicas [0, 1, 2]",
        "orders-0: broker 1 left and broker 2 joined the ISR; ISR [0, 2] of replicas [0, 1, 2]",
    ]
    assert (cluster.counters.isr_shrinks, cluster.counters.isr_expansions) == (2, 2)


def test_the_controller_warns_of_partitions_without_a_leader(
    told: list[logging.LogRecord],
) -> None:
    """The other brokers log nothing."""
    gone = change(partition(2, isr=(2,)), partition(-1, 1, (2,)))
    Cluster().tell(gone)
    assert told == []
    cluster = Cluster(controls=True)
    del cluster.image._brokers[2]
    cluster.tell(gone)
    (line,) = told
    assert line.levelno == logging.WARNING
    assert line.getMessage() == "orders-0 has no leader: broker 2 left the cluster; ISR was [2]"


def test_many_similar_changes_are_one_line(told: list[logging.LogRecord]) -> None:
    """A broker that dies may have led thousands of partitions."""
    cluster = Cluster()
    del cluster.image._brokers[2]
    count = LINES_MAX + 1
    after = partition(ME, 1, (0, 1))
    cluster.tell(*(change(partition(2), after, f"t{each}") for each in range(count)))
    (line,) = told
    assert line.getMessage() == (
        f"{count} partitions: leader 2 -> 0: broker 2 left the cluster "
        "(t0-0, t1-0, t2-0, t3-0, t4-0, ...)"
    )
    assert cluster.counters.leader_changes == count
    told.clear()
    cluster.tell(*(change(partition(2), after, f"t{each}") for each in range(LINES_MAX)))
    assert len(told) == LINES_MAX


def test_the_reason_for_a_leader_change_is_determined() -> None:
    """The old leader is gone, is stopping, was restarted, or gave up leadership. Or the preferred
    replica was elected, or the partition was moved.
    """
    image = ClusterImage()
    image._brokers.update({each: broker(each) for each in range(3)})

    def why(before: int, after: Partition) -> str:
        return why_leader(partition(before), after, image)

    assert why(-1, partition(1, 1)) == "it had no leader"
    assert why(1, partition(1, 1)).startswith("the broker was restarted")
    assert why(1, partition(0, 1)) == "it is the preferred leader"
    assert why(1, partition(2, 1)) == "broker 1 gave up the leadership"
    assert why(1, replace(partition(2, 1), replicas=(0, 2))) == "it was reassigned"
    image.stopping = frozenset({1})
    assert why(1, partition(2, 1)) == "broker 1 is stopping"
    del image._brokers[1]
    image.stopping = frozenset()
    assert why(1, partition(2, 1)) == "broker 1 left the cluster"


def test_changes_of_brokers_topics_and_the_controller_are_logged(
    told: list[logging.LogRecord],
) -> None:
    """The first controller that a broker sees does not count as a change."""
    cluster = Cluster(controls=True)
    seen = cluster.event_log.on_change

    def control(broker_id: int, epoch: int) -> None:
        cluster.image.controller = Controller(broker_id, epoch, b"", 1)
        seen(Changed(controller=True))

    seen(Changed(brokers=(BrokerChange(1, None, broker(1)),)))
    seen(Changed(brokers=(BrokerChange(1, broker(1), broker(1, 9)),)))
    cluster.image.stopping = frozenset({1})
    seen(Changed(brokers=(BrokerChange(1, broker(1), broker(1)),)))
    seen(Changed(brokers=(BrokerChange(1, broker(1), None),)))
    control(2, 4)
    control(2, 4)
    control(0, 5)
    seen(Changed(topics=(TopicChange("t", None, topic(partition(1), partition(2))),)))
    seen(Changed(topics=(TopicChange("t", topic(partition(1)), None),)))
    assert [line.getMessage() for line in told] == [
        "broker 1 joined the cluster at h:9092",
        "broker 1 joined the cluster at h:9092 after a restart or an expired session",
        "broker 1 is stopping and hands over its partitions",
        "broker 1 left the cluster",
        "broker 2 is the controller, controller epoch 4",
        "broker 0 is the controller, controller epoch 5",
        "topic t was created with 2 partitions",
        "topic t was deleted",
    ]
    assert cluster.counters.controller_changes == 1


@on_three(replica_lag_time_max_ms="30000")
async def test_the_death_of_a_leader_is_logged_once(cluster: ThreeBrokers) -> None:
    """By the broker that takes over, with the end offset of its log."""
    await cluster.create()
    await cluster.produce(b"a", b"b")
    stories = [EventLog(cluster.broker(each), each) for each in range(3)]
    with Notes() as notes:

        def lines() -> list[str]:
            return [
                each.getMessage()
                for each in notes.records
                if each.__dict__["event"] == "leader_change"
            ]

        dead = cluster.partition().leader
        await cluster.nodes[dead].kill()
        await cluster.until(lambda: bool(lines()))
        for each in stories:
            each.close()
    leader = cluster.partition().leader
    (line,) = lines()
    assert line.startswith(
        f"t-0: leader {dead} -> {leader}: broker {dead} left the cluster; leader epoch 1, "
    )
    assert line.endswith("log end offset 2")


# Formats


def record_of(text: str, **fields: object) -> logging.LogRecord:
    """Returns a log record as `tell` makes it."""
    caught: list[logging.LogRecord] = []
    log = logging.Logger("penstock.test")
    log.handle = caught.append  # type: ignore[assignment,method-assign]
    tell(log, "something", text, logging.INFO, **fields)
    return caught[0]


def test_a_json_log_line_is_one_object() -> None:
    """With the fields of the event and those that every line has."""
    made = json.loads(JsonFormatter(3).format(record_of("it\nhappened", topic="t", isr=[1, 2])))
    assert made["time"].endswith("Z")
    made.pop("time")
    assert made == {
        "level": "info",
        "logger": "penstock.test",
        "broker": 3,
        "event": "something",
        "message": "it\nhappened",
        "topic": "t",
        "isr": [1, 2],
    }
    assert "\n" not in JsonFormatter(3).format(record_of("it\nhappened"))


def test_a_text_log_line_has_time_level_broker_and_message() -> None:
    line = HumanFormatter(3).format(record_of("it happened"))
    assert line.partition(" ")[2] == "info    broker 3: it happened"


def test_exceptions_are_logged_with_their_traceback() -> None:
    """In both formats."""
    try:
        int("broken")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "oh", (), sys.exc_info())
    assert "ValueError: invalid literal" in HumanFormatter(0).format(record)
    made = json.loads(JsonFormatter(0).format(record))
    assert made["exception"].endswith("'broken'")
    assert "event" not in made


def test_the_configuration_sets_the_log_format_and_level(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log goes to standard error."""
    root = logging.RootLogger(logging.WARNING)
    monkeypatch.setattr(logging, "root", root)
    configure_logging(BrokerConfig(broker_id=5, log_format="json", log_level="warning"))
    record = logging.LogRecord("n", logging.WARNING, "f", 1, "careful", (), None)
    root.handle(record)
    captured = capsys.readouterr()
    assert (captured.out, json.loads(captured.err)["message"]) == ("", "careful")
    assert root.level == logging.WARNING
    assert [type(each.formatter) for each in root.handlers] == [log_format.JsonFormatter]
