"""Reserves disk space for a metadata store that shares its disk with other data.

A broker must continue to renew its lease, elect leaders and change in-sync replicas when the disk
is full. So the store reserves space inside its own files, where nothing else can use it:

- Free pages in the database file. New entries use them before the file grows.
- A write-ahead log that is already long. SQLite overwrites it from the start after a checkpoint,
  and does not shorten it (`journal_size_limit`).

Both are created by one insert of zeros that is then deleted. `keep_up` creates them when they are
missing, so they are restored automatically when the disk has space again. A file system that never
overwrites in place (btrfs, ZFS) may still need free space; writes then raise `StoreFull` until
there is some.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Final

from penstock.stores import sqlite_file

RESERVE_BYTES: Final = 2 << 20


def keep_up(connection: sqlite3.Connection) -> None:
    """Restores the reserve if necessary. Blocking. Raises SQLite's error if there is no space for
    it."""
    _checkpoint(connection)
    if _is_whole(connection):
        return
    with sqlite_file.transaction(connection, "IMMEDIATE"):
        # A crash may have left the table behind.
        connection.execute("DROP TABLE IF EXISTS reserve")
        connection.execute("CREATE TABLE reserve (zeros BLOB)")
        connection.execute("INSERT INTO reserve VALUES (zeroblob(?))", (RESERVE_BYTES,))
    # The pages are now in the write-ahead log; the checkpoint puts them in the file as well.
    _checkpoint(connection)
    with sqlite_file.transaction(connection, "IMMEDIATE"):
        connection.execute("DROP TABLE IF EXISTS reserve")
    _checkpoint(connection)


def _is_whole(connection: sqlite3.Connection) -> bool:
    (path,) = (row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main")
    (free_pages,) = connection.execute("PRAGMA freelist_count").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    try:
        log_bytes = os.stat(f"{path}-wal").st_size
    except OSError:
        return False
    return bool(min(free_pages * page_bytes, log_bytes) >= RESERVE_BYTES // 2)


def _checkpoint(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
