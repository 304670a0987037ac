"""Exactly once into SQLite: rows and offsets are written in one transaction, or not at all.

    python -m examples.sqlite_offsets BOOTSTRAP TOPIC DATABASE [--name NAME]

Kill it at any time and start it again: every record of the topic ends up in the table `arrivals`
exactly once. Several processes may use one database; the group divides the partitions among them.
With `--name` a process that was killed gets its partitions back at once; without it the group waits
until the session of the dead member ends.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Sequence

from penstock import CommitFailed, Consumer, Record, SqlOffsets

GROUP = "sqlite-example"


def write(
    database: sqlite3.Connection, records: Sequence[Record[bytes | None, bytes | None]]
) -> None:
    database.executemany(
        "INSERT INTO arrivals (key, value) VALUES (?, ?)",
        [(record.key, record.value) for record in records],
    )


def copy(
    bootstrap: str, topic: str, path: str, *, name: str | None = None, idle_timeout_ms: int = 10_000
) -> int:
    """Copies the topic until no records arrive for a while. Returns how many records it wrote."""
    database = sqlite3.connect(path, timeout=30)
    database.execute("PRAGMA journal_mode = WAL")  # Readers of the table do not block us.
    database.execute("CREATE TABLE IF NOT EXISTS arrivals (key BLOB, value BLOB)")
    offsets = SqlOffsets(database, GROUP)
    written = 0
    with Consumer(
        bootstrap,
        topics=[topic],
        group_id=GROUP,
        group_instance_id=name,
        auto_offset_reset="earliest",
        offset_store=offsets,
        max_poll_records=100,
    ) as consumer:
        while records := consumer.poll(idle_timeout_ms):
            try:
                with database:
                    write(database, records)
                    offsets.save(records)
            except CommitFailed:
                # Another member has these partitions and has saved offsets: this was rolled back.
                continue
            written += len(records)
    database.close()
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("database")
    parser.add_argument("--name", help="of this process, the same after a restart")
    parser.add_argument("--idle-timeout-ms", type=int, default=10_000)
    given = parser.parse_args()
    written = copy(
        given.bootstrap,
        given.topic,
        given.database,
        name=given.name,
        idle_timeout_ms=given.idle_timeout_ms,
    )
    print(f"{written} records written")


if __name__ == "__main__":
    main()
