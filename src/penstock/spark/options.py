"""Parses and checks the options of a source or sink. Pure.

The names are those of Spark's own Kafka source, so that a job changes one word to migrate. Like all
of Spark's options they are not case-sensitive. `kafka.*` options are passed to the client. An
unknown option is refused, with the closest known name: a misspelled limit would otherwise only show
when an executor runs out of memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock.client.errors import OptionError
from penstock.spark.offsets import EARLIEST_MARK, LATEST_MARK, Offsets, parse_partition_numbers
from penstock.spark.option_reader import OptionReader
from penstock.topic_partition import TopicPartition

Format = Literal["bytes", "string", "json", "avro"]
BadRecords = Literal["fail", "column", "deadletter"]
FORMATS: Final[tuple[Format, ...]] = ("bytes", "string", "json", "avro")
BAD_RECORDS: Final[tuple[BadRecords, ...]] = ("fail", "column", "deadletter")

Delivery = Literal["at_least_once", "exactly_once"]
DELIVERIES: Final[tuple[Delivery, ...]] = ("at_least_once", "exactly_once")
MissingProgress = Literal["fail", "accept"]
MISSING_PROGRESS: Final[tuple[MissingProgress, ...]] = ("fail", "accept")
TimeWithoutRecord = Literal["error", "latest"]
TIME_WITHOUT_RECORD: Final[tuple[TimeWithoutRecord, ...]] = ("error", "latest")
QUARANTINE_OPTION: Final = "penstock.quarantine"
"""Added to the sink of a quarantine. It is not for users: any row can be a bad one, so the sink
must write all of them, also rows with NaN."""

SOURCE_OPTIONS: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "includeHeaders",
    "groupId",
    "shareGroup",
    "groupIdPrefix",
    "keyFormat",
    "keySchema",
    "keySchemaId",
    "valueFormat",
    "valueSchema",
    "valueSchemaId",
    "badRecords",
    "deadLetterTopic",
    "filterPushdown",
    "flow",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "profile",
)
SINK_OPTIONS: Final = (
    "topic",
    "profile",
    "includeHeaders",
    "keyFormat",
    "keySchema",
    "keySchemaId",
    "valueFormat",
    "valueSchema",
    "valueSchemaId",
    "delivery",
    "sink",
    "transactionTimeout",
    "missingProgress",
    "checkpointLocation",
)
_REFUSED_FOR_SOURCE: Final = {
    "kafka.auto.offset.reset": "use startingOffsets: Spark keeps the positions, not a group",
    "kafka.key.deserializer": "keys are bytes; use keyFormat, or cast in the DataFrame",
    "kafka.value.deserializer": "values are bytes; use valueFormat, or cast in the DataFrame",
    "kafka.enable.auto.commit": "use groupId, which commits the progress after every batch",
    "kafka.interceptor.classes": "Java classes cannot be loaded here",
}
_REFUSED_FOR_SINK: Final = {
    "kafka.key.serializer": "give keys as bytes or text, or use keyFormat",
    "kafka.value.serializer": "give values as bytes or text, or use valueFormat",
    "kafka.interceptor.classes": "Java classes cannot be loaded here",
    "kafka.transactional.id": "use delivery=exactly_once, which chooses the ids itself",
    "kafka.transaction.timeout.ms": "use transactionTimeout",
}
TRANSACTION_TIMEOUT_MS: Final = 10 * 60_000
"""How long a micro-batch may take to be written and committed. Brokers allow 15 min by default."""
NOT_WITH_SHARE_GROUP: Final = (
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "minOffsetsPerTrigger",
    "flow",
)
SHARE_RECORDS: Final = 10_000
"""Records per micro-batch of a share group."""
SHARE_RECORDS_MAX: Final = 100_000
_READ_UNCOMMITTED: Final = "read_uncommitted"
"""The leader decides which records a share group gets. Executors read exactly those."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: at the start or end of the log, at offsets, or at times."""

    kind: Literal["earliest", "latest", "offsets", "timestamp", "timestamps"]
    numbers: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets (-2 earliest, -1 latest) or milliseconds, for each partition."""
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Which topics or partitions to read. Exactly one of the fields is set."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        if self.pattern:
            return f"topics that match {self.pattern}"
        if self.partitions:
            return "partitions " + ", ".join(map(str, self.partitions))
        return "topics " + ", ".join(self.names)


@dataclass(frozen=True, slots=True)
class Formats:
    key: Format = "bytes"
    key_schema: str = ""
    value: Format = "bytes"
    value_schema: str = ""
    key_schema_id: int | None = None
    """With Avro: the id of the schema in a schema registry. Every encoded value begins with it."""
    value_schema_id: int | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    bootstrap_servers: str
    topics: TopicChoice
    starting: Bound
    ending: Bound
    time_without_record: TimeWithoutRecord = "error"
    """What to do if no record is at or after the starting time."""
    fail_on_data_loss: bool = True
    partitions_min: int | None = None
    partition_records_max: int | None = None
    trigger_offsets_max: int | None = None
    trigger_offsets_min: int | None = None
    trigger_delay_max_ms: int = 15 * 60_000
    trigger_bytes_max: int | None = None
    include_headers: bool = False
    group_id: str | None = None
    share_group: str = ""
    """The share group whose records the stream takes; empty if it reads the topics as a log."""
    formats: Formats = Formats()
    bad_records: BadRecords = "fail"
    dead_letter_topic: str = ""
    filter_pushdown: bool = False
    flow: str = ""
    """The flow of a deployed pipeline that reads this stream, for backfills."""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options for the client, in Python's spelling."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    bootstrap_servers: str
    topic: str | None
    formats: Formats = Formats()
    delivery: Delivery = "at_least_once"
    sink: str = ""
    """With exactly_once: the name under which the batches are counted."""
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    missing_progress: MissingProgress = "fail"
    """What to do with a batch above 0 if nothing is known about the batches before."""
    is_quarantine: bool = False
    """Whether NaN and infinities are written to JSON as texts, and not refused."""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)


def parse_source(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    options = OptionReader(given, SOURCE_OPTIONS, _REFUSED_FOR_SOURCE)
    bad_records = options.choice("badRecords", BAD_RECORDS, "fail")
    dead_letter_topic = options.text("deadLetterTopic")
    if (bad_records == "deadletter") != bool(dead_letter_topic):
        raise OptionError(
            "badRecords=deadletter and deadLetterTopic belong together: set both or neither"
        )
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if options.text(name):
                raise OptionError(
                    f"{name} is for batch reads: a stream has no end. Use spark.read, "
                    "or trigger(availableNow=True) to stop at the current end"
                )
    group_id = options.text("groupId") or options.client.pop("group_id", "")
    share_group = options.text("shareGroup")
    records_max = options.count("maxOffsetsPerTrigger")
    if share_group:
        records_max = _check_share(options, group_id, records_max)
    return SourceOptions(
        bootstrap_servers=options.bootstrap(),
        topics=_topics(options),
        starting=_bound(options, "starting", "latest" if streaming else "earliest"),
        ending=_bound(options, "ending", "latest"),
        time_without_record=options.choice(
            "startingOffsetsByTimestampStrategy", TIME_WITHOUT_RECORD, "error"
        ),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        partitions_min=options.count("minPartitions"),
        partition_records_max=options.count("maxRecordsPerPartition"),
        trigger_offsets_max=records_max,
        trigger_offsets_min=options.count("minOffsetsPerTrigger"),
        trigger_delay_max_ms=options.duration_ms("maxTriggerDelay", 15 * 60_000),
        trigger_bytes_max=options.size("maxBytesPerTrigger"),
        include_headers=options.flag("includeHeaders", False),
        group_id=group_id or None,
        share_group=share_group,
        formats=_formats(options, typed=False),
        bad_records=bad_records,
        dead_letter_topic=dead_letter_topic,
        filter_pushdown=options.pushdown(),
        flow=options.text("flow"),
        client=options.client,
    )


def _check_share(options: OptionReader, group_id: str, records_max: int | None) -> int:
    """Checks the options of a stream that reads a share group. Returns the records per batch."""
    for name in NOT_WITH_SHARE_GROUP:
        if options.text(name):
            raise OptionError(f"{name} does not work with shareGroup: leave it out")
    if group_id:
        raise OptionError("groupId does not work with shareGroup, which has its own progress")
    if options.client.setdefault("isolation_level", _READ_UNCOMMITTED) != _READ_UNCOMMITTED:
        raise OptionError(
            "kafka.isolation.level does not work with shareGroup: set share.isolation.level of the "
            "group, which decides what it delivers"
        )
    if records_max is not None and records_max > SHARE_RECORDS_MAX:
        raise OptionError(
            f"maxOffsetsPerTrigger is {records_max}: with shareGroup, at most {SHARE_RECORDS_MAX} "
            "records can be locked at a time. Lower it"
        )
    return records_max or SHARE_RECORDS


def parse_sink(given: Mapping[str, str]) -> SinkOptions:
    options = OptionReader(given, SINK_OPTIONS, _REFUSED_FOR_SINK, {QUARANTINE_OPTION})
    delivery = options.choice("delivery", DELIVERIES, "at_least_once")
    timeout_ms = options.duration_ms("transactionTimeout", TRANSACTION_TIMEOUT_MS)
    missing_progress = options.choice("missingProgress", MISSING_PROGRESS, "fail")
    if delivery == "at_least_once":
        for name, is_given in {
            "sink": options.text("sink") != "",
            "transactionTimeout": timeout_ms != TRANSACTION_TIMEOUT_MS,
            "missingProgress": missing_progress != "fail",
        }.items():
            if is_given:
                raise OptionError(f"{name} works only with delivery=exactly_once: leave it out")
    return SinkOptions(
        bootstrap_servers=options.bootstrap(),
        topic=options.text("topic") or None,
        formats=_formats(options, typed=True),
        delivery=delivery,
        sink=options.text("sink") or options.text("queryName"),
        transaction_timeout_ms=timeout_ms,
        missing_progress=missing_progress,
        is_quarantine=options.flag(QUARANTINE_OPTION, False),
        client=options.client,
    )


def _topics(options: OptionReader) -> TopicChoice:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if options.text(name)]
    if len(given) != 1:
        what = f"{' and '.join(given)} are set" if given else "none is set"
        raise OptionError(f"choose the topics with exactly one of {', '.join(names)}: {what}")
    text = options.text(given[0])
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise OptionError(f"subscribe is {text!r}: write topic names, separated by commas")
        return TopicChoice(names=topics)
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(
                f"subscribePattern is {text}, which is not a regular expression: {error}"
            ) from None
        return TopicChoice(pattern=text)
    return TopicChoice(partitions=_assigned(text))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    shape = 'assign must look like {"topic": [0, 1]}'
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{shape}, and is not JSON: {error}") from None
    if not isinstance(given, dict) or not given:
        raise OptionError(f"{shape}; it is {text}")
    topic_partitions = []
    for topic, partitions in given.items():
        if not isinstance(partitions, list) or not all(
            type(number) is int and number >= 0 for number in partitions
        ):
            raise OptionError(f"{shape}; topic {topic} has {json.dumps(partitions)}")
        topic_partitions += [TopicPartition(topic, number) for number in partitions]
    return tuple(sorted(set(topic_partitions)))


def _bound(options: OptionReader, side: str, default: Literal["earliest", "latest"]) -> Bound:
    """Returns the bound from the first of these that is set: one time for all partitions, a time
    for each, offsets."""
    name = f"{side}Timestamp"
    if text := options.text(name):
        if not text.isdecimal():
            raise OptionError(f"{name} is {text}: write milliseconds since 1970")
        return Bound("timestamp", timestamp_ms=int(text))
    name = f"{side}OffsetsByTimestamp"
    if text := options.text(name):
        return Bound("timestamps", _checked(parse_partition_numbers(text, name), name, 0))
    name = f"{side}Offsets"
    text = options.text(name)
    other = "latest" if side == "starting" else "earliest"
    if text.lower() in ("earliest", "latest") and (side == "starting" or text.lower() != other):
        return Bound("earliest" if text.lower() == "earliest" else "latest")
    if not text:
        return Bound(default)
    if not text.startswith("{"):
        may = "earliest, latest" if side == "starting" else "latest"
        raise OptionError(f"{name} is {text}: use {may}, or JSON with an offset for each partition")
    least = EARLIEST_MARK if side == "starting" else LATEST_MARK
    return Bound("offsets", _checked(parse_partition_numbers(text, name), name, least))


def _checked(numbers: Offsets, name: str, least: int) -> Offsets:
    for topic_partition, number in numbers.items():
        if number < least:
            raise OptionError(f"{name} has {number} for {topic_partition}: use {least} or more")
    return numbers


def _formats(options: OptionReader, *, typed: bool) -> Formats:
    """Reads the formats of key and value. `typed` columns (of a sink) need no schema for JSON."""
    found: dict[str, tuple[Format, str, int | None]] = {}
    for side in ("key", "value"):
        kind = options.choice(f"{side}Format", FORMATS, "bytes")
        schema = options.text(f"{side}Schema")
        schema_id = options.text(f"{side}SchemaId")
        if (kind == "avro" or (kind == "json" and not typed)) and not schema:
            raise OptionError(
                f"{side}Format is {kind}: also set {side}Schema, "
                + (
                    "for example to 'id BIGINT, name STRING'"
                    if kind == "json"
                    else "to the Avro schema in JSON"
                )
            )
        if schema and kind not in ("json", "avro"):
            raise OptionError(f"{side}Schema has no effect with {side}Format={kind}: leave it out")
        if schema_id and kind != "avro":
            raise OptionError(
                f"{side}SchemaId has no effect with {side}Format={kind}: leave it out"
            )
        if schema_id and not schema_id.isdecimal():
            raise OptionError(
                f"{side}SchemaId is {schema_id}: write the id from the schema registry"
            )
        found[side] = kind, schema, int(schema_id) if schema_id else None
    key, value = found["key"], found["value"]
    return Formats(key[0], key[1], value[0], value[1], key[2], value[2])
