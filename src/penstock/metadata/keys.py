"""The keys of the metadata store, and the encoding of their values.

    /penstock/cluster            the cluster id, written once
    /penstock/brokers/ID         a live broker, under its lease
    /penstock/stopping/ID        a broker that is about to stop, under its lease
    /penstock/controller         the controller, under its lease
    /penstock/controller-epoch   the last controller epoch; stays when the lease ends
    /penstock/topics/NAME        one topic: id, overrides, state of all partitions
    /penstock/partitions/ID/N    the Nth chunk of partitions of a large topic (`topic_keys`)
    /penstock/configs/brokers/ID | default    dynamic broker configs
    /penstock/producer-ids       the first producer id that is not allocated yet

Values are JSON objects with a version `v`. Reading is strict: a value is refused if fields are
missing, unknown or out of range. Adding a field requires a higher version, unless the field is
optional.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from penstock.metadata.model import NO_LEADER, BrokerInfo, Controller, Partition, Topic
from penstock.metadata.topic_ids import RESERVED_IDS, from_text, to_text

PREFIX: Final = "/penstock/"
CLUSTER_KEY: Final = "/penstock/cluster"
CONTROLLER_KEY: Final = "/penstock/controller"
CONTROLLER_EPOCH_KEY: Final = "/penstock/controller-epoch"
PRODUCER_IDS_KEY: Final = "/penstock/producer-ids"
TOPICS_PREFIX: Final = "/penstock/topics/"
PARTITIONS_PREFIX: Final = "/penstock/partitions/"
BROKERS_PREFIX: Final = "/penstock/brokers/"
STOPPING_PREFIX: Final = "/penstock/stopping/"
BROKER_CONFIGS_PREFIX: Final = "/penstock/configs/brokers/"
DEFAULT_BROKER: Final = "default"

VERSION: Final = 1
DIVIDED_VERSION: Final = 2
"""The version of a topic whose partitions are stored in separate keys."""
BROKER_ID_MAX: Final = 2**31 - 1
NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})
_PARTITION_FIELDS: Final = frozenset(
    {"replicas", "isr", "leader", "leader_epoch", "partition_epoch", "leader_broker_epoch"}
)
_ELIGIBLE: Final = "eligible_leaders"
_MEMBER_EPOCHS: Final = "member_epochs"
_ADDING: Final = "adding_replicas"
_REMOVING: Final = "removing_replicas"
_OPTIONAL_PARTITION_FIELDS: Final = frozenset({_ELIGIBLE, _MEMBER_EPOCHS, _ADDING, _REMOVING})
_ROW_LENGTH: Final = 10
_HEAD: Final = b'{"v":%d,' % DIVIDED_VERSION
_SYNCED_FROM: Final = "synced_from"
_MARKS: Final = frozenset({_SYNCED_FROM})
_TAKER_ID: Final = "taker_id"
_LOSSLESS_SINCE: Final = "lossless_since"
_SYNCED_SINCE: Final = "synced_since"
_FSYNC_SINCE: Final = "fsync_since"
_OPTIONAL_BROKER_FIELDS: Final = frozenset({_LOSSLESS_SINCE, _SYNCED_SINCE, _FSYNC_SINCE})


class MetadataInvalid(ValueError):
    """A stored value that this version of the software cannot read.

    The broker must stop: without the value it would act on incomplete metadata.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(
            f"{key} in the metadata store: {problem}. If a newer version wrote it, run that "
            "version; otherwise restore the store from a backup"
        )
        self.key = key


def topic_key(name: str) -> str:
    return TOPICS_PREFIX + name


def chunk_key(topic_id: bytes, number: int) -> str:
    return f"{PARTITIONS_PREFIX}{to_text(topic_id)}/{number}"


def chunk_of(key: str) -> tuple[bytes, int]:
    """Returns the topic's id and the number of the chunk."""
    id_text, _, number = key.removeprefix(PARTITIONS_PREFIX).partition("/")
    if not (number.isascii() and number.isdigit()) or str(int(number)) != number:
        raise MetadataInvalid(key, f"{number!r} is not the number of a chunk")
    return _id(key, {"id": id_text}, "id"), int(number)


