"""Removing what the metadata stores about brokers that are gone for good."""

from __future__ import annotations

import pytest

from penstock.metadata.config_values import encode_configs
from penstock.metadata.decisions import Change, Decision
from penstock.metadata.departure import forget_broker
from penstock.metadata.keys import broker_config_key
from penstock.wire.errors import ErrorCode, KafkaError

from .cluster import Cluster


def configured(cluster: Cluster, broker_id: int) -> None:
    key = broker_config_key(broker_id)
    cluster.commit(Decision((Change(key, encode_configs({"log.retention.ms": "1"}), 0),), None))


def test_the_configs_of_a_broker_are_deleted_with_it() -> None:
    """Otherwise the next broker with that id would have them."""
    cluster = Cluster(brokers=2)
    configured(cluster, 1)
    cluster.kill(1)
    cluster.commit(forget_broker(cluster.image, 1))
    assert not cluster.image.broker_configs
    with pytest.raises(KafkaError, match="There is no broker 1") as caught:
        forget_broker(cluster.image, 1)
    assert caught.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(("alive", "words"), [(True, "is running"), (False, "1 .*t-0")])
def test_a_broker_that_is_still_in_use_cannot_be_removed(alive: bool, words: str) -> None:
    """Because it runs, or because it has replicas."""
    cluster = Cluster(brokers=1)
    cluster.create("t")
    configured(cluster, 0)
    if not alive:
        cluster.kill(0)
    with pytest.raises(KafkaError, match=words) as caught:
        forget_broker(cluster.image, 0)
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    assert cluster.image.broker_configs
