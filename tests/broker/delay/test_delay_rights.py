"""Who may make a topic a delay topic, and who writes the copies."""

from __future__ import annotations

from broker.access.clients import AUTHORIZER, Client, create, entry
from broker.delay.delay_client import LATER, ORDERS, Sent, alter, batch_of, copies, delay_topic
from broker.harness import BrokerHarness, with_harness_of
from penstock.metadata.delay_configs import DELAY_TARGET
from penstock.security.acls import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ProduceRequest,
    ProduceResponse,
)

ANNA = "User:anna"
TOPIC = ResourceType.TOPIC
with_authorizer = with_harness_of(kafka=AUTHORIZER)


async def set_target(client: Client, target: str, topic: str = LATER) -> tuple[int, str | None]:
    config = IncrementalAlterConfigsRequest.Config(DELAY_TARGET, 0, target)
    resource = IncrementalAlterConfigsRequest.Resource(2, topic, [config])
    request = IncrementalAlterConfigsRequest([resource])
    answer = await client.ask(request, 1, IncrementalAlterConfigsResponse)
    return answer.responses[0].error_code, answer.responses[0].error_message


async def replace_configs(client: Client, target: str) -> int:
    config = AlterConfigsRequest.Config(DELAY_TARGET, target)
    request = AlterConfigsRequest([AlterConfigsRequest.Resource(2, LATER, [config])])
    answer = await client.ask(request, 2, AlterConfigsResponse)
    return answer.responses[0].error_code


async def create_later(client: Client, name: str) -> int:
    config = CreateTopicsRequest.Config(DELAY_TARGET, ORDERS)
    asked = CreateTopicsRequest.Topic(name, 1, 1, configs=[config])
    answer = await client.ask(CreateTopicsRequest([asked]), 7, CreateTopicsResponse)
    return answer.topics[0].error_code


@with_authorizer
async def test_a_target_needs_the_right_to_write_to_it(harness: BrokerHarness) -> None:
    """Otherwise a client could write to any topic, by way of a delay topic."""
    await harness.create(ORDERS)
    await harness.create(LATER)
    rights = [
        entry(ANNA, TOPIC, LATER, AclOperation.ALTER_CONFIGS),
        entry(ANNA, TOPIC, "later2", AclOperation.CREATE),
    ]
    await create(harness, rights)
    anna = Client(harness, ANNA)
    refused = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    code, message = await set_target(anna, ORDERS)
    assert code == refused
    assert "the right to write" in (message or "")
    assert await replace_configs(anna, ORDERS) == refused
    assert await create_later(anna, "later2") == refused
    # The answer does not tell which topics exist.
    assert (await set_target(anna, "nowhere"))[0] == refused
    await create(harness, [entry(ANNA, TOPIC, ORDERS, AclOperation.WRITE)])
    assert await set_target(anna, ORDERS) == (0, None)
    assert await create_later(anna, "later2") == 0


@with_authorizer
async def test_a_target_that_stays_needs_no_right(harness: BrokerHarness) -> None:
    await delay_topic(harness)
    await create(harness, [entry(ANNA, TOPIC, LATER, AclOperation.ALTER_CONFIGS)])
    anna = Client(harness, ANNA)
    assert await set_target(anna, ORDERS) == (0, None)
    assert await replace_configs(anna, ORDERS) == 0
    assert await set_target(anna, "") == (0, None)
    assert (await set_target(anna, ORDERS))[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@with_authorizer
async def test_producers_need_the_right_on_the_delay_topic_only(harness: BrokerHarness) -> None:
    await delay_topic(harness)
    await create(harness, [entry(ANNA, TOPIC, LATER, AclOperation.WRITE)])
    anna = Client(harness, ANNA)
    part = ProduceRequest.Partition(0, batch_of([Sent(b"a")]))
    topics = [ProduceRequest.Topic(LATER, partition_data=[part])]
    answer = await anna.ask(ProduceRequest(None, -1, 10_000, topics), 9, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == 0
    await harness.until(lambda: copies(harness) == [b"a"])
    assert (await alter(harness, LATER, {DELAY_TARGET: ""}))[0] is ErrorCode.NONE


@with_authorizer
async def test_clients_cannot_write_with_the_client_id_of_brokers(harness: BrokerHarness) -> None:
    await delay_topic(harness)
    part = ProduceRequest.Partition(0, batch_of([Sent(b"a")]))
    topics = [ProduceRequest.Topic(ORDERS, partition_data=[part])]
    anna = Client(harness, ANNA, client_id="delay-topics")
    answer = await anna.ask(ProduceRequest(None, -1, 10_000, topics), 9, ProduceResponse)
    code = answer.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
