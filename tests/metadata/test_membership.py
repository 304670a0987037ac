"""Brokers, the controller and producer ids."""

from __future__ import annotations

import pytest

from penstock.metadata.keys import CONTROLLER_KEY, broker_key
from penstock.metadata.membership import (
    claim_controller,
    create_cluster,
    register_broker,
    resign_controller,
    unregister_broker,
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
    """Of two brokers that found the store empty, one names the cluster."""
    cluster = Cluster()
    late = create_cluster(cluster.image, "late")
    assert cluster.commit(create_cluster(cluster.image, "first")) == "first"
    with pytest.raises(Conflict):
        cluster.commit(late)
    assert create_cluster(cluster.image, "late").result == "first"
    assert create_cluster(cluster.image, "late").changes == ()


def test_a_registration_goes_under_the_brokers_lease() -> None:
    """Its epoch is the revision of the commit, so a later one is higher."""
    cluster = Cluster()
    decision = register_broker(cluster.image, broker(10))
    assert [change.leased for change in decision.changes] == [True]
    cluster.commit(decision)
    first = cluster.image.brokers[1].broker_epoch
    cluster.commit(register_broker(cluster.image, broker(10)))
    assert cluster.image.brokers[1].broker_epoch > first


def test_a_broker_id_is_taken_while_its_broker_lives() -> None:
    """Another incarnation needs to hold the data directory's lock to replace it."""
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
def test_a_broker_nobody_could_reach_is_not_registered(bad: BrokerInfo) -> None:
    """Ids and addresses are checked before they are everybody's problem."""
    with pytest.raises(KafkaError) as caught:
        register_broker(Cluster().image, bad)
    assert caught.value.code is ErrorCode.INVALID_REGISTRATION


def test_a_broker_unregisters_itself_and_not_its_successor() -> None:
    """A late goodbye of a former incarnation does nothing."""
    cluster = Cluster()
    cluster.commit(register_broker(cluster.image, broker(11)))
    assert unregister_broker(cluster.image, 1, broker(10).incarnation_id).changes == ()
    cluster.commit(unregister_broker(cluster.image, 1, broker(11).incarnation_id))
    assert broker_key(1) not in cluster.entries


def test_one_broker_is_the_controller() -> None:
    """Of two that claim it, one succeeds; the other finds it taken."""
    cluster = Cluster(brokers=2)
    rival = claim_controller(cluster.image, 1)
    assert rival is not None
    assert [change.leased for change in rival.changes] == [True, False]
    assert claim(cluster, 0).epoch == 1
    with pytest.raises(Conflict):
        cluster.commit(rival)
    assert claim_controller(cluster.image, 1) is None
    assert claim_controller(cluster.image, 0) is None


def test_controller_epochs_rise_for_ever() -> None:
    """The last one is remembered when the claim goes with its lease."""
    cluster = Cluster(brokers=2)
    terms = []
    for broker_id in (0, 1, 0):
        terms.append(claim(cluster, broker_id))
        cluster.revision += 1
        del cluster.entries[CONTROLLER_KEY]
        cluster.image.apply(CONTROLLER_KEY, None, cluster.revision)
    assert [term.epoch for term in terms] == [1, 2, 3]


def test_a_restarted_controller_replaces_its_own_claim() -> None:
    """It need not wait for the lease of its former life; the epoch rises all the same."""
    cluster = Cluster(brokers=1)
    first = claim(cluster, 0)
    cluster.start(0)
    second = claim(cluster, 0)
    assert second.epoch == first.epoch + 1
    assert second.revision > first.revision


def test_only_a_registered_broker_may_claim() -> None:
    """And only in the incarnation that is registered when the claim is committed."""
    cluster = Cluster(brokers=1)
    with pytest.raises(KafkaError) as caught:
        claim_controller(cluster.image, 7)
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    decision = claim_controller(cluster.image, 0)
    assert decision is not None
    cluster.kill(0)
    with pytest.raises(Conflict):
        cluster.commit(decision)


def test_a_controller_resigns_its_own_term_only() -> None:
    """Then the next need not wait."""
    cluster = Cluster(brokers=2)
    term = claim(cluster, 0)
    cluster.commit(resign_controller(cluster.image, term))
    assert cluster.image.controller is None
    claim(cluster, 1)
    assert resign_controller(cluster.image, term).changes == ()


def test_producer_ids_are_given_out_once() -> None:
    """In blocks; of two brokers that ask at once, one must ask again."""
    cluster = Cluster()
    late = allocate_producer_ids(cluster.image)
    assert cluster.commit(allocate_producer_ids(cluster.image)) == ProducerIdBlock(0, 1000)
    with pytest.raises(Conflict):
        cluster.commit(late)
    assert cluster.commit(allocate_producer_ids(cluster.image, 5)) == ProducerIdBlock(1000, 5)
    assert allocate_producer_ids(cluster.reloaded()).result.first == 1005


def test_producer_ids_end_somewhere() -> None:
    """They are 63 bits on the wire; there is no going round."""
    cluster = Cluster()
    cluster.image.next_producer_id = 2**63 - 500
    with pytest.raises(KafkaError, match="given out"):
        allocate_producer_ids(cluster.image)
