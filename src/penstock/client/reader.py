"""Records out of partitions: one fetch at a time to each leader, all leaders side by side.

A fetch is a long poll: the broker answers when there is something, or after a while. Answers of a
connection come in order, so fetches have connections of their own and hold up nothing else. A
batch is returned whole even if it is wanted from its middle; records before the position are
dropped here. Positions move past every batch that was read, whether records were left in it or
not, since compaction leaves gaps and even empty batches.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError, ClientError, NotKafka, check
from penstock.client.model import TopicPartition
from penstock.client.offsets import EARLIEST, LATEST, list_offsets
from penstock.records.batch import HEADER_SIZE, Buffer, CorruptBatch, read_header, validate
from penstock.records.record import Record, read_records
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FetchRequest, FetchResponse

_PURPOSE = "fetch"
_WAIT_MARGIN_S = 10.0
"""What an answer may take beyond the long poll that was asked for."""


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    max_wait_ms: int = 500
    min_bytes: int = 1
    response_bytes: int = 16 << 20
    partition_bytes: int = 1 << 20


class Fetched(NamedTuple):
    place: TopicPartition
    records: list[Record]
    high_watermark: int


class Reset(NamedTuple):
    """A position that the log no longer holds, and the one that reading went on from."""

    place: TopicPartition
    lost_offset: int
    offset: int


class _Answer(NamedTuple):
    leader: int
    response: FetchResponse | None
    error: ClientError | None


class Reader:
    """Use as `async with Reader(cluster, positions) as reader`, then `poll` again and again."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        config: ReaderConfig | None = None,
    ) -> None:
        self.positions = dict(positions)
        self.resets: list[Reset] = []
        """Positions that were lost to retention; whoever reads says so, and clears."""
        self._lost: list[TopicPartition] = []
        self._cluster = cluster
        self._config = config or ReaderConfig()
        self._fetching: dict[int, asyncio.Task[_Answer]] = {}
        self._tasks = asyncio.TaskGroup()
        self._failed_since: float | None = None
        self._backoff_s = 0.0

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._fetching.values():
            task.cancel()
        await self._tasks.__aexit__(None, None, None)

    async def poll(self, timeout_s: float) -> list[Fetched]:
        """What has come by now, or within the timeout; may be nothing.

        Goes on while a leader moves or a broker restarts, for as long as the cluster's deadline
        allows without a single answer."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._poll()
        except TimeoutError:
            return []

    async def _poll(self) -> list[Fetched]:
        """Nothing waits between taking an answer and returning it: a timeout there would lose it,
        since positions have moved."""
        while True:
            try:
                await self._reset_lost()
                await self._start_fetches()
            except ClientError as error:
                await self._pause(error)
                continue
            done, _ = await asyncio.wait(
                self._fetching.values(), return_when=asyncio.FIRST_COMPLETED
            )
            fetched: list[Fetched] = []
            failed: ClientError | None = None
            for task in done:
                answer = task.result()
                del self._fetching[answer.leader]
                failed = self._take(answer, fetched) or failed
            if fetched:
                return fetched
            if failed is not None:
                await self._pause(failed)

    async def _start_fetches(self) -> None:
        leaders: dict[int, list[TopicPartition]] = defaultdict(list)
        for place in self.positions:
            leaders[await self._cluster.leader(place)].append(place)
        for leader, places in leaders.items():
            if leader not in self._fetching:
                self._fetching[leader] = self._tasks.create_task(self._fetch(leader, places))

    async def _fetch(self, leader: int, places: Sequence[TopicPartition]) -> _Answer:
        """Failures are values: they belong to whoever polls, not to the task group."""
        config = self._config
        topics: dict[str, list[FetchRequest.Partition]] = defaultdict(list)
        for place in places:
            topics[place.topic].append(
                FetchRequest.Partition(
                    place.partition,
                    fetch_offset=self.positions[place],
                    partition_max_bytes=config.partition_bytes,
                )
            )
        request = FetchRequest(
            max_wait_ms=config.max_wait_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.response_bytes,
            topics=[
                FetchRequest.Topic(name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )
        try:
            connection = await self._cluster.connection(leader, _PURPOSE)
            timeout_s = config.max_wait_ms / 1000 + _WAIT_MARGIN_S
            response = await connection.call(request, FetchResponse, timeout_s=timeout_s)
        except ClientError as error:
            return _Answer(leader, None, error)
        return _Answer(leader, response, None)

    def _take(self, answer: _Answer, fetched: list[Fetched]) -> ClientError | None:
        """Add what came; what did not, and why, is returned, and asked for elsewhere next time."""
        failed = answer.error
        if answer.response is not None:
            if answer.response.error_code != ErrorCode.NONE:
                failed = BrokerError(answer.response.error_code, subject="Fetch")
            for topic in answer.response.responses:
                for partition in topic.partitions:
                    place = TopicPartition(topic.topic, partition.partition_index)
                    try:
                        if records := self._decode(place, partition):
                            fetched.append(Fetched(place, records, partition.high_watermark))
                    except ClientError as error:
                        failed = error
        if failed is None:
            self._failed_since = None
        else:
            self._forget_leaders()
        return failed

    def _forget_leaders(self) -> None:
        for topic in {place.topic for place in self.positions}:
            self._cluster.forget(topic)

    def _decode(self, place: TopicPartition, partition: FetchResponse.Partition) -> list[Record]:
        if partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._lost.append(place)
            return []
        check(partition.error_code, subject=str(place))
        data = partition.records
        if data is None or not len(data):
            return []
        assert not isinstance(data, list)
        try:
            records, self.positions[place] = decode_from(data, self.positions[place])
        except CorruptBatch as error:
            raise NotKafka(
                f"what {place} holds at offset {self.positions[place]} cannot be read: {error}"
            ) from error
        return records

    async def _reset_lost(self) -> None:
        """Records that were to be read next are gone: go on with the oldest there are. Where the
        position is beyond the end, because the topic was made anew, go on from the end."""
        while self._lost:
            place = self._lost[-1]
            position = self.positions[place]
            start = (await list_offsets(self._cluster, {place: EARLIEST}))[place].offset
            if start <= position:
                start = (await list_offsets(self._cluster, {place: LATEST}))[place].offset
            self.resets.append(Reset(place, position, start))
            self.positions[place] = start
            self._lost.pop()

    async def _pause(self, error: ClientError) -> None:
        clock = self._cluster.clock
        config = self._cluster.config
        if self._failed_since is None:
            self._failed_since = clock.monotonic()
            self._backoff_s = config.retry_backoff_s
        if not error.retriable or clock.monotonic() - self._failed_since > config.deadline_s:
            raise error
        self._forget_leaders()
        await clock.sleep(self._backoff_s * (0.5 + self._cluster.random.uniform()))
        self._backoff_s = min(self._backoff_s * 2, config.retry_backoff_max_s)


def decode_from(data: Buffer, offset: int) -> tuple[list[Record], int]:
    """The records at or after `offset` in whole batches, and the offset to go on from.

    Control batches, which end transactions, are passed over. A fetch may end in the middle of a
    batch; that part comes again."""
    view = memoryview(data)
    records: list[Record] = []
    position = 0
    while len(view) - position >= HEADER_SIZE:
        size = read_header(view, position).size
        if size > len(view) - position:
            break
        header = validate(view, position)
        if not header.is_control and header.last_offset >= offset:
            found = read_records(view[position : position + size], header)
            if header.base_offset < offset:
                found = [record for record in found if record.offset >= offset]
            records += found
        offset = max(offset, header.next_offset)
        position += size
    return records, offset
