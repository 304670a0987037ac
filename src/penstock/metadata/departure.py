"""Removes what the metadata still holds of a broker that is gone for good.

A registration ends with its lease, so none needs to be removed. What can remain are replicas, which
would be missing forever, and configs, which the next broker with that id would inherit.
"""

from __future__ import annotations

from penstock.metadata.decisions import Change, Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import broker_config_key
from penstock.wire.errors import ErrorCode, KafkaError


def forget_broker(image: ClusterImage, broker_id: int) -> Decision[None]:
    """Deletes the configs of a broker. Refused while the broker runs or any partition has a replica
    on it."""
    if broker_id in image.brokers:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {broker_id} is running: move its partitions away and stop it first.",
        )
    left = [
        f"{topic.name}-{index}"
        for topic in image.topics.values()
        for index, partition in enumerate(topic.partitions)
        if broker_id in partition.replicas
    ]
    if left:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {broker_id} has replicas of {len(left)} partition(s), for example "
            f"{left[0]}: move them to other brokers first.",
        )
    key = broker_config_key(broker_id)
    if broker_id not in image.broker_configs:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"There is no broker {broker_id} in this cluster: check the id.",
        )
    return Decision((Change(key, None, image.revision_of(key)),), None)
