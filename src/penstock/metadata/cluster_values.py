"""The values of the metadata store that describe the cluster: its id, its brokers, its controller
and its producer ids."""

from __future__ import annotations

from typing import Any, Final

from penstock.metadata.keys import (
    BROKERS_PREFIX,
    CLUSTER_KEY,
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    PRODUCER_IDS_KEY,
    broker_id_of,
)
from penstock.metadata.model import BrokerInfo, Controller
from penstock.metadata.stored_fields import (
    MetadataInvalid,
    count_field,
    decode_fields,
    encode_fields,
    id_field,
    revision_field,
)
from penstock.metadata.topic_ids import to_text
from penstock.security.listeners import ListenersInvalid, decode_endpoints, encode_endpoints

_TAKER_ID: Final = "taker_id"
_LOSSLESS_SINCE: Final = "lossless_since"
_SYNCED_SINCE: Final = "synced_since"
_FSYNC_SINCE: Final = "fsync_since"
_LISTENERS: Final = "listeners"
_OPTIONAL_BROKER_FIELDS: Final = frozenset(
    {_LOSSLESS_SINCE, _SYNCED_SINCE, _FSYNC_SINCE, _LISTENERS}
)


def encode_cluster(cluster_id: str) -> bytes:
    return encode_fields({"cluster_id": cluster_id})


def decode_cluster(value: bytes) -> str:
    fields = decode_fields(CLUSTER_KEY, value, frozenset({"cluster_id"}))
    cluster_id = fields["cluster_id"]
    if not isinstance(cluster_id, str) or not cluster_id:
        raise MetadataInvalid(CLUSTER_KEY, f"the cluster id {cluster_id!r} is not a string")
    return cluster_id


def encode_broker(broker: BrokerInfo) -> bytes:
    fields: dict[str, Any] = {
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "incarnation_id": to_text(broker.incarnation_id),
    }
    if broker.lossless_since >= 0:
        fields[_LOSSLESS_SINCE] = broker.lossless_since
    if broker.synced_since != 0:
        fields[_SYNCED_SINCE] = broker.synced_since
    if broker.fsync_since != broker.synced_since:
        fields[_FSYNC_SINCE] = broker.fsync_since
    if broker.listeners:
        fields[_LISTENERS] = encode_endpoints(broker.listeners)
    return encode_fields(fields)


def decode_broker(key: str, value: bytes, revision: int) -> BrokerInfo:
    names = frozenset({"host", "port", "rack", "incarnation_id"})
    fields = decode_fields(key, value, names, _OPTIONAL_BROKER_FIELDS)
    host, rack = fields["host"], fields["rack"]
    if not isinstance(host, str) or not host:
        raise MetadataInvalid(key, f"the host {host!r} is not a string")
    if rack is not None and not isinstance(rack, str):
        raise MetadataInvalid(key, f"the rack {rack!r} is not a string")
    port = count_field(key, fields, "port")
    if not 1 <= port <= 65535:
        raise MetadataInvalid(key, f"the port {port} is not between 1 and 65535")
    incarnation_id = id_field(key, fields, "incarnation_id")
    broker_id = broker_id_of(key, BROKERS_PREFIX)
    lossless = count_field(key, fields, _LOSSLESS_SINCE) if _LOSSLESS_SINCE in fields else -1
    synced = revision_field(key, fields, _SYNCED_SINCE, 0)
    since = (lossless, synced, revision_field(key, fields, _FSYNC_SINCE, synced))
    try:
        listeners = decode_endpoints(fields.get(_LISTENERS, []))
    except ListenersInvalid as error:
        raise MetadataInvalid(key, str(error)) from error
    return BrokerInfo(broker_id, host, port, rack, incarnation_id, revision, *since, listeners)


def encode_stopping(broker_epoch: int) -> bytes:
    return encode_fields({"broker_epoch": broker_epoch})


def decode_stopping(key: str, value: bytes) -> int:
    """Returns the broker epoch of the broker that is stopping."""
    return count_field(key, decode_fields(key, value, frozenset({"broker_epoch"})), "broker_epoch")


def encode_controller(broker_id: int, epoch: int, incarnation_id: bytes) -> bytes:
    return encode_fields(
        {"broker_id": broker_id, "epoch": epoch, "incarnation_id": to_text(incarnation_id)}
    )


def decode_controller(value: bytes, revision: int) -> Controller:
    key = CONTROLLER_KEY
    fields = decode_fields(key, value, frozenset({"broker_id", "epoch", "incarnation_id"}))
    return Controller(
        count_field(key, fields, "broker_id"),
        count_field(key, fields, "epoch"),
        id_field(key, fields, "incarnation_id"),
        revision,
    )


def encode_controller_epoch(epoch: int) -> bytes:
    return encode_fields({"epoch": epoch})


def decode_controller_epoch(value: bytes) -> int:
    key = CONTROLLER_EPOCH_KEY
    return count_field(key, decode_fields(key, value, frozenset({"epoch"})), "epoch")


def encode_producer_ids(next_producer_id: int, taker_id: bytes) -> bytes:
    """Encodes the counter. `taker_id` identifies the broker that took the last block, so no two
    brokers write the same value."""
    return encode_fields({"next": next_producer_id, _TAKER_ID: to_text(taker_id)})


def decode_producer_ids(value: bytes) -> int:
    """Returns the first producer id that is not allocated yet."""
    key = PRODUCER_IDS_KEY
    fields = decode_fields(key, value, frozenset({"next"}), frozenset({_TAKER_ID}))
    return count_field(key, fields, "next")
