"""Logins at a real etcd: users, rights, and tokens that expire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from aetcd import rpc

from penstock.ports import Compare, Put
from penstock.runtime import SystemClock, SystemRandom
from penstock.stores import etcd_login
from penstock.stores.errors import StoreRefused, StoreUnavailable
from penstock.stores.etcd import EtcdStore
from penstock.stores.etcd_address import EtcdAddress
from penstock.stores.etcd_login import METADATA, Metadata
from penstock.stores.etcd_members import EtcdConfig, Members
from penstock.testing.slowness import patient

from .etcd_certificate import certificate
from .etcd_server import PATIENT, EtcdCluster, open_store
from .etcd_users import NAMESPACE, PASSWORD, Users, with_user
from .store_bench import put, revision_of, take

PATIENCE_S = 150.0
BRISK = EtcdConfig(request_timeout_s=3.0, attempt_timeout_s=1.2)
"""For connections that must fail."""
TOKEN_S = 4
"""Long enough for a busy machine to use a token that it has just got."""
FAST = ["--heartbeat-interval=10", "--election-timeout=100", "--bcrypt-cost=4"]
INVALID: Metadata = (*METADATA, ("token", "nonsense.1"))


@pytest.fixture(scope="module")
def secured() -> Iterator[tuple[EtcdCluster, Users]]:
    """An etcd that authenticates, and has a user with rights on one namespace."""
    with_options = EtcdCluster(1, FAST)
    try:
        with_options.start()
        users = Users(with_options.members[0].endpoint)
        asyncio.run(users.secure())
        yield with_options, users
    finally:
        with_options.close()


@pytest.fixture
def bare() -> Iterator[tuple[EtcdCluster, Users]]:
    """An etcd of the test's own, whose tokens last for seconds. It does not authenticate yet."""
    cluster = EtcdCluster(1, [*FAST, f"--auth-token-ttl={TOKEN_S}"])
    try:
        cluster.start()
        yield cluster, Users(cluster.members[0].endpoint)
    finally:
        cluster.close()


@asynccontextmanager
async def opened(
    etcd: EtcdCluster, folder: Path, config: EtcdConfig = PATIENT
) -> AsyncIterator[EtcdStore]:
    store = await open_store(with_user(etcd.address(NAMESPACE), folder), config)
    try:
        async with asyncio.timeout(patient(PATIENCE_S)):
            yield store
    finally:
        await store.close()


def forge(store: EtcdStore, metadata: Metadata = INVALID) -> None:
    """Gives the store a token that etcd does not know, as if its own had expired."""
    store._members.login._current = metadata


def token_of(store: EtcdStore) -> Metadata:
    metadata = store._members.login._current
    assert metadata is not None
    return metadata


async def until_expired(endpoint: str, metadata: Metadata) -> None:
    """Waits until etcd has forgotten a token. A request renews it, so there are few of them."""
    request = rpc.RangeRequest(key=f"{NAMESPACE}/".encode())
    async with asyncio.timeout(patient(PATIENCE_S)), rpc.insecure_channel(endpoint) as channel:
        while True:
            await asyncio.sleep(TOKEN_S + 2.0)
            try:
                await rpc.KVStub(channel).Range(request, timeout=PATIENCE_S, metadata=metadata)
            except rpc.AioRpcError as error:
                assert "invalid auth token" in (error.details() or "")
                return


async def until_accepted(store: EtcdStore) -> None:
    async with asyncio.timeout(patient(PATIENCE_S)):
        while True:
            with suppress(StoreRefused):
                await store.get("/")
                return
            await asyncio.sleep(0.05)


async def _keep(store: EtcdStore) -> None:
    assert await store.keep_alive(await store.grant_lease(60.0))


async def _revoke(store: EtcdStore) -> None:
    lease = await store.grant_lease(60.0)
    assert (await store.commit((), [Put("/leased", b"", lease)])).succeeded
    forge(store)
    await store.revoke_lease(lease)
    assert await store.get("/leased") is None


async def _watch(store: EtcdStore) -> None:
    start = await revision_of(store)
    revision = await put(store, "/watched", b"")
    forge(store)
    assert [event.revision for event in await take(store, "", start + 1, 1)] == [revision]


async def _commit(store: EtcdStore) -> None:
    """The compare would fail if the first attempt had been carried out."""
    before = await store.get("/counter")
    compare = Compare("/counter", before.modify_revision if before else 0)
    forge(store)
    assert (await store.commit([compare], [Put("/counter", b"")])).succeeded


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.get("/a"),
        lambda store: store.range("/"),
        lambda store: store.grant_lease(60.0),
        _keep,
        _revoke,
        _watch,
        _commit,
    ],
    ids=["get", "range", "grant", "keep", "revoke", "watch", "commit"],
)
def test_a_request_with_an_invalid_token_is_repeated_with_a_new_one(
    secured: tuple[EtcdCluster, Users],
    tmp_path: Path,
    use: Callable[[EtcdStore], Awaitable[object]],
) -> None:
    """Each kind of request. The caller does not notice."""

    async def main() -> None:
        async with opened(secured[0], tmp_path) as store:
            forge(store)
            await use(store)
            assert token_of(store) != INVALID

    asyncio.run(main())


