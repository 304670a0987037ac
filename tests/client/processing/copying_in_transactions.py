"""Runs one instance of a transactional copy as a process, which tests kill at any moment.

    python copying_in_transactions.py BOOTSTRAP SOURCE TARGET TRANSACTIONAL_ID

All instances form one group, named after the target. Once an instance has written `ready`, SIGTERM
stops it cleanly.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from penstock import Record, aio
from penstock.interceptors import ProducerRecord
from penstock.testing.slowness import patient


async def main(bootstrap: str, source: str, target: str, transactional_id: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    sys.stdout.write("ready\n")
    sys.stdout.flush()

    async def copy(
        records: list[Record[bytes | None, bytes | None]],
    ) -> list[ProducerRecord[bytes | None, bytes | None]]:
        return [
            ProducerRecord(target, record.value, record.key, partition=record.partition)
            for record in records
        ]

    async with (
        aio.Producer(bootstrap, transactional_id=transactional_id, linger_ms=1) as producer,
        aio.Consumer(
            bootstrap,
            topics=[source],
            group_id=target,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=int(patient(2_000)),
            heartbeat_interval_ms=200,
        ) as consumer,
    ):
        await aio.exactly_once(consumer, producer, copy, max_records=40, stop=stop)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
