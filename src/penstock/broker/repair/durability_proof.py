"""Keeps the durability proof: what a restarted broker can prove about its logs.

A record that was written but not synced is in the page cache. It survives the end of the process,
but not a power cut. So a restarted broker still has everything it had written if the previous run
stopped cleanly, or if the machine has not been rebooted since. It still has everything it had
synced if it has the same data directory. The controller decides by this proof whether the broker
stays an in-sync replica (`penstock.metadata.isr`).

A broker may restart several times before the proof is needed. So the proof consists of two broker
epochs: nothing that was written since the first has been lost, and nothing that was synced since
the second. They are stored in a file in the data directory, with the boot id of the machine:

- The broker reads the file at startup, before it registers. If there is no file, the directory is
  new.
- Once registered, and before it writes to any log, the broker writes the file for the current run.
  Until then the old file is valid, because nothing has been added that could be lost.
- When a log fails, the proof for written records is revoked at once, on disk too: a failed fsync
  may have dropped data that was written. A log whose key cannot be had has not failed in this
  sense: a missing key says nothing about the disk.
- After a clean stop, when all logs are closed and synced, the file records the clean stop.

A log whose key is missing at startup is not recovered in this run, so what the file says about the
page cache may be wrong for it: the machine may have been rebooted before this run, and not after
it. The file lists such logs (`unrecovered`) until they are opened. The next run recovers them as
after a power loss. All other claims hold for a log that is not open: nothing is written to it, so
nothing that was written since this run began can be lost.

The file also records since which broker epoch the config file has set `log.durability=fsync`. A
restart cannot be judged without knowing whether the previous run counted records when they were
written or when they were synced. The field is left out if it equals the epoch for synced records,
so that earlier versions can read the file. So is the list, if it is empty.

A directory that was moved to another broker or another cluster proves nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

from crc32c import crc32c

from penstock.broker.control.membership import Proof
from penstock.ports import Disk
from penstock.storage.checkpoints import read_file, write_atomic

FILE_NAME: Final = "penstock-life"
_HEAD: Final = "penstock-life 1"
_FSYNC_SINCE: Final = "fsync_since"
_UNRECOVERED: Final = "unrecovered"
_NEVER: Final = -1
_log = logging.getLogger(__name__)


_NOTHING: Final = Proof(_NEVER, _NEVER, _NEVER)


@dataclass(frozen=True, slots=True)
class Life:
    """The contents of the file: one run of the broker."""

    cluster_id: str
    broker_id: int
    boot_id: str
    stopped_cleanly: bool
    lossless_since: int
    synced_since: int
    fsync_since: int
    unrecovered: tuple[str, ...] = ()
    """The directories of logs that were not recovered since the page cache was last lost."""


class LosslessRecord:
    """The file of one data directory. All methods block on the disk, except `again`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        broker_id: int,
        boot_id: Callable[[], str],
        *,
        asks_for_fsync: bool = True,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._broker_id = broker_id
        self._boot_id = boot_id
        self._asks_for_fsync = asks_for_fsync
        self._proof = _NOTHING
        self._life: Life | None = None
        self._is_void_unsaid = False

    def read(self, cluster_id: str, *, logs_are_whole: bool) -> Proof:
        """Returns what is proved about the logs. Without `logs_are_whole`, some are damaged."""
        self._proof = self._prove(cluster_id, logs_are_whole=logs_are_whole)
        return self._proof

    def intact_caches(self) -> Callable[[str], bool]:
        """Returns a function that says, for the name of a log's directory, whether the page
        cache still has everything that was ever written to it.

        That is so if the machine has not been rebooted since the last run, no write or fsync failed
        in that run, and the log was opened in it, unless the same was true before that run. A
        backup that is restored in the boot in which it was made passes this check wrongly: reboot
        the machine before starting the broker."""
        life = self._read()
        if life is None or not self._is_same_boot(life) or life.lossless_since == _NEVER:
            return lambda _: False
        unrecovered = frozenset(life.unrecovered)
        return lambda name: name not in unrecovered

    def _is_same_boot(self, life: Life) -> bool:
        return life.boot_id != "" and life.boot_id == self._boot_id()

    def begin(self, cluster_id: str, broker_epoch: int, unrecovered: Collection[str] = ()) -> None:
        """Writes the file for the current run, which has this broker epoch. `unrecovered` are the
        logs that could not be opened, and of which `intact_caches` says no.

        Must be called before anything is written to a log."""
        since = self._proof
        fsync_since = broker_epoch if since.fsync_since < 0 else since.fsync_since
        self._write(
            Life(
                cluster_id,
                self._broker_id,
                self._boot_id(),
                stopped_cleanly=False,
                lossless_since=broker_epoch if since.lossless_since < 0 else since.lossless_since,
                synced_since=broker_epoch if since.synced_since < 0 else since.synced_since,
                fsync_since=fsync_since if self._asks_for_fsync else _NEVER,
                unrecovered=tuple(sorted(unrecovered)),
            )
        )

    def again(self) -> Proof:
        """Returns the proof for another registration of the same process, which still has
        everything it wrote unless a log has failed."""
        life = self._life
        return _NOTHING if life is None else _proof_of(life)

    def void(self) -> None:
        """Revokes the proof for written records, because a log has failed."""
        life = self._life
        if life is not None and (life.lossless_since != _NEVER or self._is_void_unsaid):
            # `again` must not claim the old proof even if this disk fails, too. If the write
            # fails, the next call tries it again.
            self._life, self._is_void_unsaid = replace(life, lossless_since=_NEVER), True
            self._write(self._life)
            self._is_void_unsaid = False

    def keep_unrecovered(self, unrecovered: Collection[str]) -> None:
        """Records which of the logs in the list are still not recovered."""
        life, kept = self._life, tuple(sorted(unrecovered))
        if life is not None and life.unrecovered != kept:
            self._write(replace(life, unrecovered=kept))

    def end(self) -> None:
        """Records a clean stop: all logs are closed and synced."""
        if self._life is not None:
            self._write(replace(self._life, stopped_cleanly=True))

    def _prove(self, cluster_id: str, *, logs_are_whole: bool) -> Proof:
        life = self._read()
        if life is None:
            return _NOTHING
        if (life.cluster_id, life.broker_id) != (cluster_id, self._broker_id):
            _log.warning(
                "%s belonged to broker %d of cluster %s, so its logs prove nothing about this "
                "broker's records: this broker may have to catch up before it rejoins its ISRs",
                self._directory,
                life.broker_id,
                life.cluster_id,
            )
            return _NOTHING
        if logs_are_whole and (life.stopped_cleanly or self._is_same_boot(life)):
            return _proof_of(life)
        return replace(_proof_of(life), lossless_since=_NEVER)

    def _read(self) -> Life | None:
        data = read_file(self._disk, f"{self._directory}/{FILE_NAME}")
        if data is None:
            return None
        try:
            return decode(data)
        except ValueError as error:
            _log.warning(
                "%s/%s is not a valid durability proof (%s): this broker may have to catch up "
                "before it rejoins its ISRs",
                self._directory,
                FILE_NAME,
                error,
            )
            return None

    def _write(self, life: Life) -> None:
        write_atomic(self._disk, self._directory, FILE_NAME, encode(life))
        self._life = life


