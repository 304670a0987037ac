"""Creates an empty log, durably."""

from __future__ import annotations

from dataclasses import replace

from penstock.partition.epochs import LeaderEpochs
from penstock.partition.producers import ProducerStates
from penstock.ports import Disk
from penstock.storage.checkpoints import (
    encode_checkpoint,
    encode_partition_metadata,
    first_checkpoint,
    write_unnamed,
)
from penstock.storage.config import LogConfig
from penstock.storage.encrypted_disk import protect
from penstock.storage.files import LOG_CHECKPOINT, PARTITION_METADATA, partition_directory
from penstock.storage.log import Log
from penstock.storage.log_state import LogParts
from penstock.storage.opening import LogResources
from penstock.storage.segment import Segment


def create_log(
    resources: LogResources,
    root: str,
    topic: str,
    partition: int,
    *,
    topic_id: str,
    config: LogConfig,
    now_ms: int,
    start_offset: int = 0,
    sync_root: bool = True,
) -> Log:
    """Creates an empty log. It survives a crash once this returns and the root directory is synced.
    Without `sync_root` the caller must sync the root, once for many logs."""
    disk = resources.disk
    directory = f"{root}/{partition_directory(topic, partition)}"
    disk.mkdir(directory)
    protect(disk, directory, topic_id, partition, config.encryption)
    if sync_root:
        disk.sync_directory(root)
    segment = Segment(
        directory,
        start_offset,
        resources.pool,
        resources.cache,
        created_ms=now_ms,
        index_interval_bytes=config.index_interval_bytes,
    )
    _write_files(disk, segment, topic_id, now_ms)
    parts = LogParts(
        directory=directory,
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        config=config,
        segments=[segment],
        log_start_offset=start_offset,
        end_offset=start_offset,
        recovery_point=start_offset,
        noted_point=start_offset,
        cleaned_offset=start_offset,
        sparse_offset=start_offset,
        epochs=LeaderEpochs(),
        producers=ProducerStates(),
        damage=[],
        dirty=[],
        names_dirty=False,
        epochs_dirty=False,
        unindexed_offset=None,
        generation=now_ms,
    )
    log = Log(parts, resources.pool, resources.cache, resources.space)
    log.state.changed = True
    return log


def _write_files(disk: Disk, segment: Segment, topic_id: str, now_ms: int) -> None:
    directory = segment.files.directory
    disk.open(segment.path, create=True).close()
    # The clock distinguishes this log from an earlier one in the same directory that was removed by
    # hand.
    checkpoint = encode_checkpoint(
        replace(first_checkpoint(segment.base_offset), generation=now_ms)
    )
    # No caller knows about the log yet. Whichever of these files a crash leaves, the log is empty.
    write_unnamed(disk, directory, LOG_CHECKPOINT, checkpoint)
    write_unnamed(disk, directory, PARTITION_METADATA, encode_partition_metadata(topic_id))
    disk.sync_directory(directory)