def broker_key(broker_id: int) -> str:
    return f"{BROKERS_PREFIX}{broker_id}"


def stopping_key(broker_id: int) -> str:
    return f"{STOPPING_PREFIX}{broker_id}"


def broker_config_key(broker_id: int | None) -> str:
    """Returns the key of a broker's dynamic configs. None means the defaults of all brokers."""
    return BROKER_CONFIGS_PREFIX + (DEFAULT_BROKER if broker_id is None else str(broker_id))


def broker_id_of(key: str, prefix: str) -> int:
    text = key.removeprefix(prefix)
    # Accept only the form that `broker_key` writes: "07" and "7" must not be two brokers.
    if not (text.isascii() and text.isdigit()) or str(int(text)) != text:
        raise MetadataInvalid(key, f"{text!r} is not a broker id")
    if int(text) > BROKER_ID_MAX:
        raise MetadataInvalid(key, f"broker ids go up to {BROKER_ID_MAX}")
    return int(text)


def encode_cluster(cluster_id: str) -> bytes:
    return _encode({"cluster_id": cluster_id})


def decode_cluster(value: bytes) -> str:
    fields = _decode(CLUSTER_KEY, value, frozenset({"cluster_id"}))
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
    return _encode(fields)


def decode_broker(key: str, value: bytes, revision: int) -> BrokerInfo:
    names = frozenset({"host", "port", "rack", "incarnation_id"})
    fields = _decode(key, value, names, _OPTIONAL_BROKER_FIELDS)
    host, rack = fields["host"], fields["rack"]
    if not isinstance(host, str) or not host:
        raise MetadataInvalid(key, f"the host {host!r} is not a string")
    if rack is not None and not isinstance(rack, str):
        raise MetadataInvalid(key, f"the rack {rack!r} is not a string")
    port = _count(key, fields, "port")
    if not 1 <= port <= 65535:
        raise MetadataInvalid(key, f"the port {port} is not between 1 and 65535")
    incarnation_id = _id(key, fields, "incarnation_id")
    broker_id = broker_id_of(key, BROKERS_PREFIX)
    lossless = _count(key, fields, _LOSSLESS_SINCE) if _LOSSLESS_SINCE in fields else -1
    synced = _revision(key, fields, _SYNCED_SINCE, 0)
    since = (lossless, synced, _revision(key, fields, _FSYNC_SINCE, synced))
    return BrokerInfo(broker_id, host, port, rack, incarnation_id, revision, *since)


def encode_stopping(broker_epoch: int) -> bytes:
    return _encode({"broker_epoch": broker_epoch})


def decode_stopping(key: str, value: bytes) -> int:
    """Returns the broker epoch of the broker that is stopping."""
    return _count(key, _decode(key, value, frozenset({"broker_epoch"})), "broker_epoch")


def encode_controller(broker_id: int, epoch: int, incarnation_id: bytes) -> bytes:
    return _encode(
        {"broker_id": broker_id, "epoch": epoch, "incarnation_id": to_text(incarnation_id)}
    )


def decode_controller(value: bytes, revision: int) -> Controller:
    key = CONTROLLER_KEY
    fields = _decode(key, value, frozenset({"broker_id", "epoch", "incarnation_id"}))
    return Controller(
        _count(key, fields, "broker_id"),
        _count(key, fields, "epoch"),
        _id(key, fields, "incarnation_id"),
        revision,
    )


def encode_controller_epoch(epoch: int) -> bytes:
    return _encode({"epoch": epoch})


def decode_controller_epoch(value: bytes) -> int:
    key = CONTROLLER_EPOCH_KEY
    return _count(key, _decode(key, value, frozenset({"epoch"})), "epoch")


def encode_producer_ids(next_producer_id: int, taker_id: bytes) -> bytes:
    """Encodes the counter. `taker_id` identifies the broker that took the last block, so no two
    brokers write the same value."""
    return _encode({"next": next_producer_id, _TAKER_ID: to_text(taker_id)})


