"""The SQLite file of a metadata store: opening it, its tables, and the meaning of its errors.

Write-ahead logging lets readers continue while another process writes. `synchronous=FULL` syncs the
log at each commit, so committed data survives a power loss. The file, its `-wal` and its `-shm`
belong together and must be on a local disk: the processes share the `-shm` as memory.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from penstock.stores.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

APPLICATION_ID: Final = 0x50454E53
FORMAT_VERSION: Final = 1
NO_ROOM_BYTES: Final = 64 << 10
"""With less free space than this, an I/O error is treated as a full disk."""

_TABLES: Final = (
    # One row. `first_kept` is the oldest revision whose changes a watch can still read.
    """CREATE TABLE state (
        revision INTEGER NOT NULL,
        first_kept INTEGER NOT NULL
    )""",
    "INSERT INTO state VALUES (0, 1)",
    """CREATE TABLE entries (
        key TEXT PRIMARY KEY,
        value BLOB NOT NULL,
        create_revision INTEGER NOT NULL,
        modify_revision INTEGER NOT NULL,
        lease INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX entries_by_lease ON entries (lease) WHERE lease != 0",
    # AUTOINCREMENT: the id of a deleted lease must never be used again.
    """CREATE TABLE leases (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        ttl_ms INTEGER NOT NULL,
        deadline_ms INTEGER NOT NULL
    )""",
    """CREATE TABLE changes (
        revision INTEGER NOT NULL,
        position INTEGER NOT NULL,
        key TEXT NOT NULL,
        value BLOB,
        PRIMARY KEY (revision, position)
    ) WITHOUT ROWID""",
)


def connect(path: str, busy_timeout_ms: int, *, read_only: bool) -> sqlite3.Connection:
    """Opens a connection in the state that all other functions here expect. Raises `StoreError`."""
    with translated(path):
        if not read_only:
            _create(path)
        connection = sqlite3.connect(
            path,
            timeout=busy_timeout_ms / 1000,
            isolation_level=None,
            # Used from any thread of an executor, by one at a time.
            check_same_thread=False,
        )
        try:
            if not read_only:
                _prepare(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA journal_size_limit = 16777216")
            if read_only:
                connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
        return connection


def _create(path: str) -> None:
    """Creates an empty file that only its owner can read: it will contain the credentials of users.
    SQLite gives its other files the same mode. A file that exists keeps the mode that it has."""
    with suppress(OSError):  # it exists, or SQLite says what is wrong with the path
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def connect_for_renewals(path: str, busy_timeout_ms: int, attempt_ms: int) -> sqlite3.Connection:
    """Opens a connection whose commits do not wait for the disk; see `sqlite_leases`."""
    connection = connect(path, busy_timeout_ms, read_only=False)
    with translated(path):
        connection.execute(f"PRAGMA busy_timeout = {attempt_ms}")
        connection.execute("PRAGMA synchronous = NORMAL")
        # A checkpoint waits for the disk, so it is left to the connection that writes metadata.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, mode: str) -> Iterator[None]:
    """Runs BEGIN and COMMIT, or ROLLBACK if the body or the commit fails."""
    connection.execute(f"BEGIN {mode}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def translated(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translate(path, error) from error


def translate(path: str, error: sqlite3.Error) -> StoreError:
    """Translates an error of SQLite into one that tells the operator what to do."""
    name = getattr(error, "sqlite_errorname", "") or ""
    said = f"SQLite says {error} ({name or type(error).__name__})"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(
            f"the metadata store {path} stayed locked by another process: try again; if that "
            f"does not help, look for a stuck process that has the file open. {said}"
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreCorrupt(
            f"the metadata store {path} is damaged or not a database: stop all brokers and "
            f"restore it from a backup, together with its -wal file. {said}"
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
        return StoreUnavailable(
            f"the metadata store {path} cannot be written: give this user write permission on "
            f"the file and on its directory. {said}"
        )
    if name.startswith("SQLITE_CANTOPEN"):
        return StoreUnavailable(
            f"the metadata store {path} cannot be opened: make sure that its directory exists "
            f"and that this user may write there. {said}"
        )
    if name == "SQLITE_FULL":
        return _full(path, said)
    if name.startswith("SQLITE_IOERR") and name != "SQLITE_IOERR_FSYNC" and _has_no_room(path):
        # For example, growing the shared memory of the write-ahead log fails in this way.
        return _full(path, said)
    return StoreUnavailable(
        f"the metadata store {path} failed: check the disk and restart the broker. Until then it "
        f"is unknown whether a commit in progress was made. {said}"
    )


def _full(path: str, said: str) -> StoreFull:
    return StoreFull(
        f"there is no space left for the metadata store {path}, and nothing was changed: free "
        f"some space on that disk. Reads still work, and writes resume automatically. {said}"
    )


def _has_no_room(path: str) -> bool:
    try:
        about = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return False
    return about.f_bavail * about.f_frsize < NO_ROOM_BYTES


def leaves_outcome_unknown(error: sqlite3.Error) -> bool:
    """Whether the error leaves the outcome unknown: after a failed sync or write it is unknown what
    a crash would leave behind."""
    return (getattr(error, "sqlite_errorname", "") or "").startswith("SQLITE_IOERR")


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    # This is the first statement that reads the file, so a damaged file shows here. It uses one
    # snapshot, because another process may be creating the tables at this moment.
    with transaction(connection, "DEFERRED"):
        application, version = _identity(connection)
        tables = _tables(connection)
    if application != APPLICATION_ID and (application, version, tables) != (0, 0, 0):
        raise StoreCorrupt(
            f"{path} is the database of another program: configure another path for the "
            "metadata store"
        )
    if version > FORMAT_VERSION:
        raise StoreUnavailable(
            f"the metadata store {path} has format {version}, but this version of Penstock reads "
            f"formats up to {FORMAT_VERSION}: run the newer version again"
        )
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnavailable(
            f"the metadata store {path} cannot use a write-ahead log there (journal mode {mode}): "
            "put it on a local disk, not on a network file system"
        )
    with transaction(connection, "IMMEDIATE"):
        if _identity(connection) == (0, 0):
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def _identity(connection: sqlite3.Connection) -> tuple[int, int]:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return application, connection.execute("PRAGMA user_version").fetchone()[0]


def _tables(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return count
