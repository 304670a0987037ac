"""`penstock log dump`: formats the items of a log as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from penstock.cli.log_items import (
    BadFile,
    BadRecords,
    BatchItem,
    IndexRemains,
    Item,
    RecordItem,
    TopicId,
    walk,
)
from penstock.cli.output import (
    Shown,
    bytes_json,
    bytes_text,
    count,
    emit,
    emit_json,
    printable,
    size_text,
    time_text,
    width,
)
from penstock.partition.epochs import EpochStart
from penstock.partition.producer_state import ProducerEntry
from penstock.partition.transactions import AbortedEntry
from penstock.ports import Disk
from penstock.records.batch import BatchHeader, TimestampType
from penstock.storage.checkpoints import Checkpoint
from penstock.storage.inspect import BadRange, FileEntry, IndexEntry, TimeEntry

_INDENT = "    "
_NARROWEST = 20


@dataclass(frozen=True, slots=True)
class Options:
    records: bool = True
    offset: int = 0
    maximum: int | None = None
    keys: Shown = Shown.TEXT
    values: Shown = Shown.TEXT
    full: bool = False


def show(disk: Disk, path: str, options: Options, *, as_json: bool) -> bool:
    """Prints the content of `path`, and returns whether all of it is sound."""
    sound = True
    columns = None if options.full else width()
    items = walk(
        disk, path, records=options.records, offset=options.offset, maximum=options.maximum
    )
    for item in items:
        sound = sound and not isinstance(item, BadRange | BadRecords | BadFile)
        if as_json:
            emit_json(_json(item, options))
        else:
            emit(_text(item, options, columns))
    return sound


# For people


def _text(item: Item, options: Options, columns: int | None) -> str:
    match item:
        case FileEntry():
            kind = item.kind.content or "batches"
            left = f", a leftover {item.kind.leftover} file" if item.kind.leftover else ""
            return f"{printable(item.name)}: {kind}, {size_text(item.size)}{left}"
        case BatchItem():
            return _batch_text(item.position, item.header)
        case RecordItem():
            return _record_text(item, options, columns)
        case BadRange():
            return (
                f"{_INDENT}@{item.position}  BAD: {item.end - item.position} bytes from offset "
                f"{item.expected} on: {item.reason}"
            )
        case BadRecords():
            return f"{_INDENT * 2}BAD: the records do not decode: {item.reason}"
        case BadFile():
            return f"{_INDENT}BAD: {printable(item.reason)}"
        case IndexEntry():
            return f"{_INDENT}offset {item.offset}  at byte {item.position}"
        case TimeEntry():
            return f"{_INDENT}{time_text(item.timestamp)}  offset {item.offset}"
        case IndexRemains():
            return (
                f"{_INDENT}then {item.padding_entries} entries of zeros and "
                f"{count(item.ragged_bytes, 'byte')} of an incomplete entry"
            )
        case AbortedEntry():
            return (
                f"{_INDENT}aborted  producer {item.producer_id}  offsets {item.first_offset}-"
                f"{item.last_offset}  last stable offset {item.last_stable_offset}"
            )
        case ProducerEntry():
            return _producer_text(item)
        case EpochStart():
            return f"{_INDENT}epoch {item.epoch}  from offset {item.start_offset}"
        case TopicId():
            return f"{_INDENT}topic id {printable(item.topic_id)}"
        case Checkpoint():
            return _checkpoint_text(item)


def _flags(header: BatchHeader) -> list[str]:
    flags = []
    if header.is_transactional:
        flags.append("transactional")
    if header.is_control:
        flags.append("control")
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
        flags.append("append time")
    if header.delete_horizon_ms is not None:
        flags.append(f"tombstones go at {time_text(header.delete_horizon_ms)}")
    return flags


def _batch_text(position: int, header: BatchHeader) -> str:
    first = (
        f"{_INDENT}@{position}  offsets {header.base_offset}-{header.last_offset}  "
        f"{count(header.record_count, 'record')}  {header.size} bytes  "
        f"{header.codec.name.lower()}  epoch {header.leader_epoch}"
    )
    second = _flags(header)
    if header.has_producer:
        producer = f"producer {header.producer_id} epoch {header.producer_epoch}"
        if header.base_sequence >= 0:
            producer += f" sequence {header.base_sequence}-{header.last_sequence}"
        second.insert(0, producer)
    return first + (f"\n{_INDENT * 2}" + ", ".join(second) if second else "")


def _record_text(item: RecordItem, options: Options, columns: int | None) -> str:
    record, marker = item.record, item.marker
    line = f"{_INDENT * 2}{record.offset}  {time_text(record.timestamp)}  "
    if marker is not None:
        return f"{line}{marker.type.name} by coordinator epoch {marker.coordinator_epoch}"
    room = None if columns is None else max(_NARROWEST, columns - len(line) - 3)
    value_text = bytes_text(record.value, options.values, room)
    # The key gets at least half of the columns, and those that the value does not need.
    key_room = None if room is None else max(room // 2, room - len(value_text))
    key_text = bytes_text(record.key, options.keys, key_room)
    if room is not None:
        value_text = bytes_text(record.value, options.values, max(1, room - len(key_text)))
    line += f"{key_text} = {value_text}"
    for name, data in record.headers:
        start = f"\n{_INDENT * 3}{printable(name)}: "
        left = None if columns is None else max(_NARROWEST, columns - len(start) + 1)
        line += start + bytes_text(data, Shown.TEXT, left)
    return line


def _producer_text(entry: ProducerEntry) -> str:
    line = (
        f"{_INDENT}producer {entry.producer_id} epoch {entry.epoch}  "
        f"last sequence {entry.last_sequence}  "
        f"offsets {entry.last_offset - entry.offset_delta}-{entry.last_offset}\n"
        f"{_INDENT * 2}{time_text(entry.timestamp)}"
    )
    if entry.coordinator_epoch >= 0:
        line += f", coordinator epoch {entry.coordinator_epoch}"
    if entry.current_transaction_first_offset >= 0:
        line += f", in a transaction since offset {entry.current_transaction_first_offset}"
    return line


def _checkpoint_text(checkpoint: Checkpoint) -> str:
    lines = [
        f"on disk up to offset {checkpoint.recovery_point}",
        f"indexes on disk for segments that end by offset {checkpoint.indexed_offset}",
        f"log starts at offset {checkpoint.log_start_offset}",
        f"compacted up to offset {checkpoint.cleaned_offset}",
    ]
    if checkpoint.truncating_to >= 0:
        lines.append(f"a truncation to offset {checkpoint.truncating_to} was not finished")
    stop = checkpoint.clean_stop
    if stop is not None:
        lines.append(
            f"stopped cleanly at offset {stop.end_offset}, segment {stop.base_offset} of "
            f"{count(stop.size, 'byte')}"
        )
    lines += [f"epoch {epoch} from offset {start}" for epoch, start in checkpoint.epochs]
    for held in checkpoint.damage:
        lines.append(
            f"DAMAGED: offsets {held.start_offset}-{held.end_offset - 1}, segment "
            f"{held.segment_base} at byte {held.start_position}: {printable(held.reason)}"
        )
    return "\n".join(_INDENT + line for line in lines)


# For programs


def _json(item: Item, options: Options) -> dict[str, object]:
    match item:
        case FileEntry():
            return {
                "type": "file",
                "name": item.name,
                "content": item.kind.content,
                "leftover": item.kind.leftover,
                "size": item.size,
            }
        case BatchItem():
            return _batch_json(item.position, item.header)
        case RecordItem():
            return _record_json(item, options)
        case BadRange():
            return {"type": "bad_range", **item._asdict()}
        case BadRecords():
            return {
                "type": "bad_records",
                "position": item.position,
                "base_offset": item.header.base_offset,
                "reason": item.reason,
            }
        case BadFile():
            return {"type": "bad_file", "reason": item.reason}
        case IndexEntry():
            return {"type": "index_entry", **item._asdict()}
        case TimeEntry():
            return {"type": "time_index_entry", **item._asdict()}
        case IndexRemains():
            return {"type": "index_remains", **asdict(item)}
        case AbortedEntry():
            return {"type": "aborted_transaction", **item._asdict()}
        case ProducerEntry():
            return {"type": "producer", **item._asdict()}
        case EpochStart():
            return {"type": "leader_epoch", **item._asdict()}
        case TopicId():
            return {"type": "partition", "topic_id": item.topic_id}
        case Checkpoint():
            return {"type": "checkpoint", **asdict(item)}


def _batch_json(position: int, header: BatchHeader) -> dict[str, object]:
    return {
        "type": "batch",
        "position": position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "codec": header.codec.name.lower(),
        "leader_epoch": header.leader_epoch,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": header.timestamp_type.name.lower(),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "crc": header.crc,
    }


def _record_json(item: RecordItem, options: Options) -> dict[str, object]:
    record = item.record
    line: dict[str, object] = {
        "type": "record",
        "offset": record.offset,
        "timestamp": record.timestamp,
        **bytes_json("key", record.key, options.keys),
        **bytes_json("value", record.value, options.values),
        "headers": [
            {"key": name, **bytes_json("value", data, Shown.TEXT)} for name, data in record.headers
        ],
    }
    if item.marker is not None:
        line["marker"] = item.marker.type.name.lower()
        line["coordinator_epoch"] = item.marker.coordinator_epoch
    return line