def decode_producer_ids(value: bytes) -> int:
    """Returns the first producer id that is not allocated yet."""
    key = PRODUCER_IDS_KEY
    return _count(key, _decode(key, value, frozenset({"next"}), frozenset({_TAKER_ID})), "next")


def encode_configs(configs: Mapping[str, str], synced_from: int = 0) -> bytes:
    return _encode({"configs": dict(configs), **_mark(synced_from)})


def decode_configs(key: str, value: bytes, revision: int = 0) -> tuple[Mapping[str, str], int]:
    """Returns the configs, and the revision at which `log.durability` last changed among them."""
    fields = _decode(key, value, frozenset({"configs"}), _MARKS)
    return _configs(key, fields), _synced_from(key, fields, revision)


def encode_topic(topic: Topic) -> bytes:
    partitions = [_partition_fields(partition) for partition in topic.partitions]
    return _encode({**_topic_fields(topic), "partitions": partitions})


def decode_topic(key: str, value: bytes, revision: int = 0) -> Topic:
    """Decodes a topic. `revision` is that of the commit that wrote the value."""
    names = frozenset({"id", "configs", "partitions"})
    fields = _decode(key, value, names, _MARKS)
    topic_id = _topic_id(key, fields)
    partitions = fields["partitions"]
    if not isinstance(partitions, list) or not partitions:
        raise MetadataInvalid(key, "a topic must have at least one partition")
    return Topic(
        key.removeprefix(TOPICS_PREFIX),
        topic_id,
        tuple(_partition(key, index, each) for index, each in enumerate(partitions)),
        _configs(key, fields),
        synced_from=_synced_from(key, fields, revision),
    )


def is_head(value: bytes) -> bool:
    """Whether this is a topic whose partitions are stored in separate keys."""
    return value.startswith(_HEAD)


def encode_head(topic: Topic) -> bytes:
    counts = {"partitions": len(topic.partitions), "chunk": topic.chunk_partitions}
    return _encode({**_topic_fields(topic), **counts}, DIVIDED_VERSION)


def decode_head(key: str, value: bytes, revision: int = 0) -> tuple[Topic, int]:
    """Returns the topic without its partitions, and the number of its partitions."""
    names = frozenset({"id", "configs", "partitions", "chunk"})
    fields = _decode(key, value, names, _MARKS, version=DIVIDED_VERSION)
    count, chunk = _count(key, fields, "partitions"), _count(key, fields, "chunk")
    if not count or not chunk:
        raise MetadataInvalid(key, f"it has {count} partitions in chunks of {chunk}")
    name, since = key.removeprefix(TOPICS_PREFIX), _synced_from(key, fields, revision)
    return Topic(name, _topic_id(key, fields), (), _configs(key, fields), chunk, since), count


def encode_chunk(partitions: Sequence[Partition]) -> bytes:
    epochs: dict[int, int] = {}
    for each in partitions:
        members = each.isr + each.eligible_leaders
        for member, epoch in zip(members, each.member_epochs, strict=False):
            epochs[member] = max(epoch, epochs.get(member, -1))
    return _encode(
        {
            "epochs": {str(each): epoch for each, epoch in epochs.items()},
            "partitions": [_partition_row(each, epochs) for each in partitions],
        }
    )


def decode_chunk(key: str, value: bytes, first: int = 0) -> tuple[Partition, ...]:
    """Decodes a chunk. `first` is the index of its first partition, for error messages."""
    fields = _decode(key, value, frozenset({"epochs", "partitions"}))
    rows, noted = fields["partitions"], fields["epochs"]
    if not isinstance(rows, list) or not rows or not isinstance(noted, dict):
        raise MetadataInvalid(
            key, "a chunk must have a list of partitions and the epochs of brokers"
        )
    try:
        epochs = {int(each): epoch for each, epoch in noted.items()}
    except ValueError:
        raise MetadataInvalid(key, f"the broker epochs {noted!r} are not valid") from None
    return tuple(
        _partition(key, index, _row_fields(key, index, row, epochs))
        for index, row in enumerate(rows, first)
    )


