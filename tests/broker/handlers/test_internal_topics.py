"""Internal topics are created with all their replicas, or not yet (KIP-115)."""

from __future__ import annotations

import logging

import pytest

from broker.replication.test_replication import on_three
from broker.three_brokers import ThreeBrokers
from penstock.metadata.model import OFFSETS_TOPIC
from penstock.txns.formats import TOPIC
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

KINDS = {OFFSETS_TOPIC: 0, TOPIC: 1}
ASKED = 5


async def find(cluster: ThreeBrokers, topic: str) -> FindCoordinatorResponse.Coordinator:
    request = FindCoordinatorRequest(key_type=KINDS[topic], coordinator_keys=["g"])
    answer = await cluster.running[0].ask(request, 4, FindCoordinatorResponse)
    return answer.coordinators[0]


@pytest.mark.parametrize("topic", KINDS)
def test_a_coordinator_is_not_available_before_there_are_brokers_for_all_replicas(
    topic: str, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """If the topic were created while one of three brokers is up, it would keep one replica for
    good. The error message says what to do. The log says it in one line, however often clients
    ask.
    """

    @on_three(
        offsets_topic_num_partitions="2",
        transaction_state_log_num_partitions="2",
        broker_session_timeout_ms="1000",
    )
    async def run_case(cluster: ThreeBrokers) -> None:
        for broker_id in (1, 2):
            await cluster.nodes[broker_id].stop()
        await cluster.until(lambda: len(cluster.broker(0).cluster.image.living) == 1)
        for _ in range(ASKED):
            refused = await find(cluster, topic)
            assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert f"{topic} cannot be created yet: it needs 3 brokers" in (
                refused.error_message or ""
            )
        assert topic not in cluster.broker(0).cluster.image.topics
        lines = [
            each for each in caplog.records if f"{topic} cannot be created" in each.getMessage()
        ]
        assert len(lines) == 1
        await cluster.start(1)
        await cluster.start(2)
        while (found := await find(cluster, topic)).error_code != 0:
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        for index in range(2):
            assert len(cluster.partition(topic, index).replicas) == 3

    with caplog.at_level(logging.WARNING):
        run_case(tmp_path_factory.mktemp("cluster"))
