"""What is specific to the etcd store: namespaces, limits of time and size, checks of its server."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.ports import Compare, Put
from penstock.runtime import SystemRandom
from penstock.stores.errors import (
    LeaseNotFound,
    OutcomeUnknown,
    StoreClosed,
    StoreCorrupt,
    StoreUnavailable,
    StoreUnreachable,
)
from penstock.stores.etcd import EtcdStore
from penstock.stores.etcd_address import EtcdAddress
from penstock.stores.etcd_members import EtcdConfig
from penstock.testing.slowness import patient

from .etcd_certificate import certificate
from .etcd_server import PATIENT, EtcdCluster, open_store
from .store_bench import keys_of, put, revision_of, take

SLACK_S = 10.0
"""How late a busy machine may be."""


def brisk(trust_s: float = 60.0) -> EtcdConfig:
    """For calls that a frozen etcd does not answer, after others that it must answer."""
    return EtcdConfig(
        request_timeout_s=patient(6.0), attempt_timeout_s=patient(2.0), trust_s=trust_s
    )


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(1, ["--heartbeat-interval=10", "--election-timeout=100"])
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def frozen(etcd: EtcdCluster) -> Iterator[EtcdCluster]:
    """An etcd that the test may freeze. It runs again afterwards."""
    yield etcd
    etcd.members[0].thaw()


class Elapsed:
    """Asserts that the enclosed code took no longer than allowed."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s

    def __enter__(self) -> None:
        self.start_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        assert time.monotonic() - self.start_s < patient(self.limit_s + SLACK_S)


def test_clusters_share_an_etcd_in_separate_namespaces(etcd: EtcdCluster) -> None:
    """Neither sees, watches or affects the keys of the other, even if one name is a prefix of the
    other. An operator finds the keys in etcd under the namespace."""

    async def main() -> None:
        prod = await open_store(etcd.address("/prod"))
        prod2 = await open_store(etcd.address("/prod2"))
        everything = await open_store(etcd.address())
        start = await revision_of(prod)
        await put(prod2, "/penstock/a", b"2")
        revision = await put(prod, "/penstock/a", b"1")
        assert await keys_of(prod) == ["/penstock/a"]
        assert (await prod.range(""))[0][0].value == b"1"
        absent = await prod.commit([Compare("/penstock/b", 0)], [Put("/penstock/b", b"")])
        assert absent.succeeded
        events = await take(prod, "", start + 1, 2)
        assert [(event.key, event.revision) for event in events] == [
            ("/penstock/a", revision),
            ("/penstock/b", absent.revision),
        ]
        assert await keys_of(everything, "/prod/") == ["/prod/penstock/a", "/prod/penstock/b"]
        for store in (prod, prod2, everything):
            await store.close()

    asyncio.run(main())


def test_a_key_must_begin_with_a_slash(etcd: EtcdCluster) -> None:
    """Otherwise it would be outside of the namespace."""

    async def main() -> None:
        store = await open_store(etcd.address("/slash"))
        for use in (store.get("a"), put(store, "a", b""), store.range("a")):
            with pytest.raises(ValueError, match="slash"):
                await use
        await store.close()

    asyncio.run(main())


def test_opening_without_an_etcd_fails_in_time() -> None:
    """Within the time limit, and the error names the address that gave no answer and the reason."""

    async def main() -> None:
        address, config = EtcdAddress(("127.0.0.1:1", "127.0.0.1:2")), brisk()
        limit_s = config.request_timeout_s
        with Elapsed(limit_s), pytest.raises(StoreUnreachable) as caught:
            await open_store(address, config)
        expected = f"etcd://127.0.0.1:1,127.0.0.1:2 did not answer within {limit_s} s"
        assert expected in str(caught.value)
        assert "refused" in str(caught.value)

    asyncio.run(main())