def _partition_row(partition: Partition, epochs: Mapping[int, int]) -> list[Any]:
    replicas, isr, eligible = partition.replicas, partition.isr, partition.eligible_leaders
    leader_epoch, partition_epoch = partition.leader_epoch, partition.partition_epoch
    expected = tuple(epochs.get(each, -1) for each in isr + eligible)
    leads = partition.leader_broker_epoch
    row: list[Any] = [
        replicas,
        None if partition.leader == replicas[0] else partition.leader,
        leader_epoch or None,
        partition_epoch or None,
        None if leads == epochs.get(partition.leader, -1) else leads,
        None if isr == replicas else isr,
        eligible or None,
        None if partition.member_epochs == expected else partition.member_epochs,
        partition.adding_replicas or None,
        partition.removing_replicas or None,
    ]
    while row[-1] is None:
        row.pop()
    return row


def _row_fields(key: str, index: int, row: Any, epochs: Mapping[int, int]) -> dict[str, Any]:
    if not isinstance(row, list) or not 1 <= len(row) <= _ROW_LENGTH:
        raise MetadataInvalid(key, f"partition {index} is {row!r}")
    padded = row + [None] * (_ROW_LENGTH - len(row))
    replicas, leader, leader_epoch, partition_epoch, leads, isr, eligible, noted, add, gone = padded
    # Check the replicas here, because the defaults of other fields are derived from them.
    where = f"partition {index}"
    _broker_ids(key, where, replicas)
    if not replicas:
        raise MetadataInvalid(key, f"{where} has no replicas")
    leader = replicas[0] if leader is None else leader
    isr = replicas if isr is None else [*_broker_ids(key, where, isr)]
    eligible = [] if eligible is None else [*_broker_ids(key, where, eligible)]
    if noted is None:
        noted = [epochs.get(each, -1) for each in isr + eligible]
    return {
        "replicas": replicas,
        "isr": isr,
        "leader": leader,
        "leader_epoch": leader_epoch or 0,
        "partition_epoch": partition_epoch or 0,
        "leader_broker_epoch": epochs.get(leader, -1) if leads is None else leads,
        _ELIGIBLE: eligible,
        _MEMBER_EPOCHS: noted,
        _ADDING: add or [],
        _REMOVING: gone or [],
    }


def _partition_fields(partition: Partition) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "replicas": partition.replicas,
        "isr": partition.isr,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "partition_epoch": partition.partition_epoch,
        "leader_broker_epoch": partition.leader_broker_epoch,
    }
    if partition.eligible_leaders:
        fields[_ELIGIBLE] = partition.eligible_leaders
    if partition.member_epochs:
        fields[_MEMBER_EPOCHS] = partition.member_epochs
    if partition.adding_replicas:
        fields[_ADDING] = partition.adding_replicas
    if partition.removing_replicas:
        fields[_REMOVING] = partition.removing_replicas
    return fields


def _partition(key: str, index: int, fields: Any) -> Partition:
    where = f"partition {index}"
    if (
        not isinstance(fields, dict)
        or fields.keys() - _OPTIONAL_PARTITION_FIELDS != _PARTITION_FIELDS
    ):
        raise MetadataInvalid(key, f"{where} does not have the fields {sorted(_PARTITION_FIELDS)}")
    replicas = _broker_ids(key, where, fields["replicas"])
    isr = _broker_ids(key, where, fields["isr"])
    eligible = _broker_ids(key, where, fields.get(_ELIGIBLE, []))
    leader, leader_broker_epoch = fields["leader"], fields["leader_broker_epoch"]
    if not replicas or not {*isr, *eligible} <= {*replicas} or {*isr} & {*eligible}:
        raise MetadataInvalid(
            key,
            f"{where} has the replicas {replicas}, ISR {isr} and ELR {eligible}, which "
            "contradict each other",
        )
    if leader != NO_LEADER and leader not in isr:
        raise MetadataInvalid(
            key, f"{where} has the leader {leader!r}, which is not in its ISR {isr}"
        )
    if type(leader) is not int or type(leader_broker_epoch) is not int:
        raise MetadataInvalid(
            key, f"{where} has a leader or leader_broker_epoch that is not a number"
        )
    adding = _broker_ids(key, where, fields.get(_ADDING, []))
    removing = _broker_ids(key, where, fields.get(_REMOVING, []))
    if not {*adding, *removing} <= {*replicas} or {*adding} & {*removing}:
        raise MetadataInvalid(
            key,
            f"{where} has the replicas {replicas}, adding {adding}, removing {removing}, "
            "which contradict each other",
        )
    return Partition(
        replicas,
        isr,
        eligible,
        leader,
        _count(key, fields, "leader_epoch"),
        _count(key, fields, "partition_epoch"),
        leader_broker_epoch,
        _member_epochs(key, where, fields, len(isr) + len(eligible)),
        adding,
        removing,
    )


