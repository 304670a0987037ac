"""Registers brokers and elects the controller.

A broker counts as alive as long as its lease is valid. Its registration is a key under that lease,
and so is the announcement that it is about to stop. The controller is the broker that holds the
controller key, which is under its lease too. The controller epoch of a claim is one more than the
last one, which is stored in a key without a lease. Everything that a controller writes is
conditional on its claim (`decisions.guarded`): two brokers may both believe that they are the
controller, but only one of them can write.
"""

from __future__ import annotations

from penstock.metadata.cluster_values import (
    encode_broker,
    encode_cluster,
    encode_controller,
    encode_controller_epoch,
    encode_stopping,
)
from penstock.metadata.decisions import Change, Decision, Guard
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import (
    BROKER_ID_MAX,
    CLUSTER_KEY,
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    broker_key,
    stopping_key,
)
from penstock.metadata.model import BrokerInfo
from penstock.wire.errors import ErrorCode, KafkaError


def create_cluster(image: ClusterImage, cluster_id: str) -> Decision[str]:
    """Gives the cluster this id, unless it already has one. The result is the id that is valid."""
    if image.cluster_id is not None:
        return Decision((), image.cluster_id)
    if not cluster_id:
        raise ValueError("a cluster id cannot be empty")
    return Decision((Change(CLUSTER_KEY, encode_cluster(cluster_id), 0),), cluster_id)


def register_broker(
    image: ClusterImage, broker: BrokerInfo, *, take_over: bool = False
) -> Decision[BrokerInfo]:
    """Registers a broker. Its broker epoch is the revision of the commit.

    With `take_over`, the registration of the broker's previous run is replaced before its lease
    ends. This is only for a broker that holds the lock of the data directory, so that no other
    process can be running.
    """
    if not 0 <= broker.broker_id <= BROKER_ID_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION,
            f"The broker id {broker.broker_id} is not between 0 and {BROKER_ID_MAX}.",
        )
    if not broker.host or not 1 <= broker.port <= 65535:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION,
            f"Broker {broker.broker_id} cannot be reached at {broker.host!r}:{broker.port}: "
            "advertise a host name and a port between 1 and 65535.",
        )
    existing = image.brokers.get(broker.broker_id)
    is_other = existing is not None and existing.incarnation_id != broker.incarnation_id
    if existing is not None and is_other and not take_over:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Broker {broker.broker_id} is already running at {existing.host}:{existing.port}: "
            "give this broker another id, or stop the other one and wait until its session has "
            "timed out.",
        )
    key = broker_key(broker.broker_id)
    change = Change(key, encode_broker(broker), image.revision_of(key), leased=True)
    return Decision((change,), broker)


def announce_stop(image: ClusterImage, broker_id: int, broker_epoch: int) -> Decision[bool]:
    """Announces that a broker is about to stop. The result is False if it is not registered with
    that epoch.

    The announcement is a separate key, because writing the registration again would change the
    broker epoch.
    """
    broker = image.brokers.get(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        return Decision((), result=False)
    if broker_id in image.stopping:
        return Decision((), result=True)
    key = stopping_key(broker_id)
    change = Change(key, encode_stopping(broker_epoch), image.revision_of(key), leased=True)
    return Decision((change,), True, (Guard(broker_key(broker_id), broker_epoch),))


def claim_controller(image: ClusterImage, broker_id: int) -> Decision[int] | None:
    """Claims the controller role if no broker holds it. The result is the new controller epoch.

    A claim by this broker's own previous run is replaced. Its registration has been taken over, so
    that run no longer exists.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"Broker {broker_id} is not registered: register it before it tries to become "
            "controller.",
        )
    holder = image.controller
    if holder is not None and (
        holder.broker_id != broker_id or holder.incarnation_id == broker.incarnation_id
    ):
        return None
    epoch = image.controller_epoch + 1
    return Decision(
        (
            Change(
                CONTROLLER_KEY,
                encode_controller(broker_id, epoch, broker.incarnation_id),
                image.revision_of(CONTROLLER_KEY),
                leased=True,
            ),
            Change(
                CONTROLLER_EPOCH_KEY,
                encode_controller_epoch(epoch),
                image.revision_of(CONTROLLER_EPOCH_KEY),
            ),
        ),
        epoch,
        (Guard(broker_key(broker_id), broker.broker_epoch),),
    )
