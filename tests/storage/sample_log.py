"""A log on the real disk with all kinds of batches, and the batches that were appended to it.

Several segments, all codecs, null keys and values, headers, an idempotent producer, transactions
with their markers, three leader epochs. It is the same every time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.records.batch import BatchHeader, Codec, read_header
from penstock.records.record import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    control_batch,
    read_records,
)
from penstock.storage.config import LogConfig
from penstock.storage.creation import create_log
from penstock.storage.disk import OsDisk
from penstock.storage.files import FilePool
from penstock.storage.index import IndexCache
from penstock.storage.log import Log
from penstock.storage.opening import LogResources
from penstock.storage.recovery import open_log
from penstock.storage.space import SpaceGuard

TOPIC_ID = "JGvBUYNFRnKdHwzAcGZPMQ"
START_MS = 1_700_000_000_000
PRODUCER_ID = 7
CONFIG = LogConfig(segment_bytes=2048, index_interval_bytes=256)


@dataclass(slots=True)
class SampleLog:
    log: Log
    resources: LogResources
    batches: list[tuple[BatchHeader, list[Record]]] = field(default_factory=list)
    sequence: int = 0

    @property
    def directory(self) -> str:
        return self.log.directory

    def append(self, records: list[Record], codec: Codec, epoch: int) -> None:
        batch = build_batch(
            records,
            codec=codec,
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=self.sequence,
            transactional=True,
        )
        self.sequence += len(records)
        self.append_batch(batch, epoch)

    def append_batch(self, batch: bytearray, epoch: int) -> None:
        self.log.append(batch, epoch, START_MS)
        header = read_header(batch)
        self.batches.append((header, read_records(batch, header)))

    def fill(self, count: int = 60) -> None:
        for number in range(count):
            epoch = 3 * number // count
            self.append(sample_records(number), Codec(number % 5), epoch)
            if number % 20 == 19:
                marker = ControlMarker(ControlType.COMMIT, 4)
                at_ms = START_MS + 10 * number + 9
                self.append_batch(
                    control_batch(
                        marker, producer_id=PRODUCER_ID, producer_epoch=0, timestamp=at_ms
                    ),
                    epoch,
                )

    def close(self) -> None:
        """Stops cleanly."""
        self.log.close()
        self.resources.pool.close()

    def kill(self) -> None:
        """Stops without closing the log, like kill -9."""
        self.resources.pool.close()


def sample_records(number: int) -> list[Record]:
    """Returns one to five records. They differ in null fields and headers."""
    return [
        Record(
            offset=at,
            timestamp=START_MS + 10 * number + at,
            key=f"key-{at}".encode() if at % 2 else None,
            value=f"value {number} ".encode() * (at + 1) if at % 3 else None,
            headers=(("trace", b"\x01"), ("empty", None)) if at == 1 else (),
        )
        for at in range(number % 5 + 1)
    ]


def new_resources(root: str) -> LogResources:
    disk = OsDisk()
    return LogResources(FilePool(disk), IndexCache(), SpaceGuard(disk, root, 0))


def new_log(
    root: str, topic: str = "orders", partition: int = 0, config: LogConfig = CONFIG
) -> SampleLog:
    resources = new_resources(root)
    log = create_log(
        resources, root, topic, partition, topic_id=TOPIC_ID, config=config, now_ms=START_MS
    )
    return SampleLog(log, resources)


def stopped_log(root: str, topic: str = "orders", partition: int = 0) -> SampleLog:
    """Returns a filled log after a clean stop."""
    sample = new_log(root, topic, partition)
    sample.fill()
    sample.close()
    return sample


def reopen(directory: str) -> Log:
    """Opens the log as the next start would, and releases it without a clean stop."""
    resources = new_resources(directory.rpartition("/")[0])
    log, _ = open_log(resources, directory, CONFIG, START_MS)
    log.flush(checkpoint=True)
    resources.pool.close()
    return log