def _member_epochs(
    key: str, where: str, fields: Mapping[str, Any], members: int
) -> tuple[int, ...]:
    value = fields.get(_MEMBER_EPOCHS, [])
    if (
        not isinstance(value, list)
        or any(type(each) is not int or each < -1 for each in value)
        or len(value) not in (0, members)
    ):
        raise MetadataInvalid(
            key,
            f"{where} has the member epochs {value!r}, but must have {members}, one for each "
            "member",
        )
    return tuple(value)


def _broker_ids(key: str, where: str, value: Any) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or any(type(each) is not int or not 0 <= each <= BROKER_ID_MAX for each in value)
        or len(set(value)) != len(value)
    ):
        raise MetadataInvalid(key, f"{where} has {value!r} instead of broker ids")
    return tuple(value)


def _configs(key: str, fields: Mapping[str, Any]) -> Mapping[str, str]:
    configs = fields["configs"]
    if not isinstance(configs, dict) or not all(isinstance(v, str) for v in configs.values()):
        raise MetadataInvalid(key, f"the configs must map names to strings, but are {configs!r}")
    return MappingProxyType(configs) if configs else NO_CONFIGS


def _topic_fields(topic: Topic) -> dict[str, Any]:
    configs = dict(topic.configs)
    return {"id": to_text(topic.topic_id), "configs": configs, **_mark(topic.synced_from)}


def _mark(synced_from: int) -> dict[str, int]:
    return {_SYNCED_FROM: synced_from} if synced_from else {}


def _synced_from(key: str, fields: Mapping[str, Any], revision: int) -> int:
    """Returns the revision of the last switch. -1 means the revision of the commit itself, which
    its writer could not know."""
    value = _revision(key, fields, _SYNCED_FROM, 0)
    return revision if value < 0 else value


def _revision(key: str, fields: Mapping[str, Any], name: str, absent: int) -> int:
    value = fields.get(name, absent)
    if type(value) is not int or value < -1:
        raise MetadataInvalid(key, f"{name} is {value!r}, not -1 or a revision")
    return value


def _count(key: str, fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int or value < 0:
        raise MetadataInvalid(key, f"{name} is {value!r}, not a whole number of 0 or more")
    return value


def _id(key: str, fields: Mapping[str, Any], name: str) -> bytes:
    value = fields[name]
    try:
        return from_text(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise MetadataInvalid(key, str(error)) from error


def _topic_id(key: str, fields: Mapping[str, Any]) -> bytes:
    topic_id = _id(key, fields, "id")
    if topic_id in RESERVED_IDS:
        raise MetadataInvalid(key, f"the topic id {fields['id']} is reserved")
    return topic_id


def _encode(fields: dict[str, Any], version: int = VERSION) -> bytes:
    return json.dumps({"v": version, **fields}, separators=(",", ":")).encode()


def _decode(
    key: str,
    value: bytes,
    names: frozenset[str],
    optional: frozenset[str] = frozenset(),
    version: int = VERSION,
) -> dict[str, Any]:
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise MetadataInvalid(key, f"not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise MetadataInvalid(key, "not a JSON object")
    found = fields.pop("v", None)
    if found != version:
        raise MetadataInvalid(
            key, f"format version {found!r}, but this version of Penstock reads {version}"
        )
    if fields.keys() - optional != names:
        raise MetadataInvalid(key, f"has the fields {sorted(fields)}, not {sorted(names)}")
    return fields
