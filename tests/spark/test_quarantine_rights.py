"""Tests which rights a quarantine topic needs, with a secured broker and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from console.secured import Secured, secured_cluster
from penstock.client.errors import BrokerError
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.spark.clients import open_producer
from penstock.spark.deployments.outside_trouble import judged
from penstock.spark.once.asking import run
from penstock.spark.once.protocol import Batch, NotCommitted, SinkRefused, begin, commit
from penstock.spark.options import SinkOptions
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.quarantine_topics import TopicCheck

PASSWORD = "tea-4711-milk"
TOPIC, SINK = "bad-views", "shop-bad-views"
SEES = [(ResourceType.TOPIC, TOPIC, AclOperation.DESCRIBE)]
WRITES = [*SEES, (ResourceType.TOPIC, TOPIC, AclOperation.WRITE)]
ONCE = [
    *WRITES,
    (ResourceType.TOPIC, "__transaction_state", AclOperation.DESCRIBE),
    (ResourceType.TOPIC, "__consumer_offsets", AclOperation.READ),
    (ResourceType.TRANSACTIONAL_ID, f"{SINK}#", AclOperation.WRITE),
    (ResourceType.TRANSACTIONAL_ID, f"{SINK}#", AclOperation.DESCRIBE),
    (ResourceType.GROUP, SINK, AclOperation.READ),
]
"""What docs/SPARK.md says that the user of a pipeline needs."""
ELSEWHERE = (ResourceType.TOPIC, "orders", AclOperation.WRITE)
"""A user who may write nowhere is refused earlier, as by Kafka: it needs IdempotentWrite."""
USERS = {"stranger": [], "viewer": [*SEES, ELSEWHERE], "writer": WRITES, "once": ONCE}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder: Path = tmp_path_factory.mktemp("secured")
    with secured_cluster(folder) as cluster:
        with cluster.admin() as admin:
            admin.create_topic(TOPIC, 1)
            for user, rights in USERS.items():
                admin.upsert_scram_user(user, PASSWORD)
                if rights:
                    admin.create_acls([_allow(user, *right) for right in rights])
        yield cluster


def _allow(user: str, kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        kind,
        PatternType.PREFIXED,
        name,
        f"User:{user}",
        "*",
        operation,
        PermissionType.ALLOW,
    )


def options(secured: Secured, user: str, topic: str = TOPIC) -> SinkOptions:
    login = secured.login(user, None if user == "admin" else PASSWORD)
    client = {name: str(value) for name, value in login.items()}
    client["allow_auto_create_topics"] = "false"
    return SinkOptions(secured.bootstrap, topic, delivery="exactly_once", sink=SINK, client=client)


def test_a_topic_that_the_user_may_not_see_is_reported(secured: Secured) -> None:
    """It is no reason to roll a version back."""
    with pytest.raises(PipelineError, match="this user may not see the topic bad-views") as caught:
        TopicCheck()("views", options(secured, "stranger"))
    assert judged(str(caught.value)).outside
    TopicCheck()("views", options(secured, "viewer"))


def test_a_topic_that_does_not_exist_is_reported(secured: Secured) -> None:
    with pytest.raises(PipelineError, match=r"topic worse for .* of views does not exist"):
        TopicCheck()("views", options(secured, "admin", "worse"))


def test_a_user_who_may_not_write_is_told_the_right(secured: Secured) -> None:
    refused = pytest.raises(BrokerError, match=r"bad-views-0: .* not allowed on this topic")
    with open_producer(options(secured, "viewer")) as producer, refused as caught:
        producer.send(TOPIC, b"x").result()
    assert "penstock acl add" in judged(str(caught.value)).error
    with open_producer(options(secured, "writer")) as producer:
        assert producer.send(TOPIC, b"x").result().topic == TOPIC


def test_exactly_once_needs_rights_on_its_transactional_ids_and_its_group(
    secured: Secured,
) -> None:
    refused = f"take over the sink {SINK}: .* not allowed on this transactional id"
    with pytest.raises(SinkRefused, match=refused) as caught:
        run(options(secured, "writer"), begin(SINK))
    assert "penstock acl add" in judged(str(caught.value)).error
    allowed = options(secured, "once")
    plan = run(allowed, begin(SINK))
    try:
        assert run(allowed, commit(plan, Batch("query", 0), [], "fail"))
    except NotCommitted as error:
        pytest.fail(str(error))
    progress = run(allowed, begin(SINK)).progress
    assert progress is not None and progress.batches == 1
