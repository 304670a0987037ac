"""The settings of the accumulator, and the limit on records that follows from them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.errors import RecordTooLarge
from penstock.client.producing.batches import BATCH_OVERHEAD
from penstock.records.batch import HEADER_SIZE
from penstock.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class AccumulatorConfig:
    batch_size: int = 16_384
    linger_s: float = 0.005
    buffer_memory: int = 32 << 20
    max_request_size: int = 1 << 20
    delivery_timeout_s: float = 120.0
    attempts_max: int = 1 << 31
    idempotent: bool = True
    transactional: bool = False

    def check_size(self, topic_partition: TopicPartition, bytes_max: int) -> None:
        limit = min(
            self.max_request_size,
            (self.buffer_memory - BATCH_OVERHEAD) // 9 * 8,
        )
        if HEADER_SIZE + bytes_max > limit:
            raise RecordTooLarge(
                f"{topic_partition}: a record of {bytes_max} bytes is more than this producer "
                "allows: raise "
                f"max_request_size (now {self.max_request_size}), and buffer_memory (now "
                f"{self.buffer_memory}) if that is smaller"
            )
