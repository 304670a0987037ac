"""ZooKeeper with a user and a password, and with TLS."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from penstock.stores.errors import RevisionNotKept, StoreRefused, StoreUnavailable
from penstock.stores.zk_address import ZooKeeperAddress
from penstock.stores.zk_session import ZooKeeperConfig
from penstock.testing.slowness import patient

from .etcd_certificate import certificate
from .store_bench import keys_of, put, take
from .zk_server import ZooKeeperEnsemble, open_store

USER, PASSWORD, NEW_PASSWORD = "penstock", "first-secret", "second-secret"
LIMIT_S = 100.0


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperEnsemble]:
    ensemble = ZooKeeperEnsemble(1)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.close()


def with_user(
    address: ZooKeeperAddress, folder: Path, password: str = PASSWORD, name: str = "password"
) -> ZooKeeperAddress:
    path = folder / name
    path.write_text(f"{password}\n")
    return replace(address, user=USER, password_file=str(path))


def test_the_znodes_of_a_user_are_for_that_user_only(
    zookeeper: ZooKeeperEnsemble, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others are refused with advice, and the password is in no log."""
    caplog.set_level(logging.DEBUG)
    plain = zookeeper.address("/secured")
    address = with_user(plain, tmp_path)

    async def main() -> None:
        store = await open_store(address)
        revision = await put(store, "/a", b"1")
        again = await open_store(address)
        assert await keys_of(again) == ["/a"]
        wrong = with_user(plain, tmp_path, "wrong", name="wrong")
        for other, advice in ((plain, "a user and a password_file"), (wrong, "has the password")):
            with pytest.raises(StoreRefused, match=advice):
                await open_store(other)
        assert (await take(again, "/", revision, 1))[0].value == b"1"
        await store.close()
        await again.close()

    asyncio.run(main())
    assert PASSWORD not in caplog.text
    client = KazooClient(zookeeper.members[0].endpoint, timeout=60)
    client.start(timeout=patient(LIMIT_S))
    client.add_auth("digest", f"{USER}:{PASSWORD}")
    for path in ("/secured", "/secured/penstock/head", "/secured/penstock/log/" + "1".zfill(19)):
        assert client.get_acls(path)[0] == [make_digest_acl(USER, PASSWORD, all=True)]
    client.stop()
    client.close()


