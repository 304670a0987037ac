"""Broker registrations, the controller and producer ids."""

from __future__ import annotations

import pytest

from penstock.metadata.cluster_values import encode_stopping
from penstock.metadata.image import BrokerChange, Changed
from penstock.metadata.keys import CONTROLLER_KEY, stopping_key
from penstock.metadata.membership import (
    announce_stop,
    claim_controller,
    create_cluster,
    register_broker,
)
from penstock.metadata.model import BrokerInfo, Controller
from penstock.metadata.producer_ids import ProducerIdBlock, allocate_producer_ids
from penstock.wire.errors import ErrorCode, KafkaError

from .cluster import Cluster, Conflict


def broker(number: int, broker_id: int = 1, host: str = "host", port: int = 9092) -> BrokerInfo:
    return BrokerInfo(broker_id, host, port, None, number.to_bytes(16, "big"))


def claim(cluster: Cluster, broker_id: int) -> Controller:
    decision = claim_controller(cluster.image, broker_id)
    assert decision is not None
    epoch = cluster.commit(decision)
    term = cluster.image.controller
    assert term is not None
    assert (term.broker_id, term.epoch) == (broker_id, epoch)
    return term


def test_the_cluster_keeps_its_first_id() -> None:
    """If two brokers find the store empty, one of them names the cluster."""
    cluster = Cluster()
    late = create_cluster(cluster.image, "late")
    assert cluster.commit(create_cluster(cluster.image, "first")) == "first"
    with pytest.raises(Conflict):
        cluster.commit(late)
    assert create_cluster(cluster.image, "late").result == "first"
    assert create_cluster(cluster.image, "late").changes == ()


def test_a_registration_belongs_to_the_brokers_lease() -> None:
    """The broker epoch is the revision of the commit, so a later one is higher."""
    cluster = Cluster()
    decision = register_broker(cluster.image, broker(10))
    assert [change.leased for change in decision.changes] == [True]
    cluster.commit(decision)
    first = cluster.image.brokers[1].broker_epoch
    cluster.commit(register_broker(cluster.image, broker(10)))
    assert cluster.image.brokers[1].broker_epoch > first


def test_a_broker_id_is_taken_while_its_broker_is_alive() -> None:
    """Another process must hold the lock of the data directory to replace it."""
    cluster = Cluster()
    cluster.commit(register_broker(cluster.image, broker(10)))
    with pytest.raises(KafkaError, match="host:9092") as caught:
        register_broker(cluster.image, broker(11))
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.commit(register_broker(cluster.image, broker(11), take_over=True))
    assert cluster.image.brokers[1].incarnation_id == broker(11).incarnation_id


@pytest.mark.parametrize(
    "bad", [broker(1, -1), broker(1, 2**31), broker(1, host=""), broker(1, port=0)]
)
def test_an_unreachable_broker_is_not_registered(bad: BrokerInfo) -> None:
    """Ids and addresses are validated before other brokers see them."""
    with pytest.raises(KafkaError) as caught:
        register_broker(Cluster().image, bad)
    assert caught.value.code is ErrorCode.INVALID_REGISTRATION


def test_a_broker_announces_that_it_is_stopping() -> None:
    """The key belongs to its lease, and the broker epoch does not change. Only the registered run
    of the broker can announce it."""
    cluster = Cluster(brokers=2)
    epoch = cluster.image.brokers[1].broker_epoch
    decision = announce_stop(cluster.image, 1, epoch)
    assert [change.leased for change in decision.changes] == [True]
    assert cluster.commit(decision)
    assert cluster.image.stopping == {1}
    assert cluster.image.brokers[1].broker_epoch == epoch
    assert list(cluster.image.living) == [0]
    assert announce_stop(cluster.image, 1, epoch).changes == ()
    assert not announce_stop(cluster.image, 1, epoch - 1).result
    assert not announce_stop(cluster.image, 7, 1).result


