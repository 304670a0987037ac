"""Exactly once into PostgreSQL: rows and offsets are written in one transaction, or not at all.

    python -m examples.postgres_offsets BOOTSTRAP TOPIC DATABASE [--name NAME]

DATABASE is what psycopg connects to, such as "postgresql://me@localhost/orders". This is the same
as `sqlite_offsets`, with psycopg's syntax for parameters.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import psycopg

from penstock import CommitFailed, Consumer, Record, SqlOffsets

GROUP = "postgres-example"


def write(
    database: psycopg.Connection[tuple[object, ...]],
    records: Sequence[Record[bytes | None, bytes | None]],
) -> None:
    with database.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO arrivals (key, value) VALUES (%s, %s)",
            [(record.key, record.value) for record in records],
        )


def copy(
    bootstrap: str,
    topic: str,
    address: str,
    *,
    name: str | None = None,
    idle_timeout_ms: int = 10_000,
) -> int:
    """Copies the topic until no records arrive for a while. Returns how many records it wrote."""
    database = psycopg.connect(address)
    database.execute("CREATE TABLE IF NOT EXISTS arrivals (key BYTEA, value BYTEA)")
    database.commit()
    offsets = SqlOffsets(database, GROUP, placeholder="%s")
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
                with database.transaction():
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
