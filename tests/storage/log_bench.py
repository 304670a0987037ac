"""What storage tests share: a disk, a log on it, and ways to stop the process that uses it.

`LogBench` creates and opens logs. A stop is either `kill` (the page cache stays) or `lose_power`.
Both leave the log object of the dead process unusable, and `open` starts the next process.
`each_interruption` repeats an action and stops it before its first change of the disk, its second
and so on until it completes, so that a test can check the same promise at every point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from penstock.partition.epochs import EpochStart
from penstock.partition.producer_state import ProducerEntry
from penstock.ports import Disk
from penstock.records.batch import HEADER_SIZE, BatchHeader, iter_batches, read_header
from penstock.records.record import Record, build_batch, read_records
from penstock.sim.disk.disk import SimDisk
from penstock.storage.config import LogConfig
from penstock.storage.creation import create_log
from penstock.storage.files import FilePool, offset_name
from penstock.storage.index import IndexCache
from penstock.storage.log import Log
from penstock.storage.offset_checkpoint import LogOffsets
from penstock.storage.opening import LogResources, RecoveryReport
from penstock.storage.recovery import open_log
from penstock.storage.space import SpaceGuard

ROOT = "/data"
NOW_MS = 1_000_000
CHANGES = frozenset(
    "create pwrite truncate fsync mkdir rename unlink rmdir sync_directory".split()  # noqa: SIM905
)
"""The operations that change the disk. Between two of these, it does not matter when a stop
happens."""


class Stopped(Exception):
    """The process ends here. Not an `OSError`: code under test cannot handle it."""


class LogBench:
    """A disk with a durable, empty root, and the resources of the process that uses it now."""

    def __init__(
        self,
        disk: Disk,
        root: str = ROOT,
        *,
        handles_max: int = 100,
        cache_bytes_max: int = 1 << 20,
        reserve_bytes: int = 0,
    ) -> None:
        self.disk = disk
        self.root = root
        self._limits = (handles_max, cache_bytes_max, reserve_bytes)
        self.directory = f"{root}/t-0"
        self.config = LogConfig()
        self.report = RecoveryReport(self.directory)
        self.start_process()

    def start_process(self) -> None:
        """Creates the resources of a fresh process: no open files, nothing cached."""
        handles_max, cache_bytes_max, reserve_bytes = self._limits
        self.resources = LogResources(
            FilePool(self.disk, handles_max),
            IndexCache(cache_bytes_max),
            SpaceGuard(self.disk, self.root, reserve_bytes),
        )

    @property
    def sim(self) -> SimDisk:
        assert isinstance(self.disk, SimDisk)
        return self.disk

    def create(self, config: LogConfig | None = None) -> Log:
        self.config = config or self.config
        return create_log(
            self.resources, self.root, "t", 0, topic_id="id", config=self.config, now_ms=NOW_MS
        )

    def open(self, *, known: LogOffsets | None = None, cache_is_intact: bool = False) -> Log:
        """Opens the log. `report` then contains what recovery found."""
        log, self.report = open_log(
            self.resources,
            self.directory,
            self.config,
            NOW_MS,
            known=known,
            cache_is_intact=cache_is_intact,
        )
        return log

    def reopen(self, log: Log) -> Log:
        """Restarts cleanly."""
        log.close()
        self.resources.pool.close()
        self.start_process()
        return self.open()

    def kill(self) -> None:
        self.sim.kill()
        self.start_process()

    def lose_power(self) -> None:
        self.sim.power_loss()
        self.start_process()

    def kill_and_open(self) -> Log:
        self.kill()
        return self.open()

    # Files

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def log_path(self, base_offset: int = 0) -> str:
        return self.path(offset_name(base_offset, ".log"))

    def names(self, suffix: str = "") -> list[str]:
        return [name for name in self.disk.listdir(self.directory) if name.endswith(suffix)]

    def read_file(self, path: str) -> bytes:
        file = self.disk.open(path)
        data = file.pread(file.size(), 0)
        file.close()
        return data

    def write_file(self, path: str, data: bytes) -> None:
        """Replaces a file's contents durably, without the log's knowledge."""
        file = self.disk.open(path, create=True)
        file.truncate(0)
        assert file.pwrite(data, 0) == len(data)
        file.fsync()
        file.close()
        self.disk.sync_directory(path.rpartition("/")[0])

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        data = bytearray(self.read_file(path))
        data[position] ^= 1 << bit
        self.write_file(path, bytes(data))

    def batches(self, base_offset: int = 0) -> list[tuple[int, BatchHeader]]:
        """Returns position and header of every batch in a segment's file, using only their
        lengths."""
        data, position, found = self.read_file(self.log_path(base_offset)), 0, []
        while len(data) - position >= HEADER_SIZE:
            header = read_header(data, position)
            found.append((position, header))
            position += header.size
        return found

    def position_of(self, offset: int, base_offset: int = 0) -> int:
        """Returns the position of the batch that contains `offset`."""
        return next(at for at, held in self.batches(base_offset) if held.last_offset >= offset)


def new_bench(
    seed: int = 1,
    *,
    handles_max: int = 100,
    cache_bytes_max: int = 1 << 20,
    reserve_bytes: int = 0,
) -> LogBench:
    disk = SimDisk(Random(seed), Random(seed + 1))
    disk.mkdir(ROOT)
    disk.sync_directory("/")
    return LogBench(
        disk,
        handles_max=handles_max,
        cache_bytes_max=cache_bytes_max,
        reserve_bytes=reserve_bytes,
    )


def record(number: int, *, key: bytes | None = b"k", size: int = 40) -> Record:
    """Returns a record whose value and timestamp contain its number."""
    return Record(0, NOW_MS + number, key, b"%06d" % number + b"." * (size - 6))


def append(log: Log, count: int = 1, *, epoch: int = 0, size: int = 40) -> None:
    """Appends `count` batches of one record. Each record contains its offset."""
    for _ in range(count):
        offset = log.end_offset
        log.append(build_batch([record(offset, size=size)]), epoch, NOW_MS + offset)


def append_produced(log: Log, producer_id: int, sequence: int, count: int = 1) -> None:
    """Appends batches of one record each from an idempotent producer."""
    for number in range(count):
        batch = build_batch(
            [record(log.end_offset)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence + number,
        )
        log.append(batch, 0, NOW_MS)


def append_batch(log: Log, count: int, *, epoch: int = 0) -> None:
    """Appends one batch of `count` records."""
    first = log.end_offset
    records = [record(first + at)._replace(offset=at) for at in range(count)]
    log.append(build_batch(records), epoch, NOW_MS + first)


def records_of(log: Log, start: int | None = None, bytes_max: int = 1 << 16) -> list[Record]:
    """Returns every record from `start` (default: the log start) as a reader sees them."""
    offset = log.log_start_offset if start is None else start
    found: list[Record] = []
    wanted = offset
    while (piece := log.read(offset, bytes_max)) is not None:
        for position, header in iter_batches(piece.data):
            batch = piece.data[position : position + header.size]
            found += [held for held in read_records(batch) if held.offset >= wanted]
            offset = header.next_offset
    return found


def offsets_of(log: Log, start: int | None = None) -> list[int]:
    return [held.offset for held in records_of(log, start)]


class LogState(tuple[object, ...]):
    """Everything that a restart must restore, in a form that can be compared."""

    __slots__ = ()


def state_of(log: Log) -> LogState:
    producers: list[ProducerEntry] = sorted(log.producers.entries(5))
    epochs: tuple[EpochStart, ...] = log.epochs.entries
    bounds = (log.log_start_offset, log.end_offset)
    return LogState((bounds, records_of(log), epochs, producers, list(log.damage)))


def count_changes(disk: SimDisk, action: Callable[[], object]) -> int:
    """Returns how many changes of the disk the action makes."""
    made = 0

    def observer(operation: str, path: str) -> None:
        nonlocal made
        made += operation in CHANGES

    disk.observe(observer)
    try:
        action()
    finally:
        disk.observe(None)
    return made


def stop_before(disk: SimDisk, change: int, action: Callable[[], object]) -> bool:
    """Runs the action and stops it before change number `change`. Returns False if it made
    fewer."""
    made = 0

    def observer(operation: str, path: str) -> None:
        nonlocal made
        # The dying process may still close its handles: that changes nothing.
        if operation in CHANGES:
            made += 1
            if made > change:
                raise Stopped

    disk.observe(observer)
    try:
        action()
    except Stopped:
        return True
    finally:
        disk.observe(None)
    return False


def each_interruption(
    prepare: Callable[[LogBench], Callable[[], object]], *, power_loss_seeds: int = 6
) -> Iterator[LogBench]:
    """Yields a bench for each point where the action can be stopped, by a kill and by power cuts.

    `prepare` readies a bench and returns the action. The bench is yielded after the stop.
    """
    probe = new_bench()
    changes = count_changes(probe.sim, prepare(probe))
    assert changes > 0, "the action changes nothing: there is nothing to interrupt"
    for change in range(changes + 1):
        for seed in range(power_loss_seeds + 1):
            bench = new_bench(seed)
            stopped = stop_before(bench.sim, change, prepare(bench))
            assert stopped == (change < changes)
            if seed == 0:
                bench.kill()
            else:
                bench.lose_power()
            yield bench
