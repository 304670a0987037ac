"""Tests the fault proxy in front of a real broker, with third-party clients."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from compat.clients.base import Client, Consumer, ProducerOptions, Record
from compat.clients.confluent import ConfluentClient
from compat.cluster import Cluster
from penstock.runtime import SystemClock
from penstock.testing import Broker, Faults
from penstock.testing.ask import ask
from penstock.testing.plugin import TopicFactory
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
)

Keep = Callable[[Consumer], Consumer]
_CLOCK = SystemClock()
RECORDS = [Record(b"%d" % number, partition=0) for number in range(20)]
VALUES = [record.value for record in RECORDS]


def metadata(bootstrap: str, timeout_s: float | None = None) -> MetadataResponse:
    request = MetadataRequest(topics=None)
    return ask(bootstrap, request, MetadataResponse, 9, timeout_s or patient(10.0))


def values(consumer: Consumer, count: int) -> list[bytes | None]:
    return [record.value for record in consumer.read(count)]


# -- every client ---------------------------------------------------------------------------------


def test_clients_stay_on_the_proxy(
    client: Client, penstock_faults: Faults, penstock_topic: TopicFactory, keep: Keep
) -> None:
    """Records and group requests pass through the proxy, because it replaces the
    broker's address in responses."""
    topic = penstock_topic()
    placed = client.produce(topic, RECORDS)
    assert [topic_partition.offset for topic_partition in placed] == list(range(20))
    consumer = keep(client.member(f"group-{topic}", topic))
    assert values(consumer, 20) == VALUES
    assert set(client.describe_cluster().brokers.values()) == {penstock_faults.bootstrap}
    for api in ("Produce", "Fetch", "JoinGroup", "FindCoordinator"):
        assert penstock_faults.count(api) > 0, f"{api} went another way"


def test_refused_produce_requests_are_retried(
    client: Client, penstock_faults: Faults, penstock_topic: TopicFactory, keep: Keep
) -> None:
    """The broker never received the refused requests, so every record is stored once."""
    topic = penstock_topic()
    penstock_faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    client.produce(topic, RECORDS[:5])
    assert penstock_faults.count("Produce") >= 3
    assert values(keep(client.reader(topic)), 5) == VALUES[:5]


def test_refused_fetches_are_retried(
    client: Client, penstock_faults: Faults, penstock_topic: TopicFactory, keep: Keep
) -> None:
    topic = penstock_topic()
    client.produce(topic, RECORDS)
    penstock_faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", times=1)
    assert values(keep(client.reader(topic)), 20) == VALUES
    assert penstock_faults.count("Fetch") >= 2


def test_dropped_connections_are_reopened(
    client: Client, penstock_faults: Faults, penstock_topic: TopicFactory, keep: Keep
) -> None:
    topic = penstock_topic()
    client.produce(topic, RECORDS[:10], ProducerOptions(idempotent=client.name != "aiokafka"))
    consumer = keep(client.reader(topic))
    assert values(consumer, 10) == VALUES[:10]
    assert penstock_faults.drop_connections() >= 1
    client.produce(topic, RECORDS[10:])
    assert values(consumer, 10) == VALUES[10:]


def test_a_response_cut_in_the_middle_is_requested_again(
    client: Client, penstock_faults: Faults, penstock_topic: TopicFactory, keep: Keep
) -> None:
    topic = penstock_topic()
    client.produce(topic, RECORDS)
    penstock_faults.cut_after(40, api="Fetch")
    assert values(keep(client.reader(topic)), 20) == VALUES
    assert penstock_faults.count("Fetch") >= 2


def test_clients_wait_for_a_delayed_response(
    client: Client, penstock_faults: Faults, penstock_topic: TopicFactory
) -> None:
    topic = penstock_topic()
    penstock_faults.delay(300, api="Produce", times=1)
    begun = _CLOCK.monotonic()
    client.produce(topic, RECORDS[:1])
    assert _CLOCK.monotonic() - begun >= 0.3


# -- single requests ------------------------------------------------------------------------------


def test_every_address_in_a_response_is_the_proxys(penstock_faults: Faults) -> None:
    at = penstock_faults.bootstrap
    cluster = ask(at, DescribeClusterRequest(), DescribeClusterResponse, 0, patient(10.0))
    old = ask(at, FindCoordinatorRequest(key="g"), FindCoordinatorResponse, 2, patient(10.0))
    new = FindCoordinatorRequest(coordinator_keys=["g"])
    coordinator = ask(at, new, FindCoordinatorResponse, 4, patient(10.0)).coordinators[0]
    told = {f"{broker.host}:{broker.port}" for broker in metadata(at).brokers}
    told |= {f"{broker.host}:{broker.port}" for broker in cluster.brokers}
    told |= {f"{old.host}:{old.port}", f"{coordinator.host}:{coordinator.port}"}
    assert told == {at}


def test_silence_swallows_the_response_and_silences_its_connection(penstock_faults: Faults) -> None:
    penstock_faults.silence(api="Metadata", times=1)
    with pytest.raises(TimeoutError):
        metadata(penstock_faults.bootstrap, timeout_s=0.2)
    # The client may have given up before the proxy has seen its request.
    penstock_faults.wait_for("Metadata", timeout_s=patient(10.0))
    assert metadata(penstock_faults.bootstrap).brokers, "a new connection is heard again"


