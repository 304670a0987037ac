"""How a handle of the ZooKeeper store connects: members that are switched off, slow name servers,
znodes that an administrator has made, and what is said when it fails."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from penstock.stores.errors import StoreCorrupt, StoreRefused, StoreUnavailable, StoreUnreachable
from penstock.stores.zk_address import ZooKeeperAddress
from penstock.stores.zk_session import ZooKeeperConfig
from penstock.testing.slowness import patient

from .store_bench import put, take
from .zk_server import PATIENT, ZooKeeperEnsemble, open_store

LIMIT_S = 100.0
SESSION_S = 600.0


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperEnsemble]:
    ensemble = ZooKeeperEnsemble(1)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.close()


@contextmanager
def switched_off() -> Iterator[str]:
    """An address where connections are neither accepted nor refused."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def administrator(ensemble: ZooKeeperEnsemble) -> Iterator[KazooClient]:
    client = KazooClient(ensemble.members[0].endpoint, timeout=60)
    client.start(timeout=patient(LIMIT_S))
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_members_that_are_switched_off_do_not_take_the_time_of_a_call(
    zookeeper: ZooKeeperEnsemble,
) -> None:
    """They get as long to accept a connection as others have to answer. A session may last much
    longer than a call."""

    async def main() -> None:
        config = replace(PATIENT, attempt_timeout_s=patient(1.0), session_timeout_s=SESSION_S)
        with switched_off() as one, switched_off() as two:
            endpoints = (one, two, zookeeper.members[0].endpoint)
            async with asyncio.timeout(patient(LIMIT_S)):
                store = await open_store(ZooKeeperAddress(endpoints, "/off"), config)
                assert await put(store, "/a", b"") == 1
                await store.close()

    asyncio.run(main())


def test_a_slow_name_server_is_waited_for(
    zookeeper: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is not begun again meanwhile."""
    resolve = socket.getaddrinfo
    own_port = int(zookeeper.members[0].endpoint.rpartition(":")[2])
    asked = []

    def resolve_slowly(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        # Threads of other tests may look up names, too.
        if port == own_port:
            asked.append(host)
            time.sleep(1.5)
        return resolve(host, port, *args, **options)

    async def main() -> None:
        monkeypatch.setattr(socket, "getaddrinfo", resolve_slowly)
        store = await open_store(zookeeper.address("/slow-names"))
        assert await put(store, "/a", b"") == 1
        monkeypatch.undo()
        await store.close()

    asyncio.run(main())
    assert 1 <= len(asked) <= 2


def test_a_call_that_has_little_time_left_does_not_end_the_connection(
    zookeeper: ZooKeeperEnsemble,
) -> None:
    """Other calls use it, and it may have been made a moment ago."""
    server = zookeeper.members[0]

    async def main() -> None:
        store = await open_store(zookeeper.address("/hurry"))
        session = store._session
        handler = session._handler
        assert handler is not None
        before = handler.socket_now
        server.freeze()
        for left_s in (-1.0, 0.0, 0.2):
            with pytest.raises(StoreUnreachable):
                await session.fresh([], time.monotonic() + left_s)
        server.thaw()
        assert await put(store, "/a", b"") == 1
        assert handler.socket_now is before
        await store.close()

    try:
        asyncio.run(main())
    finally:
        server.thaw()


def test_a_namespace_that_an_administrator_has_made_is_used(zookeeper: ZooKeeperEnsemble) -> None:
    """Also if others may make no znodes beside it. Where there is none, the error says so."""
    with administrator(zookeeper) as client:
        client.create("/shared", acl=OPEN_ACL_UNSAFE)
        client.create("/shared/prod", acl=OPEN_ACL_UNSAFE)
        client.set_acls("/shared", READ_ACL_UNSAFE)

    async def main() -> None:
        store = await open_store(zookeeper.address("/shared/prod"))
        assert await put(store, "/a", b"") == 1
        await store.close()
        with pytest.raises(StoreRefused, match="create /shared/other with the rights cdrwa"):
            await open_store(zookeeper.address("/shared/other"))

    asyncio.run(main())


def test_the_error_says_why_there_is_no_connection(zookeeper: ZooKeeperEnsemble) -> None:
    async def main() -> None:
        config = ZooKeeperConfig(request_timeout_s=patient(2.0))
        address = replace(zookeeper.address("/why"), ca="/no/such/ca.pem")
        with pytest.raises(StoreUnreachable, match="No such file"):
            await open_store(address, config)

    asyncio.run(main())


def test_znodes_that_are_gone_are_reported_as_such(zookeeper: ZooKeeperEnsemble) -> None:
    async def main() -> None:
        store = await open_store(zookeeper.address("/gone"))
        await put(store, "/a", b"")
        await asyncio.to_thread(remove_all)
        with pytest.raises(StoreCorrupt, match="restore ZooKeeper from a backup"):
            await store.get("/a")
        await store.close()

    def remove_all() -> None:
        with administrator(zookeeper) as client:
            client.delete("/gone", recursive=True)

    asyncio.run(main())


def test_the_end_of_a_task_in_the_background_is_not_forgotten(
    zookeeper: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle that does not look at leases any more must not seem healthy."""

    async def main() -> None:
        store = await open_store(zookeeper.address("/task"))

        async def fail() -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(store, "look_for_ended_leases", fail)
        looking = store._tasks[1]
        async with asyncio.timeout(patient(LIMIT_S / 5)):
            await asyncio.wait([looking])
            # The task that follows the log would have looked again, so it would have recovered.
            revision = await put(store, "/a", b"")
            await asyncio.sleep(1.5)
            with pytest.raises(StoreUnavailable, match=r"a defect.*restart"):
                await take(store, "/", revision + 1, 1)
        await store.close()

    asyncio.run(main())