def test_a_commit_to_a_frozen_server_has_an_unknown_outcome(frozen: EtcdCluster) -> None:
    """The error is raised within the time limit, and the commit is not sent again. A read shows
    the outcome."""
    server = frozen.members[0]

    async def main() -> None:
        config = brisk()
        store = await open_store(frozen.address("/freeze"), config)
        revision = await put(store, "/a", b"1")
        server.freeze()
        with Elapsed(config.request_timeout_s), pytest.raises(OutcomeUnknown, match="read"):
            await store.commit([Compare("/a", revision)], [Put("/a", b"2")])
        with Elapsed(config.request_timeout_s), pytest.raises(StoreUnavailable):
            await store.get("/a")
        server.thaw()
        store_again = await open_store(frozen.address("/freeze"))
        entry = await store_again.get("/a")
        assert entry is not None
        assert (entry.value, entry.modify_revision) in {(b"1", revision), (b"2", revision + 1)}
        await store.close()
        await store_again.close()

    asyncio.run(main())


def test_an_idle_connection_is_checked_before_a_commit(frozen: EtcdCluster) -> None:
    """So if the server died meanwhile, it is known that the commit was not made."""
    server = frozen.members[0]

    async def main() -> None:
        config = brisk(trust_s=0.0)
        store = await open_store(frozen.address("/quiet"), config)
        revision = await put(store, "/a", b"1")
        server.freeze()
        with (
            Elapsed(config.request_timeout_s),
            pytest.raises(StoreUnreachable, match="nothing was"),
        ):
            await store.commit((), [Put("/a", b"2")])
        server.thaw()
        store_again = await open_store(frozen.address("/quiet"))
        entry = await store_again.get("/a")
        assert entry is not None
        assert (entry.value, entry.modify_revision) == (b"1", revision)
        await store.close()
        await store_again.close()

    asyncio.run(main())


def test_closing_waits_for_calls_and_ends_retries(frozen: EtcdCluster) -> None:
    """A call in progress is completed, a call that would be retried fails, and closing takes
    limited time."""
    server = frozen.members[0]

    async def main() -> None:
        config = brisk()
        store = await open_store(frozen.address("/close"), config)
        answered = asyncio.create_task(put(store, "/a", b""))
        await asyncio.sleep(0)
        await store.close()
        assert await answered > 0
        store = await open_store(frozen.address("/close"), config)
        server.freeze()
        unanswered = asyncio.create_task(store.get("/a"))
        await asyncio.sleep(0)
        with Elapsed(config.request_timeout_s):
            await asyncio.gather(store.close(), store.close())
        with pytest.raises((StoreClosed, StoreUnavailable)):
            await unanswered

    asyncio.run(main())


def test_the_error_names_the_missing_lease(etcd: EtcdCluster) -> None:
    """Among several in one commit. The commit changes nothing."""

    async def main() -> None:
        store = await open_store(etcd.address("/leases"))
        leases = sorted([await store.grant_lease(60.0) for _ in range(3)])
        for missing in leases:
            await store.revoke_lease(missing)
            puts = [Put(f"/{lease}", b"", lease) for lease in leases]
            with pytest.raises(LeaseNotFound) as caught:
                await store.commit((), puts)
            assert caught.value.lease == missing
            assert await keys_of(store) == []
            leases[leases.index(missing)] = await store.grant_lease(60.0)
        await store.close()

    asyncio.run(main())


def test_commits_beyond_etcds_limits_name_the_limit(etcd: EtcdCluster) -> None:
    """Too many changes, too many bytes: nothing is done, and the error names the option to
    raise."""

    async def main() -> None:
        store = await open_store(etcd.address("/limits"))
        with pytest.raises(StoreUnavailable, match="--max-txn-ops") as caught:
            await store.commit((), [Put(f"/{number}", b"") for number in range(129)])
        assert not isinstance(caught.value, OutcomeUnknown)
        with pytest.raises(StoreUnavailable, match="--max-request-bytes"):
            await store.commit((), [Put("/a", bytes(3 << 20))])
        assert await keys_of(store) == []
        await store.close()

    asyncio.run(main())