def test_clearing_ends_connections_that_were_silenced(penstock_faults: Faults) -> None:
    penstock_faults.silence()

    async def main() -> None:
        question = asyncio.to_thread(metadata, penstock_faults.bootstrap)
        asked = asyncio.ensure_future(question)
        wait_for = partial(penstock_faults.wait_for, timeout_s=patient(10.0))
        await asyncio.to_thread(wait_for, "Metadata")
        penstock_faults.clear()
        with pytest.raises(ConnectionError):
            await asked

    asyncio.run(main())
    assert metadata(penstock_faults.bootstrap).brokers


def test_refused_connections_are_accepted_again_at_the_same_address(
    penstock_faults: Faults,
) -> None:
    penstock_faults.refuse_connections()
    with pytest.raises(ConnectionRefusedError):
        metadata(penstock_faults.bootstrap)
    penstock_faults.accept_connections()
    assert metadata(penstock_faults.bootstrap).brokers


def test_an_injected_error_looks_like_the_brokers_own(penstock_faults: Faults) -> None:
    penstock_faults.fail("Heartbeat", "REBALANCE_IN_PROGRESS")
    at, limit_s = penstock_faults.bootstrap, patient(10.0)
    answer = ask(at, HeartbeatRequest("g"), HeartbeatResponse, 4, limit_s)
    assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    answer = ask(at, HeartbeatRequest("g"), HeartbeatResponse, 4, limit_s)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID, "the broker's real answer"


def test_errors_can_be_injected_into_metadata(
    penstock_faults: Faults, penstock_topic: TopicFactory
) -> None:
    topic = penstock_topic()
    penstock_faults.fail("Metadata", "LEADER_NOT_AVAILABLE")
    found = {topic.name: topic for topic in metadata(penstock_faults.bootstrap).topics}
    assert found[topic].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    found = {topic.name: topic for topic in metadata(penstock_faults.bootstrap).topics}
    assert found[topic].error_code == ErrorCode.NONE


def test_clients_notice_that_the_broker_behind_the_proxy_is_gone() -> None:
    """Open connections end together with the broker's, and new ones are closed."""
    with Broker() as broker, Faults(broker.bootstrap) as faults:
        host, _, port = faults.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), patient(10.0)) as idle:
            assert metadata(faults.bootstrap).brokers
            broker.kill()
            assert idle.recv(1) == b""
        with pytest.raises(ConnectionError):
            metadata(faults.bootstrap)
        broker.start()
        assert metadata(faults.bootstrap).brokers


def test_each_broker_of_a_cluster_has_its_own_proxy_address(tmp_path: Path) -> None:
    """The proxy learns all brokers from one of them; partitions led by any broker are
    reached through the proxy."""
    cluster = Cluster(tmp_path / "data", brokers=2)
    try:
        first = cluster.start().split(",")[0]
        with Faults(first) as faults:
            client = ConfluentClient(faults.bootstrap)
            client.create_topic("orders", 4)
            records = [Record(b"x", partition=partition) for partition in range(4)]
            assert len(client.produce("orders", records)) == 4
            told = metadata(faults.bootstrap)
            ports = {broker.port for broker in told.brokers}
            leaders = {part.leader_id for topic in told.topics for part in topic.partitions}
            assert (len(ports), leaders) == (2, {0, 1})
            assert not ports & {
                int(part.rpartition(":")[2]) for part in cluster.bootstrap.split(",")
            }
            client.close()
        cluster.stop()
    finally:
        cluster.kill()


def test_wait_for_times_out(penstock_faults: Faults) -> None:
    with pytest.raises(TimeoutError, match="0 of 2 Metadata requests"):
        penstock_faults.wait_for("Metadata", 2, timeout_s=0.05)


def test_wrong_use_raises_a_clear_error() -> None:
    with pytest.raises(ValueError, match="write HOST:PORT"):
        Faults("localhost")
    faults = Faults("localhost:9092")
    with pytest.raises(RuntimeError, match="not running"):
        faults.drop_connections()
    with pytest.raises(ValueError, match="cannot be made to fail"):
        faults.fail("DeleteAcls", "UNKNOWN_SERVER_ERROR")


# -- the plugin -----------------------------------------------------------------------------------


def pytest_in(directory: Path, test: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_sample.py").write_text(textwrap.dedent(test))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=patient(100),
        check=False,
    )


def test_fixtures_are_available_without_an_import(tmp_path: Path) -> None:
    """Runs in a separate project with a third-party client, as documented."""
    done = pytest_in(
        tmp_path,
        """
        import confluent_kafka
        import pytest

        @pytest.fixture(scope="session")
        def penstock_broker_settings():
            return {"message.max.bytes": "2000"}

        def test_it(penstock_broker, penstock_topic, penstock_faults):
            topic = penstock_topic(partitions=2)
            producer = confluent_kafka.Producer({"bootstrap.servers": penstock_faults.bootstrap})
            failed = []
            def told(error, message):
                failed.append(error and error.name())
            producer.produce(topic, b"x" * 1000, partition=0, on_delivery=told)
            producer.produce(topic, bytes(range(256)) * 10, partition=1, on_delivery=told)
            producer.flush(60)
            assert sorted(failed, key=str) == ["MSG_SIZE_TOO_LARGE", None]
        """,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_costs_nothing_when_unused(tmp_path: Path) -> None:
    """It imports neither the broker nor the client nor the protocol."""
    done = pytest_in(
        tmp_path,
        """
        import sys

        def test_it():
            loaded = sorted(name for name in sys.modules if name.startswith("penstock"))
            assert loaded == ["penstock", "penstock.testing", "penstock.testing.plugin"]
        """,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