def test_requests_that_fail_at_the_same_time_share_a_login(
    secured: tuple[EtcdCluster, Users], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd takes long to check a password."""
    read, logins = etcd_login.read_password, []

    def counted(address: EtcdAddress) -> str:
        logins.append(address.user)
        return read(address)

    monkeypatch.setattr(etcd_login, "read_password", counted)

    async def main() -> None:
        async with opened(secured[0], tmp_path) as store:
            forge(store)
            logins.clear()
            await asyncio.gather(*(store.get("/a") for _ in range(50)))
            assert logins == ["penstock"]

    asyncio.run(main())


def test_a_user_can_use_its_namespace_only(
    secured: tuple[EtcdCluster, Users], tmp_path: Path
) -> None:
    """The error for another one names the user, and the command that grants the right."""

    async def main() -> None:
        async with opened(secured[0], tmp_path) as store:
            await put(store, "/own", b"1")
        other = with_user(secured[0].address("/other"), tmp_path)
        with pytest.raises(StoreRefused, match=r"'penstock' .*readwrite /other/"):
            await open_store(other)
        members = Members(other, SystemClock(), SystemRandom(), PATIENT)
        store = EtcdStore(members, other, PATIENT)
        with pytest.raises(StoreRefused, match=r"permission denied.*readwrite /other/"):
            await anext(store.watch("", 1))
        with pytest.raises(StoreRefused, match="permission denied"):
            await put(store, "/a", b"")
        await store.close()

    asyncio.run(main())


def test_a_user_who_may_only_read_cannot_write(
    bare: tuple[EtcdCluster, Users], tmp_path: Path
) -> None:
    """The commit is refused, and has no effect. It works as soon as the right is granted."""
    etcd, users = bare

    async def main() -> None:
        await users.create()
        await users.grant(may_write=False)
        await users.enable()
        async with opened(etcd, tmp_path) as store:
            with pytest.raises(StoreRefused, match=r"readwrite /prod/"):
                await put(store, "/a", b"")
            assert await store.get("/a") is None
            await users.grant()
            await put(store, "/a", b"")

    asyncio.run(main())


def test_an_expired_token_ends_neither_watches_nor_leases(
    bare: tuple[EtcdCluster, Users], tmp_path: Path
) -> None:
    """etcd forgets the token, and later restarts, which loses all of its tokens."""
    etcd, users = bare
    member = etcd.members[0]

    async def main() -> None:
        await users.secure()
        async with opened(etcd, tmp_path) as store:
            lease = await store.grant_lease(60.0)
            watch = store.watch("", await revision_of(store) + 1)
            for number in range(3):
                if number == 1:
                    await until_expired(member.endpoint, token_of(store))
                if number == 2:
                    member.kill()
                    member.start(etcd.members)
                    await store.get("/held")
                expected = await put(store, "/held", b"%d" % number, lease)
                assert await store.keep_alive(lease)
                assert [event.revision for event in await anext(watch)] == [expected]

    asyncio.run(main())


def test_a_wrong_password_is_refused_with_its_place(
    secured: tuple[EtcdCluster, Users], tmp_path: Path
) -> None:
    """Without repeating the password itself, and for an unknown user as well."""

    async def main() -> None:
        address = with_user(secured[0].address(NAMESPACE), tmp_path, "wrong-secret")
        for wrong in (address, replace(address, user="nobody")):
            with pytest.raises(StoreRefused) as caught:
                await open_store(wrong)
            message = str(caught.value)
            assert f"check that the file {address.password_file} has the password" in message
            assert "wrong-secret" not in message + repr(caught.value)

    asyncio.run(main())


def test_a_password_can_be_changed_while_the_store_is_in_use(
    bare: tuple[EtcdCluster, Users], tmp_path: Path
) -> None:
    """Between the change in etcd and the change of the file, requests are refused with an error
    that can be retried. An open watch continues."""
    etcd, users = bare

    async def main() -> None:
        await users.secure()
        async with opened(etcd, tmp_path) as store:
            watch = store.watch("", await revision_of(store) + 1)
            first = await put(store, "/a", b"")
            assert [event.revision for event in await anext(watch)] == [first]
            await users.change_password("second-secret")
            with pytest.raises(StoreRefused, match="etcd-password") as caught:
                await store.get("/a")
            assert caught.value.retriable
            (tmp_path / "etcd-password").write_text("second-secret\n")
            await until_accepted(store)
            second = await put(store, "/a", b"")
            assert [event.revision for event in await anext(watch)] == [second]

    asyncio.run(main())


def test_authentication_can_be_enabled_while_the_store_is_in_use(
    bare: tuple[EtcdCluster, Users], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, a store with a user works too, and warns once that etcd lets everyone in."""
    etcd, users = bare

    async def main() -> None:
        await users.create()
        await users.grant()
        with caplog.at_level(logging.WARNING):
            async with opened(etcd, tmp_path) as store:
                watch = store.watch("", await revision_of(store) + 1)
                for is_enabled in (False, True):
                    if is_enabled:
                        await users.enable()
                    expected = await put(store, "/a", b"")
                    assert [event.revision for event in await anext(watch)] == [expected]
        assert caplog.text.count("etcdctl auth enable") == 1
        assert PASSWORD not in caplog.text

    asyncio.run(main())


# The login itself


class HandClock(SystemClock):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Server:
    """Stands for etcd: accepts one password, and counts the logins."""

    def __init__(self) -> None:
        self.accepts = "right"
        self.logins = 0

    async def authenticate(self, _user: str, password: str) -> str:
        self.logins += 1
        if password != self.accepts:
            raise StoreRefused("refused")
        return f"token-{self.logins}"


def test_a_refused_password_is_not_sent_again_at_once(tmp_path: Path) -> None:
    """A broker makes many requests, and each would make etcd check the password. A changed
    password is sent at once."""

    async def main() -> None:
        clock, server = HandClock(), Server()
        login = etcd_login.Login(with_user(EtcdAddress(("a:1",)), tmp_path, "wrong"), clock)
        for _ in range(5):
            with pytest.raises(StoreRefused, match="refused"):
                await login.metadata(server.authenticate)
        assert server.logins == 1
        clock.now += etcd_login.REFUSED_S
        with pytest.raises(StoreRefused, match="refused"):
            await login.metadata(server.authenticate)
        assert server.logins == 2
        (tmp_path / "etcd-password").write_text("right")
        assert ("token", "token-3") in await login.metadata(server.authenticate)

    asyncio.run(main())


def test_only_the_current_token_is_forgotten(tmp_path: Path) -> None:
    """A request that fails late, with the token before, does not cause another login."""

    async def main() -> None:
        server = Server()
        address = with_user(EtcdAddress(("a:1",)), tmp_path, "right")
        login = etcd_login.Login(address, HandClock())
        first = await login.metadata(server.authenticate)
        assert login.forget(first)
        second = await login.metadata(server.authenticate)
        assert login.forget(first)
        assert await login.metadata(server.authenticate) is second
        assert server.logins == 2
        without = etcd_login.Login(EtcdAddress(("a:1",)), HandClock())
        assert await without.metadata(server.authenticate) is METADATA
        assert not without.forget(METADATA)
        assert server.logins == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"", "one line"),
        (b"\n", "one line"),
        (b"one\ntwo-secret\n", "one line"),
        (b"\xff\xfe", "not UTF-8"),
        (b"x" * 5000, "one line"),
    ],
)
def test_a_password_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    """The error does not repeat what is in it."""
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    address = EtcdAddress(("a:1",), user="me", password_file=str(path))
    with pytest.raises(StoreRefused, match=reason) as caught:
        etcd_login.read_password(address)
    assert str(path) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_password_can_come_from_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names a variable that is not set."""
    address = EtcdAddress(("a:1",), user="me", password_env="ETCD_PASSWORD")
    monkeypatch.delenv("ETCD_PASSWORD", raising=False)
    with pytest.raises(StoreRefused, match=r"ETCD_PASSWORD, .* is not set"):
        etcd_login.read_password(address)
    monkeypatch.setenv("ETCD_PASSWORD", "secret")
    assert etcd_login.read_password(address) == "secret"


def test_a_login_over_tls(tmp_path: Path) -> None:
    """The certificate of etcd is checked before the password is sent. Without TLS there is no
    connection, and with another authority the password is not sent."""
    server = certificate(tmp_path, "server")
    other = certificate(tmp_path, "other")
    files = [f"--cert-file={server.cert}", f"--key-file={server.key}"]
    etcd = EtcdCluster(1, [*FAST, *files])

    async def main() -> None:
        await Users(etcd.members[0].endpoint, ca=Path(server.cert)).secure()
        plain = with_user(etcd.address(NAMESPACE), tmp_path)
        store = await open_store(replace(plain, ca=server.cert), PATIENT)
        await put(store, "/a", b"1")
        forge(store)
        assert await store.get("/a") is not None
        await store.close()
        for unsafe in (plain, replace(plain, ca=other.cert)):
            with pytest.raises(StoreUnavailable):
                await open_store(unsafe, BRISK)
        wrong = with_user(etcd.address(NAMESPACE), tmp_path, "wrong-secret")
        with pytest.raises(StoreRefused, match="has the password"):
            await open_store(replace(wrong, ca=server.cert), PATIENT)

    try:
        etcd.members[0].start(etcd.members)
        asyncio.run(main())
    finally:
        etcd.close()