def test_members_of_two_clusters_are_detected(etcd: EtcdCluster) -> None:
    """An address that mixes them up is refused before anything is written to the wrong one."""
    other = EtcdCluster(1, [])
    frozen = etcd.members[0]

    async def main() -> None:
        both = EtcdAddress((frozen.endpoint, other.members[0].endpoint), "/mixed")
        config = EtcdConfig(patient(60.0), attempt_timeout_s=patient(3.0), trust_s=0.0)
        store = await open_store(both, config)
        await put(store, "/a", b"")
        frozen.freeze()
        with pytest.raises(StoreCorrupt, match="different etcd cluster"):
            await store.commit((), [Put("/b", b"")])
        await store.close()
        alone = await open_store(EtcdAddress((other.members[0].endpoint,), "/mixed"))
        assert await keys_of(alone) == []
        await alone.close()

    try:
        # Its name and ports give a different cluster id.
        other.start()
        asyncio.run(main())
    finally:
        frozen.thaw()
        other.close()


def test_an_etcd_that_went_back_in_time_is_detected() -> None:
    """If it is restored from a backup under running brokers, it contradicts what they know."""
    etcd = EtcdCluster(1, [])
    server = etcd.members[0]

    async def main() -> None:
        store = await open_store(etcd.address())
        for number in range(3):
            await put(store, "/a", b"%d" % number)
        server.kill()
        (etcd.directory / server.name).rename(etcd.directory / "away")
        server.start(etcd.members)
        with pytest.raises(StoreCorrupt, match="restored from a backup"):
            await store.get("/a")
        await store.close()

    try:
        etcd.start()
        asyncio.run(main())
    finally:
        etcd.close()


def test_the_connection_can_use_tls(tmp_path: Path) -> None:
    """Each side shows a certificate signed by the given CA. Without one there is no connection."""
    cert, key = certificate(tmp_path, "etcd")
    files = [f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={cert}"]
    etcd = EtcdCluster(1, [*files, "--client-cert-auth"])

    async def main() -> None:
        plain = etcd.address("/tls")
        full = dataclasses.replace(plain, ca=cert, cert=cert, key=key)
        store = await open_store(full)
        assert await put(store, "/a", b"") > 0
        await store.close()
        for lacking in (plain, dataclasses.replace(plain, ca=cert)):
            with pytest.raises(StoreUnavailable):
                await open_store(lacking, brisk())
        with pytest.raises(StoreUnavailable, match=r"cannot read .*no-such.pem"):
            await open_store(dataclasses.replace(full, ca="/no-such.pem"))

    try:
        etcd.members[0].start(etcd.members)
        asyncio.run(main())
    finally:
        etcd.close()


def test_handles_spread_over_the_members(etcd: EtcdCluster) -> None:
    """Each begins with a random member, so that no member serves all brokers. A member that does
    not answer costs only the attempt."""

    class Last(SystemRandom):
        def below(self, bound: int) -> int:
            return bound - 1

    async def main() -> None:
        endpoint = etcd.members[0].endpoint
        for random, endpoints in (
            (Last(), ("127.0.0.1:1", endpoint)),
            (Last(), (endpoint, "127.0.0.1:1")),
        ):
            store = await EtcdStore.open(EtcdAddress(endpoints, "/spread"), Slow(), random, PATIENT)
            assert await put(store, "/a", b"") > 0
            await store.close()

    asyncio.run(main())


class Slow:
    """A clock on which the deadline is always far away."""

    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.mark.parametrize(
    "wrong",
    [{"request_timeout_s": 0.0}, {"attempt_timeout_s": -1.0}, {"trust_s": -0.1}],
)
def test_invalid_timeouts_are_refused(wrong: dict[str, float]) -> None:
    """When they are configured, not when they are first used."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EtcdConfig(**wrong)
