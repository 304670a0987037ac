"""All the logs of one data directory.

    ROOT/TOPIC-PARTITION/          one log
    ROOT/TOPIC-PARTITION.ID-delete a log being deleted; finished at the next start if interrupted
    ROOT/penstock-offsets          how far each log was last known to be synced and committed

Idle logs cost a few kilobytes: no open file, no index in memory. What they share, file handles and
cached indexes, is bounded for all of them together.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count

from penstock.ports import Disk
from penstock.storage.config import LogConfig
from penstock.storage.errors import CorruptFile, StorageError, disk_trouble
from penstock.storage.files import (
    PARTITION_METADATA,
    FilePool,
    parse_offset_name,
    parse_partition_directory,
    partition_directory,
)
from penstock.storage.index import IndexCache
from penstock.storage.log import Log
from penstock.storage.offset_checkpoint import LogOffsets, read_offsets, write_offsets
from penstock.storage.recovery import create_log, open_log
from penstock.storage.salvage import LogResources, RecoveryReport
from penstock.storage.space import SpaceGuard

_NAME_KEPT = 180
_RECOVERY_FILES_MAX = 64
_RECOVERY_CACHE_BYTES = 4 << 20
_log = logging.getLogger(__name__)
_DELETED = re.compile(r".+\.[A-Za-z0-9_-]+-delete")


@dataclass(frozen=True, slots=True)
class DirectoryConfig:
    open_files_max: int = 1000
    index_cache_bytes_max: int = 64 << 20
    disk_reserve_bytes: int = 256 << 20
    """Appends are refused when less than this is free."""

    def __post_init__(self) -> None:
        if self.open_files_max < 16:
            raise ValueError("open_files_max must be at least 16")
        if self.disk_reserve_bytes < 0:
            raise ValueError("disk_reserve_bytes cannot be negative")


class LogDirectory:
    def __init__(self, disk: Disk, root: str, config: DirectoryConfig | None = None) -> None:
        config = config or DirectoryConfig()
        self.root = root
        self.disk = disk
        _make_durably(disk, root)
        self.space = SpaceGuard(disk, root, config.disk_reserve_bytes)
        self._resources = LogResources(
            FilePool(disk, config.open_files_max),
            IndexCache(config.index_cache_bytes_max),
            self.space,
        )
        self._logs: dict[tuple[str, int], Log] = {}

    def __iter__(self) -> Iterator[Log]:
        return iter(self._logs.values())

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def open_files(self) -> int:
        return len(self._resources.pool)

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    def open_all(
        self,
        config_for: Callable[[str, int], LogConfig],
        now_ms: int,
        *,
        cache_is_intact: bool = False,
    ) -> list[RecoveryReport]:
        """Open every log under the root; what each needed is reported. Blocking.

        `cache_is_intact` says that the machine has not been booted since a log was last written.
        """
        self.space.take_ballast()
        known = self._known_offsets()
        reports = []
        for name in self.disk.listdir(self.root):
            path = f"{self.root}/{name}"
            if not self.disk.stat(path).is_directory:
                continue
            if _DELETED.fullmatch(name) and self._is_deleted_log(path):
                self._remove_tree(path)
                continue
            parsed = parse_partition_directory(name)
            if parsed is None:
                continue
            if self._creation_unfinished(path):
                self._remove_tree(path)
                continue
            try:
                log, report = open_log(
                    self._resources,
                    path,
                    config_for(*parsed),
                    now_ms,
                    known=known.get(name),
                    cache_is_intact=cache_is_intact,
                )
            except (OSError, StorageError) as error:
                # One bad log must not keep the others from serving; it is there to be seen.
                report = RecoveryReport(path)
                report.notes.append(f"could not be opened: {error}")
            else:
                self._logs[parsed] = log
            reports.append(report)
        if self._logs:
            # Whoever made one of them may have been killed before this.
            self.sync_root()
        return reports

    def _known_offsets(self) -> dict[str, LogOffsets]:
        try:
            return read_offsets(self.disk, self.root)
        except CorruptFile as error:
            _log.warning("%s; it is ignored, high watermarks come from other replicas", error)
            return {}

    def note_offsets(self, offsets: Mapping[str, LogOffsets]) -> None:
        """Blocking, for any thread: have the next start know of these (`offset_checkpoint`)."""
        with disk_trouble(f"the offsets of {self.root} could not be noted"):
            write_offsets(self.disk, self.root, offsets)

    def sync_root(self) -> None:
        """Blocking, for any thread: have the names of all logs survive a loss of power."""
        with disk_trouble(f"{self.root} could not be synced"):
            self.disk.sync_directory(self.root)

    def _is_deleted_log(self, path: str) -> bool:
        return PARTITION_METADATA in (names := self.disk.listdir(path)) or not names

    def _creation_unfinished(self, path: str) -> bool:
        """Without metadata nobody was ever told of the log; it can hold no record."""
        return not self.disk.exists(f"{path}/{PARTITION_METADATA}") and not any(
            parse_offset_name(name, ".log") is not None and self.disk.stat(f"{path}/{name}").size
            for name in self.disk.listdir(path)
        )

    def create(
        self, topic: str, partition: int, *, topic_id: str, config: LogConfig, now_ms: int
    ) -> Log:
        log = self.build(topic, partition, topic_id=topic_id, config=config, now_ms=now_ms)
        self.sync_root()
        return self.adopt(log)

    def adopt(self, log: Log) -> Log:
        """Count a log that `build` has made among ours."""
        self._logs[log.topic, log.partition] = log
        return log

    def build(
        self, topic: str, partition: int, *, topic_id: str, config: LogConfig, now_ms: int
    ) -> Log:
        """The blocking part of `create`, for any thread. `sync_root` is to follow, once for many,
        before the log is used."""
        if (topic, partition) in self._logs:
            raise StorageError(f"{partition_directory(topic, partition)} exists already")
        path = f"{self.root}/{partition_directory(topic, partition)}"
        if self.disk.exists(path) and not self._creation_unfinished(path):
            raise StorageError(
                f"{path} exists and could not be opened: see the start-up log, then mend it or "
                "move it away"
            )
        return create_log(
            self._resources,
            self.root,
            topic,
            partition,
            topic_id=topic_id,
            config=config,
            now_ms=now_ms,
            sync_root=False,
        )

    # A log that failed

    def exists(self, topic: str, partition: int) -> bool:
        """Whether there are files of a log that is not open: it could not be opened so far."""
        path = f"{self.root}/{partition_directory(topic, partition)}"
        return self.disk.exists(path) and not self._creation_unfinished(path)

    def let_go(self, topic: str, partition: int, reason: str) -> None:
        """Forget a log that has failed, with all its open files, so that it can be recovered."""
        log = self._logs.pop((topic, partition), None)
        if log is not None:
            log.abandon(reason)

    def recover(self, topic: str, partition: int, config: LogConfig, now_ms: int) -> RecoveryReport:
        """Read a log that is not open as after an unclean stop, and leave it as after a clean one.
        The blocking part of `reopen`, for any thread: it shares nothing with the logs in use."""
        path = f"{self.root}/{partition_directory(topic, partition)}"
        shared = self._resources
        pool = FilePool(self.disk, _RECOVERY_FILES_MAX)
        resources = LogResources(pool, IndexCache(_RECOVERY_CACHE_BYTES), shared.space)
        try:
            with disk_trouble(f"{path} could not be recovered"):
                log, report = open_log(resources, path, config, now_ms)
                # It may have lost what was not synced when it failed.
                log.note_cut()
                log.close()
                self.disk.sync_directory(self.root)
        finally:
            pool.close()
        return report

    def reopen(self, topic: str, partition: int, config: LogConfig, now_ms: int) -> Log:
        """Take a log that `recover` has read among ours again."""
        path = f"{self.root}/{partition_directory(topic, partition)}"
        with disk_trouble(f"{path} could not be opened again"):
            log, _ = open_log(self._resources, path, config, now_ms)
        return self.adopt(log)

    def delete(self, topic: str, partition: int) -> Callable[[], Callable[[], bool]]:
        """Take the log out at once. Two pieces of work are left, for any thread: the first makes it
        last, before there may be another log of that name, and returns the second, which frees some
        of the space and tells whether that was all."""
        log = self._logs.pop((topic, partition), None)
        if log is None:
            raise StorageError(f"{partition_directory(topic, partition)} does not exist")
        log.abandon("it was deleted")
        return lambda: self._hide(topic, partition, log)

    def _hide(self, topic: str, partition: int, log: Log) -> Callable[[], bool]:
        with disk_trouble(f"{log.directory} could not be deleted"):
            doomed = self._doomed(topic, partition, log.topic_id)
            self.disk.rename(log.directory, doomed)
            self.disk.sync_directory(self.root)
        return lambda: self._remove_some(doomed)

    def _doomed(self, topic: str, partition: int, topic_id: str) -> str:
        # A topic's name may be as long as a file name almost: the mark needs room.
        name = f"{partition_directory(topic, partition)[:_NAME_KEPT]}.{topic_id}"
        # Another of that name may be on its way out: of a longer name, or that has come and gone.
        marks = chain(("",), (f".{number}" for number in count(1)))
        paths = (f"{self.root}/{name}{mark}-delete" for mark in marks)
        return next(path for path in paths if not self.disk.exists(path))

    def _remove_tree(self, path: str) -> None:
        while not self._remove_some(path):
            pass

    def _remove_some(self, path: str) -> bool:
        """A piece of what is there; whether all of it is gone."""
        # The metadata last: by it an interrupted deletion is recognised as ours.
        names = self.disk.listdir(path)
        for name in names:
            if name != PARTITION_METADATA and not self.disk.discard(f"{path}/{name}"):
                return False
        if PARTITION_METADATA in names:
            self.disk.sync_directory(path)
            self.disk.unlink(f"{path}/{PARTITION_METADATA}")
        self.disk.rmdir(path)
        self.disk.sync_directory(self.root)
        return True

    def close(self) -> list[str]:
        """Close every log cleanly; what could not be is told, and will be recovered. Blocking."""
        troubles = []
        for log in self._logs.values():
            try:
                log.close()
            except StorageError as error:
                troubles.append(str(error))
        self._logs.clear()
        self._resources.pool.close()
        return troubles


def _make_durably(disk: Disk, path: str) -> None:
    """Make the directory and its parents so that they survive a loss of power."""
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = path.rpartition("/")[0]
    if missing:
        disk.mkdir(missing[0])
    for made in reversed(missing):
        disk.sync_directory(made.rpartition("/")[0] or ("/" if made.startswith("/") else "."))
