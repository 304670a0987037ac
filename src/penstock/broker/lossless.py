"""What a broker can prove about its logs when it comes back: that nothing is missing from them.

A record that was written and not synced outlives the process, in the page cache, but not the
machine's power. So a broker that returns still has all it had written if the life before stopped
cleanly, or if the machine has not been booted in between; and it has all it had synced if it has
the same data directory. The cluster counts it as before, or not, by what it proves
(`penstock.metadata.isr`).

The proof is a chain, since a broker may restart several times before anybody looks: two numbers,
the broker epochs since which nothing written and nothing synced has been lost. They lie in a file
in the data directory, with the boot they were noted in:

- At a start the file is read, before the broker registers. Without it the directory is new.
- Once registered, and before anything is written to a log, it is written anew for this life. Until
  then the old one holds, which is right: nothing has been added that could be lost.
- When a log has failed (an fsync that went wrong may have thrown away what was written) the chain
  of what was written is broken, at once and on disk.
- After a clean stop, with all logs closed and synced, the file says so.

The file also notes since which epoch the config file has asked for `log.durability=fsync`: whoever
judges a restart must know what the life before it counted. It is left out where that is as long as
the directory is there, so that earlier versions can read the file.

A directory that was moved to another broker or another cluster proves nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

from crc32c import crc32c

from penstock.ports import Disk
from penstock.storage.checkpoints import read_file, write_atomic

FILE_NAME: Final = "penstock-life"
_HEAD: Final = "penstock-life 1"
_FSYNC_SINCE: Final = "fsync_since"
_NEVER: Final = -1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Proof:
    """The fields of `BrokerInfo` by the same names."""

    lossless_since: int
    synced_since: int
    fsync_since: int


_NOTHING: Final = Proof(_NEVER, _NEVER, _NEVER)


@dataclass(frozen=True, slots=True)
class Life:
    """What the file holds."""

    cluster_id: str
    broker_id: int
    boot_id: str
    stopped_cleanly: bool
    lossless_since: int
    synced_since: int
    fsync_since: int


class LosslessRecord:
    """The file of one data directory. Everything here blocks for the disk."""

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
        """What can be said of the logs now; without `logs_are_whole` some were found damaged."""
        self._proof = self._prove(cluster_id, logs_are_whole=logs_are_whole)
        return self._proof

    def cache_is_intact(self) -> bool:
        """Whether the page cache holds all that was ever written to the logs: the last life was in
        this boot of the machine, and no write or fsync failed in it. A data directory that was put
        back from a backup must not be started in the boot it was copied in."""
        life = self._read()
        return life is not None and self._is_same_boot(life) and life.lossless_since != _NEVER

    def _is_same_boot(self, life: Life) -> bool:
        return life.boot_id != "" and life.boot_id == self._boot_id()

    def begin(self, cluster_id: str, broker_epoch: int) -> None:
        """This life has that epoch. Call it before anything is written to a log."""
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
            )
        )

    def again(self) -> Proof:
        """What a registration of the same life says: the process has lost nothing it wrote."""
        life = self._life
        return _NOTHING if life is None else _proof_of(life)

    def void(self) -> None:
        """A log has failed: from now on nothing is proved of what was written."""
        life = self._life
        if life is not None and (life.lossless_since != _NEVER or self._is_void_unsaid):
            # What this life says of itself must not wait for a disk that may be failing.
            self._life, self._is_void_unsaid = replace(life, lossless_since=_NEVER), True
            self._write(self._life)
            self._is_void_unsaid = False

    def end(self) -> None:
        """All logs are closed, and on disk."""
        if self._life is not None:
            self._write(replace(self._life, stopped_cleanly=True))

    def _prove(self, cluster_id: str, *, logs_are_whole: bool) -> Proof:
        life = self._read()
        if life is None:
            return _NOTHING
        if (life.cluster_id, life.broker_id) != (cluster_id, self._broker_id):
            _log.warning(
                "%s was broker %d's of the cluster %s: what lies there counts for nothing here",
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
            _log.warning("%s/%s proves nothing: %s", self._directory, FILE_NAME, error)
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
    body = f"{_HEAD}\n{json.dumps(values)}\n".encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def decode(data: bytes) -> Life:
    """`ValueError` when it is not whole, or not of this version."""
    body, mark, checksum = data.rpartition(b"crc32c ")
    if not mark or int(checksum, 16) != crc32c(body):
        raise ValueError("its CRC does not match")
    head, _, text = body.decode().partition("\n")
    if head != _HEAD:
        raise ValueError(f"it is of the version {head!r}, this software reads {_HEAD!r}")
    values = json.loads(text)
    if isinstance(values, dict) and _FSYNC_SINCE not in values:
        values[_FSYNC_SINCE] = values.get("synced_since")
    if not isinstance(values, dict) or values.keys() != {each.name for each in fields(Life)}:
        raise ValueError("its fields are not those of a broker's life")
    return Life(**values)
