"""The values of the metadata store that hold a topic: whole, or as a head and chunks of partitions.

`topic_keys` explains when a topic is divided.

A partition in a chunk is a list: [replicas, leader, leader epoch, partition epoch, leader's broker
epoch, isr, eligible leaders, member epochs, adding, removing]. A value that is the default of a new
partition is null, or left out at the end. Defaults are the first replica as leader, all replicas in
sync, and for each broker the epoch that the chunk lists in `epochs`. So a new topic of 20,000
partitions takes a few hundred kilobytes and fits in one commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.metadata.config_values import (
    OPTIONAL_CONFIG_FIELDS,
    config_fields,
    read_config_fields,
)
from penstock.metadata.keys import BROKER_ID_MAX, TOPICS_PREFIX
from penstock.metadata.model import NO_LEADER, Partition, Topic
from penstock.metadata.stored_fields import (
    MetadataInvalid,
    count_field,
    decode_fields,
    encode_fields,
    id_field,
)
from penstock.metadata.topic_ids import RESERVED_IDS, to_text

DIVIDED_VERSION: Final = 2
"""The version of a topic whose partitions are stored in separate keys."""
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


def encode_topic(topic: Topic) -> bytes:
    partitions = [_partition_fields(partition) for partition in topic.partitions]
    return encode_fields({**_topic_fields(topic), "partitions": partitions})


def decode_topic(key: str, value: bytes, revision: int = 0) -> Topic:
    """Decodes a topic. `revision` is that of the commit that wrote the value."""
    names = frozenset({"id", "configs", "partitions"})
    fields = decode_fields(key, value, names, OPTIONAL_CONFIG_FIELDS)
    topic_id = _topic_id(key, fields)
    partitions = fields["partitions"]
    if not isinstance(partitions, list) or not partitions:
        raise MetadataInvalid(key, "a topic must have at least one partition")
    configs, synced_from = read_config_fields(key, fields, revision)
    return Topic(
        key.removeprefix(TOPICS_PREFIX),
        topic_id,
        tuple(_partition(key, index, each) for index, each in enumerate(partitions)),
        configs,
        synced_from=synced_from,
    )


def is_head(value: bytes) -> bool:
    """Whether this is a topic whose partitions are stored in separate keys."""
    return value.startswith(_HEAD)


def encode_head(topic: Topic) -> bytes:
    counts = {"partitions": len(topic.partitions), "chunk": topic.chunk_partitions}
    return encode_fields({**_topic_fields(topic), **counts}, DIVIDED_VERSION)


def decode_head(key: str, value: bytes, revision: int = 0) -> tuple[Topic, int]:
    """Returns the topic without its partitions, and the number of its partitions."""
    names = frozenset({"id", "configs", "partitions", "chunk"})
    fields = decode_fields(key, value, names, OPTIONAL_CONFIG_FIELDS, version=DIVIDED_VERSION)
    count, chunk = count_field(key, fields, "partitions"), count_field(key, fields, "chunk")
    if not count or not chunk:
        raise MetadataInvalid(key, f"it has {count} partitions in chunks of {chunk}")
    name = key.removeprefix(TOPICS_PREFIX)
    configs, synced_from = read_config_fields(key, fields, revision)
    return Topic(name, _topic_id(key, fields), (), configs, chunk, synced_from), count


def encode_chunk(partitions: Sequence[Partition]) -> bytes:
    epochs: dict[int, int] = {}
    for each in partitions:
        members = each.isr + each.eligible_leaders
        for member, epoch in zip(members, each.member_epochs, strict=False):
            epochs[member] = max(epoch, epochs.get(member, -1))
    return encode_fields(
        {
            "epochs": {str(each): epoch for each, epoch in epochs.items()},
            "partitions": [_partition_row(each, epochs) for each in partitions],
        }
    )


def decode_chunk(key: str, value: bytes, first: int = 0) -> tuple[Partition, ...]:
    """Decodes a chunk. `first` is the index of its first partition, for error messages."""
    fields = decode_fields(key, value, frozenset({"epochs", "partitions"}))
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
        count_field(key, fields, "leader_epoch"),
        count_field(key, fields, "partition_epoch"),
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


def _topic_fields(topic: Topic) -> dict[str, Any]:
    return {"id": to_text(topic.topic_id), **config_fields(topic.configs, topic.synced_from)}


def _topic_id(key: str, fields: Mapping[str, Any]) -> bytes:
    topic_id = id_field(key, fields, "id")
    if topic_id in RESERVED_IDS:
        raise MetadataInvalid(key, f"the topic id {fields['id']} is reserved")
    return topic_id
