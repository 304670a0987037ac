"""Scrapes of whole brokers: which metrics they export, and that the values are right."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from broker.handlers.test_group_requests import commit, commit_of, find_coordinator
from broker.handlers.test_transactions import completed, producer_of
from broker.harness import (
    NOW_MS,
    TIMEOUT_S,
    BrokerHarness,
    maintenance_of,
    open_harness,
    with_harness,
    with_harness_of,
)
from broker.replication.test_replication import on_three
from broker.three_brokers import ThreeBrokers
from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.metrics.names import METRICS, OTHER, Kind
from penstock.broker.metrics.scrape import Scrapes
from penstock.records.record import Record, build_batch
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import (
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    ProduceRequest,
    ProduceResponse,
)

FEW = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}
few = with_harness_of(kafka=FEW)


class Scraper:
    """Scrapes a broker repeatedly, as Prometheus does."""

    def __init__(self, broker: Broker) -> None:
        self._scrapes = Scrapes(broker._env, broker)
        self.kinds: dict[str, str] = {}
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    async def come(self) -> Scraper:
        content_type, body = await self._scrapes.scrape()
        assert content_type.startswith("text/plain; version=0.0.4")
        self.kinds.clear()
        self.samples.clear()
        for family in text_string_to_metric_families(body.decode()):
            self.kinds[family.name] = family.type
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self.samples, f"{key} came twice"
                self.samples[key] = sample.value
        return self

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for each, labels in self.samples if each == name]


async def produce_by_lane(harness: BrokerHarness, topic: str, times: int, acks: int = 1) -> int:
    """Produces similar requests, of which all but the first take the fast path.

    Returns the size of their batches.
    """
    written = 0
    for number in range(times):
        batch = build_batch([Record(0, NOW_MS, None, b"%d" % (10**6 + number))])
        written += len(batch)
        data = ProduceRequest.Partition(0, bytes(batch))
        request = ProduceRequest(
            None, acks, 10_000, [ProduceRequest.Topic(topic, partition_data=[data])]
        )
        answer = await harness.ask(request, 9, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0
    return written


async def consume(harness: BrokerHarness, topic: str) -> int:
    """Fetches once from the start. Returns the size of the records."""
    asked = FetchRequest.Partition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchRequest.Topic(topic, partitions=[asked])],
    )
    answer = await harness.ask(request, 11, FetchResponse)
    return len(answer.responses[0].partitions[0].records or b"")


@few
async def test_a_scrape_has_exactly_the_documented_metrics(harness: BrokerHarness) -> None:
    """Each has the kind and the labels that `names.py` states. The metrics of the process are there
    too.
    """
    await harness.create("orders")
    await harness.produce("orders", [b"a"])
    await find_coordinator(harness)
    assert await commit(harness, "g", "orders", {0: 0}) == [0]
    scraped = await Scraper(harness.broker).come()
    for metric in METRICS:
        name = metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name
        assert scraped.kinds.pop(name) == metric.kind.value, metric.name
        sample = f"{metric.name}_count" if metric.kind is Kind.HISTOGRAM else metric.name
        for labels in scraped.labels(sample):
            assert set(labels) == set(metric.labels), metric.name
    assert "process_resident_memory_bytes" in scraped.kinds
    assert all(name.startswith("process_") for name in scraped.kinds), scraped.kinds


@with_harness
async def test_traffic_and_size_of_a_topic_are_counted(harness: BrokerHarness) -> None:
    """Bytes and records, over several scrapes."""
    await harness.create("orders")
    scraper = Scraper(harness.broker)
    written = 0
    for _ in range(2):
        written += await produce_by_lane(harness, "orders", 5, acks=-1)
        read = await consume(harness, "orders")
        assert read == written
        await scraper.come()
        assert scraper.value("penstock_topic_received_bytes_total", topic="orders") == written
    assert scraper.value("penstock_topic_received_records_total", topic="orders") == 10
    assert scraper.value("penstock_topic_sent_bytes_total", topic="orders") == 1.5 * written
    assert scraper.value("penstock_topic_replicated_bytes_total", topic="orders") == 0
    assert scraper.value("penstock_log_size_bytes", topic="orders") == written
    assert scraper.value("penstock_topic_received_bytes_total", topic=OTHER) == 0
    assert scraper.value("penstock_partitions", role="leader") == 1
    assert scraper.value("penstock_cluster_topics") == 1


@with_harness
async def test_every_request_is_in_the_histogram_of_its_api(harness: BrokerHarness) -> None:
    """Requests on the fast path too, whether they were answered at once or had to wait."""
    await harness.create("orders", configs={"durability": "replicated"})
    await harness.create("slow")
    scraper = await Scraper(harness.broker).come()
    assert scraper.value("penstock_request_duration_seconds_count", api="Produce") == 0
    await produce_by_lane(harness, "orders", 70)
    await produce_by_lane(harness, "slow", 30, acks=-1)
    for _ in range(3):
        await harness.ask(MetadataRequest(), 12, MetadataResponse)
    await scraper.come()
    name = "penstock_request_duration_seconds"
    assert scraper.value(f"{name}_count", api="Produce") == 100
    assert scraper.value(f"{name}_bucket", api="Produce", le="+Inf") == 100
    assert scraper.value(f"{name}_sum", api="Produce") > 0
    assert scraper.value(f"{name}_count", api="Metadata") == 3
    assert scraper.value("penstock_flush_duration_seconds_count") >= 30


@few
async def test_requests_refused_as_a_whole_are_counted_by_error(harness: BrokerHarness) -> None:
    """With the name of Kafka's error code."""
    harness.services.groups.loaded = _fail  # type: ignore[method-assign]
    await harness.ask(ListGroupsRequest(), 4, ListGroupsResponse)
    del harness.services.groups.loaded
    scraped = await Scraper(harness.broker).come()
    name = "penstock_request_errors_total"
    assert scraped.labels(name) == [{"api": "ListGroups", "error": "COORDINATOR_NOT_AVAILABLE"}]


