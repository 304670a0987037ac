"""Dead letters with an authorizer: brokers write them, and clients cannot do so in their name. A
group gets a dead-letter topic only from a person who may write to it."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from broker.access.clients import AUTHORIZER, Client, create, entry
from broker.access.test_brokers import ask_as_admin
from broker.harness import BrokerHarness, with_harness_of
from broker.shares.share_client import ON
from broker.shares.test_dead_letter_failover import SETTINGS, bootstrap, letters
from broker.three_brokers import ThreeBrokers, three_brokers
from penstock import BrokerError, aio
from penstock.broker.identity import ANONYMOUS
from penstock.broker.shares.letter_sender import LETTERS_CLIENT
from penstock.metadata.config_changes import ConfigOperation
from penstock.metadata.config_changes import ResourceType as ConfigResource
from penstock.metadata.dead_letter_configs import DEAD_LETTER_TOPIC
from penstock.records.record import Record, build_batch
from penstock.security.acls import AclOperation, ResourceType
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreateAclsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ProduceRequest,
    ProduceResponse,
)

secured = with_harness_of(kafka={**AUTHORIZER, **ON})
GROUP, LETTERS = "workers", "dlq.orders"
LOCK = "share.record.lock.duration.ms"
SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE


def edits(*given: tuple[str, ConfigOperation, str | None]) -> IncrementalAlterConfigsRequest:
    configs = [IncrementalAlterConfigsRequest.Config(*each) for each in given]
    resource = IncrementalAlterConfigsRequest.Resource(ConfigResource.GROUP, GROUP, configs)
    return IncrementalAlterConfigsRequest([resource])


async def edit(
    client: Client, *given: tuple[str, ConfigOperation, str | None]
) -> tuple[ErrorCode, str | None]:
    response = await client.ask(edits(*given), 1, IncrementalAlterConfigsResponse)
    (answer,) = response.responses
    return ErrorCode(answer.error_code), answer.error_message


def overrides(harness: BrokerHarness) -> dict[str, str]:
    return dict(harness.broker.cluster.image.group_configs.get(GROUP, {}))


# -- who may name a dead-letter topic -----------------------------------------------------------


@secured
async def test_a_dead_letter_topic_is_set_only_with_the_right_to_write_to_it(
    harness: BrokerHarness,
) -> None:
    await create(
        harness,
        [
            entry("User:ann", ResourceType.GROUP, GROUP, AclOperation.ALTER_CONFIGS),
            entry("User:ann", ResourceType.TOPIC, "dlq.hers", AclOperation.WRITE),
            entry("User:tom", ResourceType.TOPIC, LETTERS, AclOperation.WRITE),
        ],
    )
    ann, tom = Client(harness, "User:ann"), Client(harness, "User:tom")
    code, text = await edit(ann, (DEAD_LETTER_TOPIC, SET, LETTERS), (LOCK, SET, "20000"))
    assert code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert f"needs the right to write to the topic '{LETTERS}'" in (text or "")
    assert overrides(harness) == {}, "a resource is changed as a whole, or not at all"
    code, _ = await edit(tom, (DEAD_LETTER_TOPIC, SET, LETTERS))
    assert code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert await edit(ann, (DEAD_LETTER_TOPIC, SET, "dlq.hers")) == (ErrorCode.NONE, None)
    assert overrides(harness) == {DEAD_LETTER_TOPIC: "dlq.hers"}


@secured
async def test_other_settings_and_removing_the_topic_do_not_need_the_right(
    harness: BrokerHarness,
) -> None:
    """Also not AlterConfigs, which names all settings, and so the topic that is set already."""
    right = entry("User:ann", ResourceType.GROUP, GROUP, AclOperation.ALTER_CONFIGS)
    await create(harness, [right])
    admin, ann = Client(harness, ANONYMOUS), Client(harness, "User:ann")
    assert await edit(admin, (DEAD_LETTER_TOPIC, SET, LETTERS)) == (ErrorCode.NONE, None)
    assert await edit(ann, (LOCK, SET, "20000")) == (ErrorCode.NONE, None)
    for topic, expected in (
        (LETTERS, ErrorCode.NONE),
        ("dlq.other", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ):
        configs = [AlterConfigsRequest.Config(DEAD_LETTER_TOPIC, topic)]
        resource = AlterConfigsRequest.Resource(ConfigResource.GROUP, GROUP, configs)
        answer = await ann.ask(AlterConfigsRequest([resource]), 2, AlterConfigsResponse)
        assert answer.responses[0].error_code == expected
        assert overrides(harness) == {DEAD_LETTER_TOPIC: LETTERS}
    assert await edit(ann, (DEAD_LETTER_TOPIC, DELETE, None)) == (ErrorCode.NONE, None)
    assert overrides(harness) == {}


# -- who may write letters ----------------------------------------------------------------------


def letter_to(topic: str) -> ProduceRequest:
    part = ProduceRequest.Partition(0, build_batch([Record(0, 1, None, b"forged")]))
    return ProduceRequest(None, -1, 10_000, [ProduceRequest.Topic(topic, partition_data=[part])])


async def written(client: Client, topic: str) -> ErrorCode:
    response = await client.ask(letter_to(topic), 9, ProduceResponse)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


@secured
async def test_a_client_under_the_name_of_the_brokers_has_no_right_by_it(
    harness: BrokerHarness,
) -> None:
    """It needs the right to act as a broker, and the listener of brokers. Internal topics are
    closed even then."""
    await harness.create(LETTERS, configs={"errors.deadletterqueue.group.enable": "true"})
    right = entry("User:broker", ResourceType.CLUSTER, "", AclOperation.CLUSTER_ACTION)
    await create(harness, [right])
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    mallory = Client(harness, "User:mallory", client_id=LETTERS_CLIENT)
    assert await written(mallory, LETTERS) is denied
    assert await written(Client(harness, "User:broker"), LETTERS) is denied
    broker = Client(harness, "User:broker", client_id=LETTERS_CLIENT)
    assert await written(broker, LETTERS) is ErrorCode.NONE
    assert await written(broker, "__consumer_offsets") is ErrorCode.INVALID_TOPIC_EXCEPTION
    elsewhere = Client(harness, "User:broker", client_id=LETTERS_CLIENT, listener="PUBLIC")
    assert await written(elsewhere, LETTERS) is denied


# -- letters between brokers --------------------------------------------------------------------


async def create_topic(cluster: ThreeBrokers, name: str, **configs: str) -> None:
    texts = [CreateTopicsRequest.Config(*each) for each in configs.items()]
    asked = CreateTopicsRequest.Topic(name, 1, 3, configs=texts)
    made = await ask_as_admin(cluster, CreateTopicsRequest([asked], 10_000), 7)
    assert isinstance(made, CreateTopicsResponse)
    assert not made.topics[0].error_code
    await cluster.until(lambda: cluster._is_known(name, 0))


async def set_up(cluster: ThreeBrokers) -> str:
    """Creates a queue and a dead-letter topic whose leaders differ. Brokers and workers are the
    same anonymous user: it may act as a broker, and use the queue, but not the other topic."""
    await create_topic(cluster, "t")
    for name in map("dlq.{}".format, count()):
        await create_topic(cluster, name, **{"errors.deadletterqueue.group.enable": "true"})
        if cluster.partition(name).leader != cluster.partition("t").leader:
            break
    rights = [
        entry(ANONYMOUS, ResourceType.CLUSTER, "", AclOperation.CLUSTER_ACTION),
        entry(ANONYMOUS, ResourceType.GROUP, "t", AclOperation.READ),
        entry(ANONYMOUS, ResourceType.TOPIC, "t", AclOperation.READ),
        entry(ANONYMOUS, ResourceType.TOPIC, "t", AclOperation.WRITE),
    ]
    await ask_as_admin(cluster, CreateAclsRequest(rights), 3)
    values = {DEAD_LETTER_TOPIC: name, "share.auto.offset.reset": "earliest"}
    configs = [
        IncrementalAlterConfigsRequest.Config(key, SET, value) for key, value in values.items()
    ]
    resource = IncrementalAlterConfigsRequest.Resource(ConfigResource.GROUP, "t", configs)
    altered = await ask_as_admin(cluster, IncrementalAlterConfigsRequest([resource]), 1)
    assert isinstance(altered, IncrementalAlterConfigsResponse)
    assert not altered.responses[0].error_code
    await cluster.until(
        lambda: all(
            "t" in cluster.broker(node.broker_id).cluster.image.group_configs
            for node in cluster.running
        )
    )
    return name


async def reject_one(cluster: ThreeBrokers) -> None:
    topic = await set_up(cluster)
    where = bootstrap(cluster)
    async with aio.Queue(where, "t", auto_offset_reset=None) as queue:
        await queue.put(b"x")
        job = await queue.take()
        assert job is not None
        await job.reject()
        await cluster.until(lambda: letters(cluster, topic) == [0])
    async with aio.Producer(where) as producer:
        with pytest.raises(BrokerError):
            await (await producer.send(topic, b"forged"))


def test_letters_are_written_by_brokers_whose_clients_may_not_write_them(tmp_path: Path) -> None:
    settings = {**SETTINGS, "authorizer.class.name": "penstock", "super.users": "User:admin"}

    async def run() -> None:
        async with asyncio.timeout(patient(120.0)), three_brokers(tmp_path, settings) as cluster:
            await reject_one(cluster)

    asyncio.run(run())
