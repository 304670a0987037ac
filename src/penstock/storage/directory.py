"""All logs of one data directory.

    ROOT/TOPIC-PARTITION/          one log
    ROOT/TOPIC-PARTITION.ID-delete a log being deleted; the next start finishes the deletion
    ROOT/penstock-offsets          how far each log was last known to be synced and committed

An idle log costs a few kilobytes: it has no open file and no index in memory. The limits on open
files and cached indexes apply to all logs together.

A log whose key cannot be had is not opened, and not changed. What was known about it at the start
(its stored offsets, and whether the page cache holds everything that was written) is kept until it
is opened, in this run or in a later one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count

from penstock.ports import Disk
from penstock.storage.config import LogConfig
from penstock.storage.creation import create_log
from penstock.storage.data_keys import Keyring, lacks_key_only
from penstock.storage.encrypted_disk import EncryptedDisk
from penstock.storage.errors import CorruptFile, DiskTrouble, StorageError, disk_trouble
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
from penstock.storage.opening import LogResources, RecoveryReport
from penstock.storage.recovery import open_log
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


@dataclass(frozen=True, slots=True)
class _Unopened:
    """A log that exists and is not open."""

    error: Exception | None
    """Why it could not be opened at the start."""
    lacks_key: bool
    known: LogOffsets | None
    cache_is_intact: bool


class LogDirectory:
    """Opens, creates, deletes and closes the logs of a data directory."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        config: DirectoryConfig | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        """`keyring` has the keys of encrypted logs. Without it, they cannot be opened."""
        config = config or DirectoryConfig()
        self.root = root
        self.disk = disk = EncryptedDisk(disk, keyring or Keyring(None, None))
        _make_durably(disk, root)
        self.space = SpaceGuard(disk, root, config.disk_reserve_bytes)
        self._resources = LogResources(
            FilePool(disk, config.open_files_max),
            IndexCache(config.index_cache_bytes_max),
            self.space,
        )
        self._logs: dict[tuple[str, int], Log] = {}
        self._unopened: dict[tuple[str, int], _Unopened] = {}
        self._is_cache_doubted = False

    def __iter__(self) -> Iterator[Log]:
        return iter(self._logs.values())

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def open_files(self) -> int:
        return len(self._resources.pool)

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    @property
    def unrecovered(self) -> list[str]:
        """The directories of logs that could not be opened, and whose last writes may be missing
        from the page cache. They must be recovered as after a power loss, in a later run too."""
        return [
            partition_directory(*key)
            for key, unopened in list(self._unopened.items())
            if not unopened.cache_is_intact
        ]

    @property
    def locked(self) -> list[str]:
        """The paths of logs that are not open for want of a key."""
        return [
            f"{self.root}/{partition_directory(*key)}"
            for key, unopened in self._unopened.items()
            if unopened.lacks_key
        ]

    def doubt_cache(self) -> None:
        """Notes that a write or fsync failed: logs that are opened later are recovered as after a
        power loss."""
        self._is_cache_doubted = True

    def open_all(
        self,
        config_for: Callable[[str, int], LogConfig],
        now_ms: int,
        *,
        cache_is_intact: Callable[[str], bool] = lambda _: False,
    ) -> list[RecoveryReport]:
        """Opens every log below the root. Returns a report for each. Blocking.

        `cache_is_intact` gets the name of a log's directory, and says whether the machine has not
        rebooted since the log was last written.
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
                    cache_is_intact=cache_is_intact(name),
                )
            except (OSError, StorageError) as error:
                # One bad log must not keep the others from serving. Its report shows the error.
                self._unopened[parsed] = _Unopened(
                    error, lacks_key_only(error), known.get(name), cache_is_intact(name)
                )
                report = RecoveryReport(path)
                report.notes.append(f"could not be opened: {error}")
            else:
                self._logs[parsed] = log
            reports.append(report)
        if self._logs:
            # The process that created one of them may have been killed before it synced the root.
            self.sync_root()
        return reports

    def _known_offsets(self) -> dict[str, LogOffsets]:
        try:
            return read_offsets(self.disk, self.root)
        except CorruptFile as error:
            _log.warning("%s; ignoring it, high watermarks come from other replicas", error)
            return {}

    def note_offsets(self, offsets: Mapping[str, LogOffsets]) -> None:
        """Stores these offsets for the next start (`offset_checkpoint`), and keeps those of logs
        that lack a key. Blocking; may run on any thread."""
        kept = {
            partition_directory(*key): unopened.known
            for key, unopened in list(self._unopened.items())
            if unopened.lacks_key and unopened.known is not None
        }
        with disk_trouble(f"the offset checkpoint of {self.root} could not be written"):
            write_offsets(self.disk, self.root, {**kept, **offsets})

    def sync_root(self) -> None:
        """Makes the names of all logs survive a power loss. Blocking; may run on any thread."""
        with disk_trouble(f"{self.root} could not be synced"):
            self.disk.sync_directory(self.root)

    def _is_deleted_log(self, path: str) -> bool:
        return PARTITION_METADATA in (names := self.disk.listdir(path)) or not names

    def _creation_unfinished(self, path: str) -> bool:
        """Whether the creation of the log was interrupted: it has no metadata file, so no caller
        ever got the log, and it holds no records."""
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
        """Registers a log that `build` has created."""
        self._unopened.pop((log.topic, log.partition), None)
        self._logs[log.topic, log.partition] = log
        return log

    def build(
        self, topic: str, partition: int, *, topic_id: str, config: LogConfig, now_ms: int
    ) -> Log:
        """Runs the blocking part of `create`, on any thread. `sync_root` must follow before the log
        is used, once for many logs."""
        if (topic, partition) in self._logs:
            raise StorageError(f"{partition_directory(topic, partition)} already exists")
        path = f"{self.root}/{partition_directory(topic, partition)}"
        if self.disk.exists(path) and not self._creation_unfinished(path):
            unopened = self._unopened.get((topic, partition))
            if unopened is not None and unopened.lacks_key:
                raise DiskTrouble(
                    f"{path} could not be opened: {unopened.error}"
                ) from unopened.error
            raise StorageError(
                f"{path} exists but could not be opened: see the start-up log, then repair it or "
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
        """Whether a log that is not open has files: opening it has failed so far."""
        path = f"{self.root}/{partition_directory(topic, partition)}"
        return self.disk.exists(path) and not self._creation_unfinished(path)

    def let_go(self, topic: str, partition: int, reason: str) -> None:
        """Drops a log that has failed, and closes all its files, so that it can be recovered."""
        log = self._logs.pop((topic, partition), None)
        if log is None:
            return
        if log.lacks_key:
            known = LogOffsets(
                log.topic_id, log.generation, log.recovery_point, log.restored_high_watermark
            )
            self._unopened[topic, partition] = _Unopened(
                None, lacks_key=True, known=known, cache_is_intact=True
            )
        log.abandon(reason)

    def recover(self, topic: str, partition: int, config: LogConfig, now_ms: int) -> RecoveryReport:
        """Recovers a log that is not open, as after an unclean stop, and closes it cleanly. This is
        the blocking part of `reopen`, for any thread: it shares no state with the open logs.

        A log that lacked a key has lost nothing by that. After any other failure, what was not
        synced may be lost."""
        path = f"{self.root}/{partition_directory(topic, partition)}"
        unopened = self._kept_unopened(topic, partition)
        shared = self._resources
        pool = FilePool(self.disk, _RECOVERY_FILES_MAX)
        resources = LogResources(pool, IndexCache(_RECOVERY_CACHE_BYTES), shared.space)
        try:
            with disk_trouble(f"{path} could not be recovered"):
                if unopened is None:
                    log, report = open_log(resources, path, config, now_ms)
                    log.note_cut()
                else:
                    log, report = open_log(
                        resources,
                        path,
                        config,
                        now_ms,
                        known=unopened.known,
                        cache_is_intact=unopened.cache_is_intact and not self._is_cache_doubted,
                    )
                log.close()
                self.disk.sync_directory(self.root)
        finally:
            pool.close()
        return report

    def reopen(self, topic: str, partition: int, config: LogConfig, now_ms: int) -> Log:
        """Opens and registers a log that `recover` has recovered."""
        path = f"{self.root}/{partition_directory(topic, partition)}"
        with disk_trouble(f"{path} could not be opened again"):
            unopened = self._kept_unopened(topic, partition)
            known = None if unopened is None else unopened.known
            log, _ = open_log(self._resources, path, config, now_ms, known=known)
        return self.adopt(log)

    def _kept_unopened(self, topic: str, partition: int) -> _Unopened | None:
        """Returns what was known about a log before it could not be opened for want of a key."""
        unopened = self._unopened.get((topic, partition))
        return unopened if unopened is not None and unopened.lacks_key else None

    def delete(self, topic: str, partition: int) -> Callable[[], Callable[[], bool]]:
        """Removes the log at once. Returns the first of two functions that finish the deletion on
        any thread. The first makes it durable, and must run before another log of that name is
        created; after `DiskTrouble` it may be called again. It returns the second, which frees some
        of the space and returns whether that was all."""
        log = self._logs.pop((topic, partition), None)
        if log is None:
            raise StorageError(f"{partition_directory(topic, partition)} does not exist")
        log.abandon("it was deleted")
        self.disk.forget(log.directory)
        renamed: list[str] = []
        return lambda: self._hide(topic, partition, log, renamed)

    def _hide(self, topic: str, partition: int, log: Log, renamed: list[str]) -> Callable[[], bool]:
        """Renames the log's directory durably. `renamed` has its new name after an attempt that
        renamed it and then failed."""
        with disk_trouble(f"{log.directory} could not be deleted"):
            if not renamed:
                doomed = self._doomed(topic, partition, log.topic_id)
                self.disk.rename(log.directory, doomed)
                renamed.append(doomed)
            self.disk.sync_directory(self.root)
        return lambda: self._remove_some(renamed[0])

    def _doomed(self, topic: str, partition: int, topic_id: str) -> str:
        # A topic name may be almost as long as a file name can be: leave space for the suffix.
        name = f"{partition_directory(topic, partition)[:_NAME_KEPT]}.{topic_id}"
        # Another directory of that name may still be waiting for its deletion: one whose longer
        # name was shortened, or an earlier log of the same topic.
        marks = chain(("",), (f".{number}" for number in count(1)))
        paths = (f"{self.root}/{name}{mark}-delete" for mark in marks)
        return next(path for path in paths if not self.disk.exists(path))

    def _remove_tree(self, path: str) -> None:
        while not self._remove_some(path):
            pass

    def _remove_some(self, path: str) -> bool:
        """Removes some of the files. Returns whether all of them are gone."""
        # Remove the metadata file last: it identifies an interrupted deletion.
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
        """Closes every log cleanly. Returns an error message for each one that failed; the next
        start recovers those. Blocking."""
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
    """Creates the directory and its parents so that they survive a power loss."""
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = path.rpartition("/")[0]
    if missing:
        disk.mkdir(missing[0])
    for made in reversed(missing):
        disk.sync_directory(made.rpartition("/")[0] or ("/" if made.startswith("/") else "."))