def test_a_password_can_be_in_the_environment(
    zookeeper: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = replace(zookeeper.address("/env"), user=USER, password_env="ZK_PASSWORD")

    async def main() -> None:
        with pytest.raises(StoreRefused, match="ZK_PASSWORD"):
            await open_store(address)
        monkeypatch.setenv("ZK_PASSWORD", PASSWORD)
        store = await open_store(address)
        assert await put(store, "/a", b"") == 1
        await store.close()

    asyncio.run(main())


def test_a_password_file_that_cannot_be_used_is_named(
    zookeeper: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    address = replace(zookeeper.address("/file"), user=USER, password_file=str(path))

    async def main() -> None:
        for content in (None, b"", b"two\nlines", b"\xff", b"x" * 5000):
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(StoreRefused, match=str(path)):
                await open_store(address)

    asyncio.run(main())


def test_the_password_of_a_stopped_cluster_can_be_changed(
    zookeeper: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    """As `docs/OPERATIONS.md` says: the rights are set again, by someone with both passwords."""
    plain = zookeeper.address("/changed")

    async def main(address: ZooKeeperAddress, key: str) -> None:
        store = await open_store(address)
        await put(store, key, b"")
        await store.snapshots.make(revisions_kept=0)
        await store.close()

    asyncio.run(main(with_user(plain, tmp_path), "/a"))
    client = KazooClient(zookeeper.members[0].endpoint, timeout=60)
    client.start(timeout=patient(LIMIT_S))
    for password in (PASSWORD, NEW_PASSWORD):
        client.add_auth("digest", f"{USER}:{password}")
    waiting = ["/changed"]
    while waiting:
        path = waiting.pop()
        client.set_acls(path, [make_digest_acl(USER, NEW_PASSWORD, all=True)])
        waiting += [f"{path}/{name}" for name in client.get_children(path)]
    client.stop()
    client.close()
    asyncio.run(main(with_user(plain, tmp_path, NEW_PASSWORD), "/b"))
    with pytest.raises(StoreRefused):
        asyncio.run(main(with_user(plain, tmp_path), "/c"))


def test_a_right_that_is_taken_away_is_reported(
    zookeeper: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    """Calls and watches raise it, and go on when the right is back."""
    address = with_user(zookeeper.address("/taken"), tmp_path)
    head = "/taken/penstock/head"

    def give(password: str) -> None:
        client = KazooClient(zookeeper.members[0].endpoint, timeout=60)
        client.start(timeout=patient(LIMIT_S))
        for each in (PASSWORD, NEW_PASSWORD):
            client.add_auth("digest", f"{USER}:{each}")
        client.set_acls(head, [make_digest_acl(USER, password, all=True)])
        client.stop()
        client.close()

    async def main() -> None:
        store = await open_store(address)
        revision = await put(store, "/a", b"1")
        watching = asyncio.create_task(take(store, "/", revision + 1, 1))
        await asyncio.to_thread(give, NEW_PASSWORD)
        with pytest.raises(StoreRefused, match="setAcl"):
            await put(store, "/a", b"2")
        async with asyncio.timeout(patient(LIMIT_S)):
            with pytest.raises(StoreRefused):
                await watching
        await asyncio.to_thread(give, PASSWORD)
        revision = await put(store, "/a", b"3")
        async with asyncio.timeout(patient(LIMIT_S)):
            while True:
                try:
                    (event,) = await take(store, "/", revision, 1)
                    break
                except (StoreRefused, RevisionNotKept):
                    await asyncio.sleep(0.1)
        assert event.value == b"3"
        await store.close()

    asyncio.run(main())


# When a handshake fails, kazoo leaves the socket to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_connection_can_use_tls(tmp_path: Path) -> None:
    """The server shows a certificate signed by the given CA. Without it there is no connection."""
    cert, key = certificate(tmp_path, "zk")
    both = tmp_path / "both.pem"
    both.write_text(Path(key).read_text() + Path(cert).read_text())
    ensemble = ZooKeeperEnsemble(1)
    secure_port = ensemble.members[0].peer_port
    ensemble.settings = (
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"secureClientPort={secure_port}",
        f"ssl.keyStore.location={both}",
        f"ssl.trustStore.location={cert}",
        "ssl.clientAuth=none",
    )

    async def main() -> None:
        plain = ZooKeeperAddress((f"127.0.0.1:{secure_port}",), "/tls")
        store = await open_store(replace(plain, ca=cert))
        assert await put(store, "/a", b"") == 1
        await store.close()
        other, _ = certificate(tmp_path, "other")
        brisk = ZooKeeperConfig(request_timeout_s=patient(3.0), attempt_timeout_s=patient(1.0))
        for lacking in (plain, replace(plain, ca=other)):
            with pytest.raises(StoreUnavailable):
                await open_store(lacking, brisk)

    try:
        ensemble.start()
        asyncio.run(main())
    finally:
        ensemble.close()


def test_a_zookeeper_that_accepts_no_login_is_reported_as_such(tmp_path: Path) -> None:
    """Not as one that does not answer."""
    ensemble = ZooKeeperEnsemble(1, ["DigestAuthenticationProvider.enabled=false"])

    async def main() -> None:
        with pytest.raises(StoreRefused, match="does not accept the login"):
            await open_store(with_user(ensemble.address("/refused"), tmp_path))

    try:
        ensemble.start()
        asyncio.run(main())
    finally:
        ensemble.close()
