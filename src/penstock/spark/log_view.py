"""Shows the driver the topics of a source: their partitions, and from where to where to read.

Spark asks the same few questions again and again: which records are there now, where does the log
begin, which offset belongs to a time. This module answers them with the admin client. It also
notices lost data: partitions that are gone, topics that were created again, and offsets that
retention has deleted. The job's option `failOnDataLoss` decides what happens then.

A view recognizes a topic that was created again by its id. After a restart of the driver the old id
is not known, so only a log that ends before the position shows it.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self

from penstock.client.errors import BrokerError, ClientError, OptionError, TopicNotFound
from penstock.client.model import OffsetAndMetadata
from penstock.client.options import ConsumerOptions
from penstock.spark.client_options import check_client
from penstock.spark.clients import open_admin, open_consumer
from penstock.spark.offsets import EARLIEST_MARK, LATEST_MARK, Offsets
from penstock.spark.options import Bound, SourceOptions
from penstock.topic_partition import TopicPartition

if TYPE_CHECKING:
    from penstock.client.admin.inspection import LogDirInfo
    from penstock.client.admin.offsets import FoundOffset
    from penstock.client.admin.operations import TopicInfo

log = logging.getLogger(__name__)

When = int | Literal["earliest", "latest"]
RECORD_BYTES_GUESS: Final = 1024.0
"""The assumed size of a record if the broker does not report the size of the log."""


class DataLoss(ClientError):
    """Records were deleted before they were read."""


class AdminCalls(Protocol):
    """The methods of `penstock.Admin` that are used."""

    def list_topics(self, *, internal: bool = False) -> list[TopicInfo]: ...

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo | BrokerError]: ...

    def list_offsets(
        self, times: Mapping[TopicPartition, When]
    ) -> dict[TopicPartition, FoundOffset | None]: ...

    def describe_log_dirs(self, brokers: Sequence[int] | None = None) -> list[LogDirInfo]: ...

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> dict[TopicPartition, BrokerError | None]: ...

    def close(self) -> None: ...


class EndCalls(Protocol):
    """The methods of `penstock.Consumer` that are used to read only committed records."""

    def end_offsets(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]: ...

    def close(self) -> None: ...


class LogView:
    def __init__(
        self, admin: AdminCalls, options: SourceOptions, committed: EndCalls | None = None
    ) -> None:
        self._admin = admin
        self._options = options
        self._committed = committed
        """Gives the last stable offsets. None if uncommitted records are read, too."""
        self._ids: dict[str, str] = {}
        self._renewed: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._admin.close()
        if self._committed is not None:
            self._committed.close()

    # -- which topics ---------------------------------------------------------------------------

    def recall(self, ids: Mapping[str, str]) -> None:
        """Tells it the ids of the topics as they were when they were last read, perhaps by another
        process. A topic that has another id now was deleted and created again."""
        for topic, topic_id in ids.items():
            if self._ids.setdefault(topic, topic_id) != topic_id:
                self._renewed.add(topic)

    def ids(self, topic_partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """Returns the ids of the topics of these partitions, as they were last seen."""
        topics = sorted({topic_partition.topic for topic_partition in topic_partitions})
        return {topic: self._ids[topic] for topic in topics if topic in self._ids}

    def check_same(self) -> frozenset[str]:
        """Reports topics that were deleted and created again since they were read, and returns
        them."""
        for topic in sorted(self._renewed):
            self.lose(
                f"topic {topic} was deleted and created again, and a batch of the old one was not "
                "completed"
            )
        return frozenset(self._renewed)

    # -- which partitions -----------------------------------------------------------------------

    def topic_partitions(self) -> list[TopicPartition]:
        """Returns all partitions that the job names, all of which must exist; for a pattern, all
        that match."""
        choice = self._options.topics
        counts = self._counts()
        for name in self._names():
            if name not in counts:
                raise OptionError(
                    f"topic {name} does not exist: create it with `penstock topic create {name}`, "
                    "or correct the name in the options"
                )
        for topic_partition in choice.partitions:
            if topic_partition.partition >= counts[topic_partition.topic]:
                raise OptionError(
                    f"assign names partition {topic_partition.partition} of "
                    f"{topic_partition.topic}, "
                    f"which only has partitions 0 to {counts[topic_partition.topic] - 1}"
                )
        return self._chosen(counts)

    def topic_partitions_left(self) -> list[TopicPartition]:
        """Returns the partitions that still exist, for a job that has begun: missing ones existed
        before."""
        return self._chosen(self._counts())

    def take_renewed(self) -> set[str]:
        """Returns the topics that were found to be created again since the last call."""
        renewed, self._renewed = self._renewed, set()
        return renewed

    def _chosen(self, counts: Mapping[str, int]) -> list[TopicPartition]:
        if assigned := self._options.topics.partitions:
            return [
                topic_partition
                for topic_partition in assigned
                if topic_partition.partition < counts.get(topic_partition.topic, 0)
            ]
        return [TopicPartition(topic, index) for topic in counts for index in range(counts[topic])]

    def _names(self) -> list[str]:
        choice = self._options.topics
        return sorted(
            {*choice.names, *(topic_partition.topic for topic_partition in choice.partitions)}
        )

    def _counts(self) -> dict[str, int]:
        """Returns the number of partitions of each topic that exists."""
        found: list[TopicInfo] = []
        if self._options.topics.pattern:
            pattern = re.compile(self._options.topics.pattern)
            found = [each for each in self._admin.list_topics() if pattern.fullmatch(each.name)]
        else:
            for answer in self._admin.describe_topics(self._names()).values():
                if isinstance(answer, BrokerError):
                    if not isinstance(answer, TopicNotFound):
                        raise answer
                else:
                    found.append(answer)
        for topic in found:
            if not topic.topic_id:  # A broker that is older than topic ids.
                continue
            if self._ids.setdefault(topic.name, topic.topic_id) != topic.topic_id:
                self._ids[topic.name] = topic.topic_id
                self._renewed.add(topic.name)
        return {topic.name: len(topic.partitions) for topic in found}

    # -- from where, to where -------------------------------------------------------------------

    def earliest(self, topic_partitions: Iterable[TopicPartition]) -> Offsets:
        return self._at(dict.fromkeys(topic_partitions, "earliest"))

    def latest(self, topic_partitions: Iterable[TopicPartition]) -> Offsets:
        if self._committed is not None:
            return dict(self._committed.end_offsets(topic_partitions))
        return self._at(dict.fromkeys(topic_partitions, "latest"))

    def resolve(
        self, bound: Bound, topic_partitions: Sequence[TopicPartition], *, starting: bool
    ) -> Offsets:
        """Returns the offsets that a bound means now."""
        if bound.kind == "earliest":
            return self.earliest(topic_partitions)
        if bound.kind == "latest":
            return self.latest(topic_partitions)
        if bound.kind == "offsets":
            return self._from_offsets(bound.numbers, topic_partitions)
        if bound.kind == "timestamp":
            times = dict.fromkeys(topic_partitions, bound.timestamp_ms)
        else:
            _same_partitions(bound.numbers, topic_partitions)
            times = dict(bound.numbers)
        return self._by_time(times, starting)

    def _from_offsets(
        self, numbers: Mapping[TopicPartition, int], topic_partitions: Sequence[TopicPartition]
    ) -> Offsets:
        _same_partitions(numbers, topic_partitions)
        known = {
            topic_partition: number for topic_partition, number in numbers.items() if number >= 0
        }
        first = [
            topic_partition
            for topic_partition, number in numbers.items()
            if number == EARLIEST_MARK
        ]
        last = [
            topic_partition for topic_partition, number in numbers.items() if number == LATEST_MARK
        ]
        return known | self.earliest(first) | self.latest(last)

    def _by_time(self, times: Mapping[TopicPartition, int], starting: bool) -> Offsets:
        found = self._admin.list_offsets(dict(times))
        missing = [topic_partition for topic_partition, offset in found.items() if offset is None]
        if missing and starting and self._options.time_without_record == "error":
            raise OptionError(
                f"there is no record at or after the starting time in {_names(missing)}: to start "
                "with new records, set startingOffsetsByTimestampStrategy to latest"
            )
        ends = self.latest(missing)
        return {
            topic_partition: ends[topic_partition] if offset is None else offset.offset
            for topic_partition, offset in found.items()
        }

    def _at(self, wanted: Mapping[TopicPartition, When]) -> Offsets:
        if not wanted:
            return {}
        found = self._admin.list_offsets(wanted)
        return {
            topic_partition: 0 if offset is None else offset.offset
            for topic_partition, offset in found.items()
        }

    # -- what is lost ---------------------------------------------------------------------------

    def lose(self, message: str) -> None:
        """Raises `DataLoss`, or logs a warning if `failOnDataLoss` is false."""
        if self._options.fail_on_data_loss:
            flow = self._options.flow
            reset = f"--reset {shlex.quote(flow)}" if flow else "--reset and the name of the flow"
            raise DataLoss(
                f"{message}. To continue with the records that are left, set failOnDataLoss to "
                "false. To begin again with what is there now, use a new checkpoint; in a deployed "
                f"pipeline: penstock pipeline deploy {reset}"
            )
        log.warning("%s; continuing without them, because failOnDataLoss is false", message)

    def check_still_there(
        self, start: Mapping[TopicPartition, int], topic_partitions: Iterable[TopicPartition]
    ) -> Offsets:
        """Returns the starts without partitions that are gone. One that comes back is new."""
        left = set(topic_partitions)
        gone = sorted(set(start) - left)
        if gone:
            self.lose(f"partitions deleted, or no longer in the options: {_names(gone)}")
        return {
            topic_partition: offset
            for topic_partition, offset in start.items()
            if topic_partition in left
        }

    def check_not_before_start(
        self, start: Mapping[TopicPartition, int], earliest: Mapping[TopicPartition, int]
    ) -> Offsets:
        """Returns the starts, moved up to the log start offsets."""
        moved = dict(start)
        for topic_partition, offset in start.items():
            begins = earliest.get(topic_partition, offset)
            if offset < begins:
                self.lose(
                    f"offsets {offset} to {begins - 1} of {topic_partition} were deleted by "
                    "retention"
                )
                moved[topic_partition] = begins
        return moved

    def check_not_past_end(
        self, start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """Returns the partitions whose logs end before the offset that was read up to."""
        past = [
            topic_partition
            for topic_partition, offset in start.items()
            if offset > latest.get(topic_partition, offset)
        ]
        for topic_partition in past:
            self.lose(
                f"{topic_partition} ends at {latest[topic_partition]}, before the offset "
                f"{start[topic_partition]} up to which it "
                "was read: the topic was deleted and created again, or lost records"
            )
        return past

    def check_within(
        self, asked: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], option: str
    ) -> Offsets:
        """Returns the offsets from an option, limited to the log end offsets."""
        within = dict(asked)
        for topic_partition, offset in asked.items():
            if offset > latest[topic_partition]:
                self.lose(
                    f"{option} has {offset} for {topic_partition}, which ends at "
                    f"{latest[topic_partition]}"
                )
                within[topic_partition] = latest[topic_partition]
        return within

    # -- sizes and progress ---------------------------------------------------------------------

    def record_bytes(
        self, spans: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, float]:
        """Returns the average size of a record on disk, for logs that begin and end at `spans`.

        Asks the brokers once for all partitions. Where they report no size, it is a guess."""
        sizes: dict[TopicPartition, int] = {}
        try:
            for directory in self._admin.describe_log_dirs():
                for topic_partition, replica in directory.replicas.items():
                    sizes[topic_partition] = max(sizes.get(topic_partition, 0), replica.size_bytes)
        except ClientError as error:
            log.warning("cannot read the sizes of the logs, using an estimate: %s", error)
        return {
            topic_partition: sizes[topic_partition] / (end - begin)
            if sizes.get(topic_partition) and end > begin
            else RECORD_BYTES_GUESS
            for topic_partition, (begin, end) in spans.items()
        }

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commits the job's progress to the group. Returns whether that worked.

        This is only for monitoring: the job itself uses Spark's checkpoint, so a failure is logged
        and not raised."""
        try:
            outcomes = self._admin.alter_group_offsets(group, dict(offsets))
        except ClientError as error:
            log.warning("cannot commit offsets of group %s: %s; the query continues", group, error)
            return False
        refused = {
            topic_partition: error
            for topic_partition, error in outcomes.items()
            if error is not None
        }
        if refused:
            reasons = sorted({error.message for error in refused.values()})
            log.warning(
                "cannot commit offsets of group %s in %s: %s; the query continues",
                group,
                _names(refused),
                "; ".join(reasons),
            )
        return not refused


def open_view(options: SourceOptions) -> LogView:
    """Opens a view with its own clients, which it closes."""
    client = check_client(options)
    admin = open_admin(options)
    committed_only = isinstance(client, ConsumerOptions) and bool(client.isolation_level)
    return LogView(admin, options, open_consumer(options) if committed_only else None)


def _same_partitions(
    numbers: Mapping[TopicPartition, int], topic_partitions: Sequence[TopicPartition]
) -> None:
    missing, unknown = set(topic_partitions) - set(numbers), set(numbers) - set(topic_partitions)
    if missing or unknown:
        which = f"{_names(missing)} are missing" if missing else f"{_names(unknown)} do not exist"
        raise OptionError(
            f"offsets and times must name exactly the partitions that are read: {which} "
            "(-2 stands for earliest, -1 for latest)"
        )


def _names(topic_partitions: Iterable[TopicPartition]) -> str:
    names = sorted(map(str, topic_partitions))
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