def _proof_of(life: Life) -> Proof:
    return Proof(life.lossless_since, life.synced_since, life.fsync_since)


def encode(life: Life) -> bytes:
    values = asdict(life)
    if life.fsync_since == life.synced_since:
        del values[_FSYNC_SINCE]
    if not life.unrecovered:
        del values[_UNRECOVERED]
    body = f"{_HEAD}\n{json.dumps(values)}\n".encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def decode(data: bytes) -> Life:
    """Decodes the file. Raises `ValueError` if it is damaged or has another version."""
    body, mark, checksum = data.rpartition(b"crc32c ")
    if not mark or int(checksum, 16) != crc32c(body):
        raise ValueError("its CRC does not match")
    head, _, text = body.decode().partition("\n")
    if head != _HEAD:
        raise ValueError(f"its version is {head!r}, and this broker reads {_HEAD!r}")
    values = json.loads(text)
    if isinstance(values, dict) and _FSYNC_SINCE not in values:
        values[_FSYNC_SINCE] = values.get("synced_since")
    if isinstance(values, dict):
        values[_UNRECOVERED] = tuple(values.get(_UNRECOVERED, ()))
    if not isinstance(values, dict) or values.keys() != {each.name for each in fields(Life)}:
        raise ValueError("it lacks fields or has unknown ones")
    return Life(**values)
