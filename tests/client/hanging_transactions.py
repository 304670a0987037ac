"""Creates open and hanging transactions on a real broker."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import aio
from penstock.testing import Broker
from penstock.testing.slowness import patient

LIMIT_S = 150.0
_SETTINGS = {"transaction.state.log.num.partitions": "1"}


def leave_open(
    broker: Broker, transactional_id: str, topic: str, *partitions: int, timeout_ms: int = 60_000
) -> None:
    """Writes to these partitions in a transaction and closes the connections without ending it."""

    async def write() -> None:
        async with asyncio.timeout(patient(LIMIT_S)):
            producer = aio.Producer(
                broker.bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                linger_ms=0,
            )
            await producer.start()
            await producer.transaction().__aenter__()
            for index in partitions:
                await (await producer.send(topic, b"open", partition=index))
            # If given any time to close, the producer would abort the transaction.
            await producer.close(0)

    asyncio.run(write())


@contextmanager
def forgetful_broker(data: Path, *partitions: int) -> Iterator[tuple[Broker, str]]:
    """Starts a broker with a topic on whose partitions a transaction hangs: the coordinator's log
    was lost while the transaction was open."""
    with Broker(_SETTINGS, data=str(data)) as broker:
        topic = broker.new_topic(partitions=max(partitions) + 2, name="orders")
        leave_open(broker, "forgotten", topic, *partitions)
        broker.stop()
        logs = list(data.rglob("__transaction_state-*"))
        assert logs
        for log in logs:
            shutil.rmtree(log)
        broker.start()
        yield broker, topic
