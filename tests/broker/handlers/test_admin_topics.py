"""CreateTopics and DeleteTopics, through whole brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.broker.handlers import admin_requests
from penstock.metadata.configs import TOPIC_CONFIGS, ConfigSource
from penstock.metadata.image import TopicChange
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

Wanted = CreateTopicsRequest.Topic
Config = CreateTopicsRequest.Config
Doomed = DeleteTopicsRequest.Topic
TOPICS = ("orders", "events")


async def create(
    harness: BrokerHarness, *topics: Wanted, version: int = 7, validate_only: bool = False
) -> dict[str, CreateTopicsResponse.Topic]:
    request = CreateTopicsRequest(list(topics), 30_000, validate_only)
    response = await harness.ask(request, version, CreateTopicsResponse)
    answers = {topic.name: topic for topic in response.topics}
    assert len(answers) == len(response.topics), "a topic was answered twice"
    return answers


async def delete(harness: BrokerHarness, *topics: Doomed) -> list[tuple[str | None, int]]:
    request = DeleteTopicsRequest(list(topics), timeout_ms=30_000)
    response = await harness.ask(request, 6, DeleteTopicsResponse)
    return [(topic.name, topic.error_code) for topic in response.responses]


@with_harness
async def test_a_created_topic_accepts_records_at_once(harness: BrokerHarness) -> None:
    """A client that got the response to CreateTopics can produce without a retry."""
    await harness.create("orders", 3)
    assert [await harness.produce("orders", [b"x"], index) for index in range(3)] == [0, 0, 0]


@with_harness
async def test_the_response_describes_the_created_topic(harness: BrokerHarness) -> None:
    """From version 5 on: partitions, replicas, and every config with its source. From version 7 on:
    the id.
    """
    wanted = Wanted("orders", 2, 1, configs=[Config("retention.ms", "1000")])
    answer = (await create(harness, wanted))["orders"]
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    assert (answer.num_partitions, answer.replication_factor) == (2, 1)
    assert answer.topic_id == harness.broker.cluster.image.topics["orders"].topic_id
    assert answer.configs is not None
    configs = {config.name: config for config in answer.configs}
    assert set(configs) == set(TOPIC_CONFIGS)
    retention = configs["retention.ms"]
    assert (retention.value, retention.config_source) == ("1000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert not retention.read_only
    assert not retention.is_sensitive
    assert configs["cleanup.policy"].value == "delete"
    assert configs["cleanup.policy"].config_source == ConfigSource.DEFAULT_CONFIG


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_of_create_topics_creates(
    version: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Older versions leave out what they have no fields for."""

    async def scenario(harness: BrokerHarness) -> None:
        answer = (await create(harness, Wanted("orders", 1, 1), version=version))["orders"]
        assert answer.error_code == ErrorCode.NONE
        assert answer.num_partitions == (1 if version >= 5 else -1)
        assert "orders" in harness.broker.cluster.image.topics

    with_harness(scenario)(tmp_path_factory.mktemp("harness"))


@with_harness_of(kafka={"num.partitions": "4"})
async def test_minus_one_selects_the_default_partitions_and_replicas(
    harness: BrokerHarness,
) -> None:
    """The broker's num.partitions and default.replication.factor."""
    answer = (await create(harness, Wanted("orders", -1, -1)))["orders"]
    assert (answer.num_partitions, answer.replication_factor) == (4, 1)