def test_a_restart_cancels_the_announcement_of_a_stop() -> None:
    """The key belongs to the lease of the former run, which may not have expired yet."""
    cluster = Cluster(brokers=2)
    late = announce_stop(cluster.image, 1, cluster.image.brokers[1].broker_epoch)
    cluster.commit(announce_stop(cluster.image, 1, cluster.image.brokers[1].broker_epoch))
    cluster.start(1)
    assert cluster.image.stopping == frozenset()
    assert cluster.reloaded().stopping == frozenset()
    with pytest.raises(Conflict):
        cluster.commit(late)
    cluster.commit(announce_stop(cluster.image, 1, cluster.image.brokers[1].broker_epoch))
    assert cluster.image.stopping == cluster.reloaded().stopping == {1}


def test_a_broker_that_begins_to_stop_is_reported_as_changed() -> None:
    """So code that watches brokers looks again. An event that changes nothing is not reported."""
    cluster = Cluster(brokers=1)
    broker = cluster.image.brokers[0]
    told = Changed(brokers=(BrokerChange(0, broker, broker),))
    value = encode_stopping(broker.broker_epoch)
    assert cluster.image.apply(stopping_key(0), value, 50) == told
    assert cluster.image.apply(stopping_key(0), value, 51) == Changed()
    assert cluster.image.apply(stopping_key(0), None, 52) == told
    assert cluster.image.apply(stopping_key(0), encode_stopping(7), 53) == Changed()
    assert cluster.image.apply(stopping_key(9), encode_stopping(7), 54) == Changed()


def test_one_broker_is_the_controller() -> None:
    """If two brokers claim it, one succeeds and the other finds it taken."""
    cluster = Cluster(brokers=2)
    rival = claim_controller(cluster.image, 1)
    assert rival is not None
    assert [change.leased for change in rival.changes] == [True, False]
    assert claim(cluster, 0).epoch == 1
    with pytest.raises(Conflict):
        cluster.commit(rival)
    assert claim_controller(cluster.image, 1) is None
    assert claim_controller(cluster.image, 0) is None


def test_controller_epochs_always_increase() -> None:
    """The last one is remembered when the claim is deleted with its lease."""
    cluster = Cluster(brokers=2)
    terms = []
    for broker_id in (0, 1, 0):
        terms.append(claim(cluster, broker_id))
        cluster.revision += 1
        del cluster.entries[CONTROLLER_KEY]
        cluster.image.apply(CONTROLLER_KEY, None, cluster.revision)
    assert [term.epoch for term in terms] == [1, 2, 3]


def test_a_restarted_controller_replaces_its_own_claim() -> None:
    """It need not wait until its former lease expires. The epoch still increases."""
    cluster = Cluster(brokers=1)
    first = claim(cluster, 0)
    cluster.start(0)
    second = claim(cluster, 0)
    assert second.epoch == first.epoch + 1
    assert second.revision > first.revision


def test_only_a_registered_broker_may_claim() -> None:
    """And only in the run that is registered when the claim is committed."""
    cluster = Cluster(brokers=1)
    with pytest.raises(KafkaError) as caught:
        claim_controller(cluster.image, 7)
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    decision = claim_controller(cluster.image, 0)
    assert decision is not None
    cluster.kill(0)
    with pytest.raises(Conflict):
        cluster.commit(decision)


def test_producer_ids_are_given_out_once() -> None:
    """In blocks. If two brokers ask at the same time, one must ask again."""
    cluster = Cluster()
    late = allocate_producer_ids(cluster.image, b"a" * 16)
    first = allocate_producer_ids(cluster.image, b"b" * 16)
    assert first.changes != late.changes
    assert cluster.commit(first) == ProducerIdBlock(0, 1000)
    with pytest.raises(Conflict):
        cluster.commit(late)
    second = allocate_producer_ids(cluster.image, b"b" * 16, 5)
    assert cluster.commit(second) == ProducerIdBlock(1000, 5)
    assert allocate_producer_ids(cluster.reloaded(), b"b" * 16).result.first == 1005


def test_producer_ids_do_not_wrap_around() -> None:
    """They have 63 bits on the wire."""
    cluster = Cluster()
    cluster.image.next_producer_id = 2**63 - 500
    with pytest.raises(KafkaError, match="used up"):
        allocate_producer_ids(cluster.image, b"b" * 16)
