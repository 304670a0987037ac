"""Deletes records from the start of a partition's log, on its leader."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replicas import Replicas
from penstock.ports import Executor
from penstock.storage.errors import StorageError

_log = logging.getLogger(__name__)


async def trim_log(
    executor: Executor, replicas: Replicas, hosted: HostedPartition, choose: Callable[[], int]
) -> None:
    """Raises the log start offset to the one that `choose` returns.

    `choose` is called when the log is free, and may raise: while other tasks held the log, the
    leader or its settings may have changed.
    """
    log = hosted.log
    async with replicas.flusher.exclusive(log):
        segments_before = len(log.segments)
        log.delete_before(choose())
        has_waste = len(log.segments) < segments_before
    if has_waste:
        try:
            await executor.run(log.purge)
        except StorageError as error:
            # The records are deleted all the same; the next deletion removes the files.
            _log.warning("%s-%d: %s", hosted.topic, hosted.index, error)
    hosted.on_log_start()