def _fail() -> Any:
    raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_topics_beyond_the_limit_share_one_series(tmp_path: Path) -> None:
    """So the sum over all series is right."""

    async def run_case() -> None:
        base = replace(BrokerConfig(), metrics_topics_max=2)
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            open_harness(tmp_path, base=base) as harness,
        ):
            written = 0
            for number in range(5):
                await harness.create(f"t{number}")
                written += await produce_by_lane(harness, f"t{number}", number + 1)
            scraped = await Scraper(harness.broker).come()
            name = "penstock_topic_received_bytes_total"
            topics = [labels["topic"] for labels in scraped.labels(name)]
            assert len(topics) == 3
            assert OTHER in topics
            assert sum(scraped.value(name, topic=topic) for topic in topics) == written
            assert scraped.value(name, topic=OTHER) > 0

    asyncio.run(run_case())


@few
async def test_the_lag_of_a_group_is_exported_by_topic(harness: BrokerHarness) -> None:
    """The sum over the topic's partitions, and the largest of them."""
    await harness.create("orders", 2)
    await find_coordinator(harness)
    await harness.produce("orders", [b"a"] * 7, 0)
    await harness.produce("orders", [b"b"] * 4, 1)
    assert await commit(harness, "billing", "orders", {0: 2, 1: 4}) == [0, 0]
    scraper = await Scraper(harness.broker).come()
    pair = {"group": "billing", "topic": "orders"}
    assert scraper.value("penstock_group_lag_records", **pair) == 5
    await harness.produce("orders", [b"c"] * 3, 1)
    await scraper.come()
    assert scraper.value("penstock_group_lag_records", **pair) == 8
    assert scraper.value("penstock_group_partition_lag_records_max", **pair) == 5
    assert scraper.value("penstock_groups", state="Empty") == 1


@few
async def test_the_rebalance_counter_survives_the_end_of_a_leadership(
    harness: BrokerHarness,
) -> None:
    """If it went back, it would look like a restart."""
    await find_coordinator(harness)
    protocols = [JoinGroupRequest.Protocol("range", b"")]
    joined = await harness.ask(
        JoinGroupRequest("g", 30_000, 30_000, protocol_type="consumer", protocols=protocols),
        2,
        JoinGroupResponse,
    )
    assert joined.error_code == 0
    scraper = await Scraper(harness.broker).come()
    assert scraper.value("penstock_group_rebalances_total") == 1
    assert scraper.value("penstock_group_members") == 1
    groups = harness.services.groups
    for runtime in groups.loaded():
        groups.on_resigned(runtime.hosted)
    await scraper.come()
    assert scraper.value("penstock_group_rebalances_total") == 1
    assert scraper.value("penstock_group_members") == 0


@few
async def test_hanging_transactions_are_counted(harness: BrokerHarness) -> None:
    """They are found by the timestamps of their records, as in Kafka. The records here are of
    2023.
    """
    await harness.create("orders")
    scraper = await Scraper(harness.broker).come()
    assert scraper.value("penstock_hanging_transactions") == 0
    producer = await producer_of(harness)
    assert await producer.write("orders", 0, b"a") == 0
    await scraper.come()
    assert scraper.value("penstock_open_transactions") == 1
    assert scraper.value("penstock_hanging_transactions") == 1
    assert scraper.value("penstock_oldest_open_transaction_age_seconds") > 86_400
    assert scraper.value("penstock_transactions", state="Ongoing") == 1
    assert await producer.end() == 0
    assert await completed(harness) == "CompleteCommit"
    await scraper.come()
    assert scraper.value("penstock_hanging_transactions") == 0
    assert scraper.value("penstock_oldest_open_transaction_age_seconds") == 0


