"""How the handles of a ZooKeeper store share the work of reading, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.stores.errors import StoreUnreachable
from penstock.stores.zk_format import Head
from penstock.stores.zk_log import ZooKeeperLog
from penstock.stores.zk_session import ZooKeeperSession
from penstock.testing.slowness import patient

LIMIT_S = 30.0


@dataclass
class _Stat:
    version: int


class _Session:
    """Answers reads one after the other, when the test says so."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[None]] = []

    async def fresh(self, _asks: Sequence[Any], _deadline_s: float) -> list[Any]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append(answer)
        await answer
        return [(Head().encode(), _Stat(0))]

    def path(self, path: str) -> str:
        return path


def log_of(session: _Session, threads: Threads) -> ZooKeeperLog:
    return ZooKeeperLog(cast(ZooKeeperSession, session), SystemClock(), SystemRandom(), threads)


async def until_asked(session: _Session, count: int) -> None:
    async with asyncio.timeout(patient(LIMIT_S)):
        while len(session.asked) < count:  # noqa: ASYNC110 - only other tasks must run
            await asyncio.sleep(0)


def test_reads_that_wait_together_share_the_work() -> None:
    """Those that wait while another read is under way need a later one, and one is enough."""

    async def main() -> None:
        session, threads = _Session(), Threads(1)
        log = log_of(session, threads)
        reads = [asyncio.create_task(log.refresh(0.0)) for _ in range(5)]
        for number in (1, 2):
            await until_asked(session, number)
            session.asked[-1].set_result(None)
        await asyncio.gather(*reads)
        assert len(session.asked) == 2
        threads.close()

    asyncio.run(main())


@pytest.mark.parametrize("cancels", [True, False])
def test_a_read_that_failed_or_was_cancelled_is_of_no_use_to_others(*, cancels: bool) -> None:
    """Those that waited for the same one read by themselves. Otherwise they would take an old
    state for the present one."""

    async def main() -> None:
        session, threads = _Session(), Threads(1)
        log = log_of(session, threads)
        reads = [asyncio.create_task(log.refresh(0.0)) for _ in range(3)]
        await until_asked(session, 1)
        session.asked[0].set_result(None)
        await until_asked(session, 2)
        if cancels:
            reads[1].cancel()
        else:
            session.asked[1].set_exception(StoreUnreachable("no answer"))
        await asyncio.wait([reads[1]])
        for _ in range(10):
            await asyncio.sleep(0)
        assert not reads[2].done()
        await until_asked(session, 3)
        session.asked[2].set_result(None)
        await reads[2]
        await asyncio.gather(*reads, return_exceptions=True)
        threads.close()

    asyncio.run(main())
