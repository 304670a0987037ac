"""When a handle of the ZooKeeper store makes a snapshot, without a server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from penstock.ports import Put
from penstock.runtime import SystemRandom, Threads
from penstock.stores.errors import StoreUnreachable
from penstock.stores.zk_format import Head, LogEntry
from penstock.stores.zk_log import ZooKeeperLog
from penstock.stores.zk_replica import Replica
from penstock.stores.zk_session import Lost, ZooKeeperConfig, ZooKeeperSession
from penstock.stores.zk_snapshots import Snapshots


class _Session:
    """Answers nothing."""

    def __init__(self) -> None:
        self.asked = 0

    def deadline(self) -> float:
        return 0.0

    async def once(self, *_: Any) -> None:
        self.asked += 1
        raise Lost("no answer")

    async def repeat(self, *_: Any) -> None:
        raise StoreUnreachable("no answer")


def grow(replica: Replica, revisions: int) -> None:
    for _ in range(revisions):
        revision = replica.revision + 1
        replica.apply(revision, LogEntry(b"", (Put("/a", b""),), size=1))


def test_a_snapshot_that_failed_is_not_tried_again_with_every_commit() -> None:
    """Each attempt writes all metadata, and the cause of the failure may be a slow ZooKeeper."""

    async def main() -> None:
        threads, session, replica = Threads(1), _Session(), Replica()
        log = SimpleNamespace(replica=replica, head=Head(), version=0)
        snapshots = Snapshots(
            cast(ZooKeeperSession, session),
            cast(ZooKeeperLog, log),
            SystemRandom(),
            threads,
            ZooKeeperConfig(snapshot_revisions=100),
        )
        for _ in range(149):
            grow(replica, 1)
            if snapshots.is_due:
                await snapshots.keep_up()
        assert session.asked == 5
        threads.close()

    asyncio.run(main())