@with_harness
async def test_retention_and_compaction_are_counted(harness: BrokerHarness) -> None:
    """Deleted segments, and the bytes that compaction read and reclaimed."""
    maintenance = maintenance_of(harness.services)
    await harness.create("old", configs={"retention.ms": "1"})
    await harness.create("state", configs={"cleanup.policy": "compact"})
    for topic in ("old", "state"):
        log = harness.hosted(topic).log
        for number in range(3):
            batch = build_batch([Record(0, NOW_MS, b"key", b"%d" % number * 100)])
            harness.hosted(topic).append_own(batch, NOW_MS)
            log.roll(NOW_MS)
        await harness.until_synced(topic, 3)
    await harness.until(lambda: harness.hosted("state").high_watermark == 3)
    await harness.until(lambda: harness.hosted("old").high_watermark == 3)
    await maintenance._retain(harness.hosted("old"))
    await maintenance._clean(harness.hosted("state"))
    scraped = await Scraper(harness.broker).come()
    assert scraped.value("penstock_retention_deleted_segments_total") >= 2
    assert scraped.value("penstock_cleaner_runs_total") == 1
    read = scraped.value("penstock_cleaner_read_bytes_total")
    assert 0 < scraped.value("penstock_cleaner_reclaimed_bytes_total") < read


@with_harness
async def test_a_full_disk_and_a_failed_log_are_exported(harness: BrokerHarness) -> None:
    """Both are alerts that should wake an operator."""
    await harness.create("orders")
    services = harness.services
    scraper = await Scraper(harness.broker).come()
    assert scraper.value("penstock_disk_full") == 0
    assert scraper.value("penstock_offline_logs") == 0
    assert scraper.value("penstock_disk_free_bytes") > 0
    services.directory.space.refusing = True
    harness.hosted("orders").log.fail("the disk is broken")
    await scraper.come()
    assert scraper.value("penstock_disk_full") == 1
    assert scraper.value("penstock_offline_logs") == 1


# Clusters


async def commit_somewhere(cluster: ThreeBrokers, request: OffsetCommitRequest) -> int:
    """Commits a group's offsets at its coordinator. Returns the coordinator's broker id."""
    while True:
        found = await cluster.nodes[0].ask(
            FindCoordinatorRequest(request.group_id), 2, FindCoordinatorResponse
        )
        if found.error_code == 0:
            node = cluster.nodes[found.node_id]
            answer = await node.ask(request, 8, OffsetCommitResponse)
            if {each.error_code for each in answer.topics[0].partitions} == {0}:
                return found.node_id
        await asyncio.sleep(0.01)


@on_three(offsets_topic_num_partitions="1", offsets_topic_replication_factor="1")
async def test_replication_is_exported_by_leaders_and_followers(cluster: ThreeBrokers) -> None:
    """First all replicas are in sync. Then a follower is dead: the partition is under-replicated,
    and the lag of that follower is shown.
    """
    await cluster.create(min_insync_replicas="3")
    await cluster.produce(b"a", b"b")
    leader = cluster.partition().leader
    scraper = await Scraper(cluster.broker(leader)).come()
    assert scraper.value("penstock_under_replicated_partitions") == 0
    assert scraper.value("penstock_cluster_brokers") == 3
    assert scraper.value("penstock_topic_replicated_bytes_total", topic="t") > 0
    dead, other = (each for each in (0, 1, 2) if each != leader)
    assert (await Scraper(cluster.broker(other)).come()).value(
        "penstock_partitions", role="follower"
    ) >= 1
    await cluster.nodes[dead].kill()
    # The leader may learn of it later than the other brokers.
    image = cluster.broker(leader).cluster.image
    await cluster.until(lambda: dead not in image.topics["t"].partitions[0].isr)
    await cluster.produce(b"c", acks=1)
    await scraper.come()
    assert scraper.value("penstock_under_replicated_partitions") == 1
    assert scraper.value("penstock_under_min_isr_partitions") == 1
    assert scraper.value("penstock_replication_lag_records", follower=str(dead)) >= 1
    assert scraper.value("penstock_offline_partitions") == 0
    assert scraper.value("penstock_cluster_brokers") == 2
    controllers = [await Scraper(cluster.broker(each)).come() for each in (leader, other)]
    assert sum(each.value("penstock_controller") for each in controllers) == 1


@on_three(offsets_topic_num_partitions="1", offsets_topic_replication_factor="1")
async def test_group_lag_includes_partitions_on_other_brokers(cluster: ThreeBrokers) -> None:
    """The coordinator asks their leaders. For a leader that is gone it uses the last known end
    offset.
    """
    await cluster.create(partitions=3, replicas=1)
    for index in range(3):
        await cluster.produce(*[b"r"] * (index + 1), index=index)
    coordinator = await commit_somewhere(cluster, commit_of("g", "t", {0: 0, 1: 0, 2: 0}))
    scraper = await Scraper(cluster.broker(coordinator)).come()
    assert scraper.value("penstock_group_lag_records", group="g", topic="t") == 6
    assert scraper.value("penstock_group_partition_lag_records_max", group="g", topic="t") == 3
    gone = next(each for each in range(3) if each != coordinator)
    await cluster.nodes[gone].kill()
    await scraper.come()
    assert scraper.value("penstock_group_lag_records", group="g", topic="t") == 6