@with_harness
async def test_each_topic_is_created_or_refused_on_its_own(harness: BrokerHarness) -> None:
    """An invalid topic does not affect the others."""
    await harness.create("old")
    answers = await create(
        harness,
        Wanted("old", 1, 1),
        Wanted("good", 1, 1),
        Wanted("bad name", 1, 1),
        Wanted("none", 0, 1),
        Wanted("wide", 1, 2),
        Wanted("odd", 1, 1, configs=[Config("retention.mss", "1")]),
        Wanted("off", 1, 1, configs=[Config("retention.ms", "soon")]),
        Wanted("both", 1, 1, [CreateTopicsRequest.Assignment(0, [0])]),
        Wanted("far", -1, -1, [CreateTopicsRequest.Assignment(0, [7])]),
        Wanted("__cluster_metadata", 1, 1),
    )
    assert {name: answer.error_code for name, answer in answers.items()} == {
        "old": ErrorCode.TOPIC_ALREADY_EXISTS,
        "good": ErrorCode.NONE,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "none": ErrorCode.INVALID_PARTITIONS,
        "wide": ErrorCode.INVALID_REPLICATION_FACTOR,
        "odd": ErrorCode.INVALID_CONFIG,
        "off": ErrorCode.INVALID_CONFIG,
        "both": ErrorCode.INVALID_REQUEST,
        "far": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "__cluster_metadata": ErrorCode.INVALID_REQUEST,
    }
    assert "did you mean retention.ms?" in (answers["odd"].error_message or "")
    assert set(harness.broker.cluster.image.topics) == {"old", "good"}


@with_harness
async def test_a_name_given_twice_is_refused_and_answered_once(harness: BrokerHarness) -> None:
    """librdkafka treats two results for one topic as a broken response."""
    answers = await create(harness, Wanted("a", 1, 1), Wanted("b", 1, 1), Wanted("a", 2, 1))
    assert answers["a"].error_code == ErrorCode.INVALID_REQUEST
    assert answers["b"].error_code == ErrorCode.NONE
    assert set(harness.broker.cluster.image.topics) == {"b"}


@with_harness
async def test_names_that_collide_in_metrics_are_refused_within_a_request(
    harness: BrokerHarness,
) -> None:
    """The same rule holds against existing topics. Of a.b and a_b only the first is created."""
    answers = await create(harness, Wanted("a.b", 1, 1), Wanted("a_b", 1, 1))
    assert answers["a.b"].error_code == ErrorCode.NONE
    assert answers["a_b"].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@with_harness
async def test_validate_only_creates_nothing(harness: BrokerHarness) -> None:
    """The response is the same except for the id, because there is none yet."""
    answers = await create(harness, Wanted("good", 3, 1), Wanted("bad", 0, 1), validate_only=True)
    assert (answers["good"].error_code, answers["good"].num_partitions) == (ErrorCode.NONE, 3)
    assert answers["good"].topic_id == bytes(16)
    assert answers["bad"].error_code == ErrorCode.INVALID_PARTITIONS
    assert not harness.broker.cluster.image.topics


@with_harness
async def test_a_request_waits_for_a_controller_to_be_elected(harness: BrokerHarness) -> None:
    """There is none at the start of a cluster, and when the last one has died."""
    image = harness.broker.cluster.image
    known, image.controller = image.controller, None
    asyncio.get_running_loop().call_later(0.1, setattr, image, "controller", known)
    response = await harness.ask(CreateTopicsRequest([Wanted("a", 1, 1)]), 7, CreateTopicsResponse)
    assert [each.error_code for each in response.topics] == [ErrorCode.NONE]


@with_harness
async def test_an_offsets_topic_created_by_a_client_is_compacted(harness: BrokerHarness) -> None:
    """Unless the request sets another policy. In Kafka, groups would lose their offsets after a
    week.
    """
    await harness.create("__consumer_offsets", 5)
    topic = harness.broker.cluster.image.topics["__consumer_offsets"]
    assert topic.configs == {"cleanup.policy": "compact"}


@with_harness_of(brokers=3)
async def test_the_replica_assignment_of_a_request_is_used(harness: BrokerHarness) -> None:
    assigned = [
        CreateTopicsRequest.Assignment(1, [0]),
        CreateTopicsRequest.Assignment(0, [2]),
    ]
    answer = (await create(harness, Wanted("orders", -1, -1, assigned)))["orders"]
    assert (answer.num_partitions, answer.replication_factor) == (2, 1)
    partitions = harness.broker.cluster.image.topics["orders"].partitions
    assert [partition.replicas for partition in partitions] == [(2,), (0,)]
    assert [partition.leader for partition in partitions] == [2, 0]


@with_harness_of(brokers=3)
async def test_each_replica_of_a_new_partition_is_on_another_broker(harness: BrokerHarness) -> None:
    """All of them are in sync at first. More replicas than brokers is
    INVALID_REPLICATION_FACTOR.
    """
    answers = await create(harness, Wanted("orders", 1, 3), Wanted("many", 1, 4))
    assert (answers["orders"].error_code, answers["orders"].replication_factor) == (0, 3)
    assert answers["many"].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    (partition,) = harness.broker.cluster.image.topics["orders"].partitions
    assert sorted(partition.replicas) == sorted(partition.isr) == [0, 1, 2]
    assert partition.leader == partition.replicas[0]


def test_a_request_too_large_for_one_commit_is_split(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of changes and by bytes: transactions of the metadata store are limited in
    size.
    """

    async def scenario(harness: BrokerHarness) -> None:
        before = harness.broker.cluster.image.revision
        answers = await create(harness, *(Wanted(f"t{at}", 1, 1) for at in range(7)))
        assert {answer.error_code for answer in answers.values()} == {ErrorCode.NONE}
        assert len(harness.broker.cluster.image.topics) == 7
        assert harness.broker.cluster.image.revision - before == 3

        monkeypatch.setattr(admin_requests, "COMMIT_BYTES_MAX", 1)
        before = harness.broker.cluster.image.revision
        await create(harness, *(Wanted(f"u{at}", 1, 1) for at in range(4)))
        assert harness.broker.cluster.image.revision - before == 4

    monkeypatch.setattr(admin_requests, "COMMIT_CHANGES_MAX", 3)
    with_harness(scenario)(tmp_path_factory.mktemp("harness"))


@with_harness
async def test_a_large_request_is_one_commit(harness: BrokerHarness) -> None:
    """Fifty topics at once cost about as much as one."""
    before = harness.broker.cluster.image.revision
    await create(harness, *(Wanted(f"t{at}", 1, 1) for at in range(50)))
    assert len(harness.broker.cluster.image.topics) == 50
    assert harness.broker.cluster.image.revision - before == 1


@with_harness_of(brokers=2)
async def test_every_broker_executes_admin_requests(harness: BrokerHarness) -> None:
    """Clients may connect to any broker; it need not be the controller."""
    request = CreateTopicsRequest([Wanted("a", 2, 1), Wanted("b", 1, 1)])
    response = await harness.ask(request, 7, CreateTopicsResponse, broker=1)
    assert [each.error_code for each in response.topics] == [ErrorCode.NONE] * 2
    await harness.until(lambda: set(harness.broker.cluster.image.topics) == {"a", "b"})
    assert harness.broker.cluster.image.controller == harness.brokers[1].cluster.image.controller
    gone = DeleteTopicsRequest([DeleteTopicsRequest.Topic("a")])
    deleted = await harness.ask(gone, 6, DeleteTopicsResponse, broker=1)
    assert deleted.responses[0].error_code == ErrorCode.NONE


@with_harness
async def test_without_a_controller_nothing_is_changed(harness: BrokerHarness) -> None:
    """The error is NOT_CONTROLLER, which clients retry. It is sent after a wait, because usually a
    new controller is elected soon.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.broker.control.controller.CONTROLLER_WAIT_S", 0.1)
        patch.setattr(harness.broker.cluster.image, "controller", None)
        response = await harness.ask(
            CreateTopicsRequest([Wanted("a", 1, 1)]), 7, CreateTopicsResponse
        )
    assert [each.error_code for each in response.topics] == [ErrorCode.NOT_CONTROLLER]
    assert not harness.broker.cluster.image.topics


@with_harness
async def test_a_deleted_topic_is_gone_from_the_image_the_broker_and_the_disk(
    harness: BrokerHarness,
) -> None:
    topic_id = await harness.create("orders", 2)
    await harness.produce("orders", [b"x"])
    root = "/broker-0/logs"
    assert "orders-0" in harness.disks[0].listdir(root)
    response = await harness.ask(DeleteTopicsRequest([Doomed("orders")]), 6, DeleteTopicsResponse)
    (answer,) = response.responses
    assert (answer.name, answer.topic_id) == ("orders", topic_id)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    assert not harness.broker.cluster.image.topics
    assert harness.broker.replicas.get("orders", 0) is None
    assert "orders-0" not in harness.disks[0].listdir(root)
    await harness.until(
        lambda: not any("orders" in each for each in harness.disks[0].listdir(root))
    )


@with_harness
async def test_removing_deleted_files_does_not_block_other_topics(harness: BrokerHarness) -> None:
    """Removing large files takes time. Meanwhile other topics are created and written, even one of
    the same name. If one removal fails, the next one is still done.
    """
    await harness.create("orders")
    released = asyncio.Event()
    replicas, tried = harness.broker.replicas, []
    run = replicas._env.executor.run

    async def slow(work: Callable[[], Any]) -> Any:
        if "LogDirectory._hide" not in getattr(work, "__qualname__", ""):
            return await run(work)
        tried.append(work)
        await released.wait()
        if len(tried) == 1:
            raise OSError("the disk is having a bad day")
        return await run(work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas._env.executor, "run", slow)
        for _ in range(2):
            assert await delete(harness, Doomed("orders")) == [("orders", ErrorCode.NONE)]
            await harness.create("orders")
            assert await harness.produce("orders", [b"z"]) == 0
        assert len(tried) == 1
        released.set()
        await harness.until(lambda: len(tried) == 2)
        names = harness.disks[0].listdir
        await harness.until(lambda: sum("-delete" in each for each in names("/broker-0/logs")) == 1)


@with_harness
async def test_a_topic_created_again_has_another_id_and_starts_at_offset_zero(
    harness: BrokerHarness,
) -> None:
    first = await harness.create("orders")
    await harness.produce("orders", [b"x", b"y"])
    assert await delete(harness, Doomed("orders")) == [("orders", ErrorCode.NONE)]
    assert await harness.create("orders") != first
    assert await harness.produce("orders", [b"z"]) == 0


@with_harness
async def test_deleting_a_topic_deletes_the_committed_offsets_for_it(
    harness: BrokerHarness,
) -> None:
    """A group that reads a new topic of the same name starts from the beginning. Its other offsets
    stay.
    """
    await harness.create("__consumer_offsets")
    await harness.create("orders")
    await harness.create("events")
    await harness.until(lambda: bool(harness.services.groups.loaded()))
    partition = OffsetCommitRequest.Partition(0, committed_offset=5)
    request = OffsetCommitRequest(
        "billing",
        topics=[OffsetCommitRequest.Topic(name, partitions=[partition]) for name in TOPICS],
    )
    committed = await harness.ask(request, 8, OffsetCommitResponse)
    assert [topic.partitions[0].error_code for topic in committed.topics] == [0, 0]
    await delete(harness, Doomed("orders"))
    offsets_log = harness.hosted("__consumer_offsets").log
    await harness.until_synced("__consumer_offsets", offsets_log.end_offset)
    asked = OffsetFetchRequest("billing", [OffsetFetchRequest.Topic(name, [0]) for name in TOPICS])
    fetched = await harness.ask(asked, 7, OffsetFetchResponse)
    offsets = {topic.name: topic.partitions[0].committed_offset for topic in fetched.topics}
    assert offsets == {"orders": -1, "events": 5}


@with_harness
async def test_topics_are_deleted_by_id(harness: BrokerHarness) -> None:
    """The response has both name and id. An unknown id is answered with UNKNOWN_TOPIC_ID and no
    name.
    """
    topic_id = await harness.create("orders")
    answers = await delete(harness, Doomed(None, topic_id), Doomed(None, b"?" * 16))
    assert answers == [("orders", ErrorCode.NONE), (None, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert not harness.broker.cluster.image.topics


@pytest.mark.parametrize("version", range(1, 7))
def test_every_version_of_delete_topics_deletes(
    version: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Below version 6, the request is a list of names."""

    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders")
        names = ["orders", "none"]
        request = DeleteTopicsRequest(topic_names=names)
        if version == 6:
            request = DeleteTopicsRequest([Doomed(name) for name in names])
        response = await harness.ask(request, version, DeleteTopicsResponse)
        assert [(each.name, each.error_code) for each in response.responses] == [
            ("orders", ErrorCode.NONE),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]

    with_harness(scenario)(tmp_path_factory.mktemp("harness"))


@with_harness
async def test_a_topic_named_twice_is_not_deleted(harness: BrokerHarness) -> None:
    """Twice by name, or once by name and once by id. The rest of the request is carried out."""
    await harness.create("a")
    topic_id = await harness.create("b")
    await harness.create("c")
    answers = await delete(
        harness, Doomed("a"), Doomed("a"), Doomed("b"), Doomed(None, topic_id), Doomed("c")
    )
    assert answers == [
        ("a", ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.INVALID_REQUEST),
        (None, ErrorCode.INVALID_REQUEST),
        ("c", ErrorCode.NONE),
    ]
    assert set(harness.broker.cluster.image.topics) == {"a", "b"}


@with_harness
async def test_a_topic_to_delete_is_given_by_either_name_or_id(harness: BrokerHarness) -> None:
    """Both, or neither, is INVALID_REQUEST."""
    topic_id = await harness.create("a")
    answers = await delete(harness, Doomed("a", topic_id), Doomed(None))
    assert answers == [("a", ErrorCode.INVALID_REQUEST), (None, ErrorCode.INVALID_REQUEST)]
    assert set(harness.broker.cluster.image.topics) == {"a"}


@with_harness
async def test_internal_topics_cannot_be_deleted(harness: BrokerHarness) -> None:
    """All groups would lose their offsets."""
    await harness.create("__consumer_offsets")
    answers = await delete(harness, Doomed("__consumer_offsets"))
    assert answers == [("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION)]
    assert "__consumer_offsets" in harness.broker.cluster.image.topics


@pytest.mark.parametrize(
    ("version", "code"),
    [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)],
)
def test_deletion_of_topics_can_be_disabled(
    version: int, code: ErrorCode, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """delete.topic.enable=false. Clients below version 3 do not know TOPIC_DELETION_DISABLED."""

    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders")
        request = DeleteTopicsRequest(topic_names=["orders"])
        response = await harness.ask(request, version, DeleteTopicsResponse)
        assert [(each.name, each.error_code) for each in response.responses] == [("orders", code)]
        assert "orders" in harness.broker.cluster.image.topics

    run_case = with_harness_of(kafka={"delete.topic.enable": "false"})(scenario)
    run_case(tmp_path_factory.mktemp("harness"))


@with_harness
async def test_a_topic_deleted_while_changes_wait_is_not_hosted_again(
    harness: BrokerHarness,
) -> None:
    """A restarted broker may see a topic, its deletion and its re-creation in one batch of changes.
    Only the last state counts. The broker must not go on leading the old topic under the new
    one's name.
    """
    await harness.create("orders")
    replicas = harness.broker.replicas
    old = harness.broker.cluster.image.topics["orders"]
    assert await delete(harness, Doomed("orders")) == [("orders", ErrorCode.NONE)]
    replicas.review(TopicChange("orders", old, old))
    replicas.review(TopicChange("orders", old, None))
    await replicas.settled()
    assert replicas.get("orders", 0) is None
    await harness.create("orders")
    hosted = replicas.get("orders", 0)
    assert hosted is not None
    assert hosted.topic_id == harness.broker.cluster.image.topics["orders"].topic_id
