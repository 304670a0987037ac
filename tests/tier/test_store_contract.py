"""One suite for every object store: what the protocols of `penstock.tier` require of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.records.batch import Buffer
from penstock.tier.chain import find
from penstock.tier.cloud_store import CloudStore
from penstock.tier.commit import claim, commit_one
from penstock.tier.driver import Driver
from penstock.tier.edits import Append
from penstock.tier.errors import AlreadyExists, NotFound, Refused, StoreError
from penstock.tier.object_store import ObjectStore
from penstock.tier.opening import check_store, open_store
from penstock.tier.probe import probe
from penstock.tier.segment_object import verify
from penstock.tier.upload import upload

from .moto_process import MotoServer
from .object_samples import OWNER, sample_object
from .s3_stub import BUCKET, S3Stub
from .simulated_bucket import SimulatedStore
from .store_bench import new_env, s3_options

KINDS = ["simulated", "directory", "memory", "stub", "moto"]
Scenario = Callable[[ObjectStore], Awaitable[None]]
Check = Callable[[Scenario], None]


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoServer]:
    server = MotoServer()
    yield server
    server.stop()


@asynccontextmanager
async def opened(kind: str, folder: Path, moto: MotoServer | None) -> AsyncIterator[ObjectStore]:
    env = new_env()
    if kind == "simulated":
        yield SimulatedStore()
    elif kind == "directory":
        (folder / "archive").mkdir()
        yield open_store(f"file://{folder}/archive", env)
    elif kind == "memory":
        yield open_store("memory:///", env)
    elif kind == "stub":
        stub = S3Stub()
        await stub.start()
        yield open_store(f"s3://{BUCKET}", env, s3_options(stub.port))
        await stub.stop()
    else:
        assert moto is not None
        yield open_store(f"s3://{moto.new_bucket()}/in/a/folder", env, s3_options(moto.port))


@pytest.fixture(params=KINDS)
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Check:
    """Runs a scenario on a new store."""
    server = request.getfixturevalue("moto") if request.param == "moto" else None

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            async with opened(request.param, tmp_path, server) as store:
                await scenario(store)
                await store.close()

        asyncio.run(main())

    return run


def test_the_probe_accepts_the_store(check: Check) -> None:
    async def scenario(store: ObjectStore) -> None:
        await check_store(store, new_env())
        assert await store.list_objects("probe/") == []

    check(scenario)


def test_a_created_object_can_be_read_whole_and_in_ranges(check: Check) -> None:
    async def scenario(store: ObjectStore) -> None:
        parts: list[Buffer] = [b"0123", bytearray(b"4567"), memoryview(b"xx89")[2:], b""]
        await store.create("a/b/object-1", parts)
        assert await store.get("a/b/object-1") == b"0123456789"
        assert await store.get_range("a/b/object-1", 3, 4) == b"3456"
        assert await store.get_range("a/b/object-1", 7, 100) == b"789"
        assert type(await store.get_range("a/b/object-1", 0, 2)) is bytes
        found = await store.get_ranges("a/b/object-1", [(8, 2), (0, 3), (2, 2)])
        assert found == [b"89", b"012", b"23"]

    check(scenario)


def test_a_second_create_fails_and_changes_nothing(check: Check) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.create("a/object", [b"first"])
        with pytest.raises(AlreadyExists):
            await store.create("a/object", [b"second"])
        assert await store.get("a/object") == b"first"

    check(scenario)


def test_of_many_creates_at_once_exactly_one_succeeds(check: Check) -> None:
    async def scenario(store: ObjectStore) -> None:
        for number in range(4):

            async def create(body: bytes, key: str = f"race/{number}") -> bytes | None:
                try:
                    await store.create(key, [body])
                except AlreadyExists:
                    return None
                return body

            bodies = [b"%d" % each for each in range(16)]
            winners = [each for each in await asyncio.gather(*map(create, bodies)) if each]
            assert len(winners) == 1
            assert await store.get(f"race/{number}") == winners[0]

    check(scenario)


def test_an_empty_object_can_be_created(check: Check) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.create("a/empty", [])
        assert (await store.head("a/empty")).size == 0
        assert await store.get("a/empty") == b""

    check(scenario)


def test_a_put_replaces_an_object(check: Check) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.put("a/object", [b"first"])
        await store.put("a/object", [b"the ", b"second"])
        assert await store.get("a/object") == b"the second"

    check(scenario)


def test_a_missing_object_is_reported_as_missing(check: Check) -> None:
    """Also one whose name is a folder of others, or is below an object."""

    async def scenario(store: ObjectStore) -> None:
        await store.create("a/b/object", [b"x"])
        for key in ("missing", "a/b", "a/b/object/below", "a/missing"):
            for call in (store.get(key), store.head(key), store.get_range(key, 0, 1)):
                with pytest.raises(NotFound):
                    await call

    check(scenario)


def test_a_deleted_object_is_gone_and_can_be_created_again(check: Check) -> None:
    """That is why there are boundaries."""

    async def scenario(store: ObjectStore) -> None:
        await store.create("a/object", [b"first"])
        await store.delete("a/object")
        with pytest.raises(NotFound):
            await store.get("a/object")
        await store.delete("a/object")
        await store.delete("never/was")
        await store.create("a/object", [b"again"])
        assert await store.get("a/object") == b"again"

    check(scenario)


def test_the_head_has_size_and_time(check: Check) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.create("a/object", [b"12345"])
        info = await store.head("a/object")
        assert (info.key, info.size) == ("a/object", 5)
        assert [info] == list(await store.list_objects("a/"))

    check(scenario)


def test_listings_are_sorted_in_pages_and_of_one_folder(check: Check) -> None:
    async def scenario(store: ObjectStore) -> None:
        keys = [f"a/{number:03d}" for number in range(25)]
        others = ["a-b/x", "a.b", "ab/y", "b/0", "a/005-1/deep/er"]
        for key in [*keys, *others]:
            await store.create(key, [b"x"])
        wanted = sorted([*keys, "a/005-1/deep/er"])
        found: list[str] = []
        while page := await store.list_objects(
            "a/", start_after=found[-1] if found else "", limit=7
        ):
            assert len(page) <= 7
            found += [info.key for info in page]
        assert found == wanted
        assert [info.key for info in await store.list_objects("")] == sorted([*keys, *others])
        assert list(await store.list_objects("nothing/here/")) == []

    check(scenario)


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", ".a", "a b", "ä"]
)
def test_unsafe_names_are_refused(check: Check, key: str) -> None:
    """Names are paths of a directory and parts of a URL."""

    async def scenario(store: ObjectStore) -> None:
        for call in (
            store.create(key, [b"x"]),
            store.put(key, [b"x"]),
            store.get(key),
            store.head(key),
            store.delete(key),
        ):
            with pytest.raises(ValueError, match="is not a key"):
                await call
        with pytest.raises(ValueError):
            await store.list_objects(f"{key}x")

    check(scenario)


def test_impossible_ranges_are_refused(check: Check) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.create("a/object", [b"12345"])
        for start, size in ((-1, 2), (0, 0), (2, -1)):
            with pytest.raises(ValueError, match="ask for at least one byte"):
                await store.get_range("a/object", start, size)
            with pytest.raises(ValueError):
                await store.get_ranges("a/object", [(start, size)])

    check(scenario)


def test_a_large_object_is_one_object(check: Check) -> None:
    """Larger than the parts in which clients upload large objects."""

    async def scenario(store: ObjectStore) -> None:
        part = bytes(range(256)) * 4096
        await store.create("a/large", [part] * 12)
        assert (await store.head("a/large")).size == 12 * len(part)
        assert await store.get_range("a/large", 5 * len(part) + 3, 4) == b"\3\4\5\6"
        with pytest.raises(AlreadyExists):
            await store.create("a/large", [part] * 12)

    check(scenario)


def test_a_leader_commits_and_its_predecessor_is_fenced(check: Check) -> None:
    """The protocols run on the real store."""

    async def scenario(store: ObjectStore) -> None:
        env = new_env()
        driver, draw = Driver(store, env.clock, env.random), env.random.bytes
        view = await driver.run(find("shared/0"))
        view, first = await driver.run(claim(view, OWNER, 1, 0, draw))
        entry = await driver.run(upload(sample_object(0, 9), first, draw))
        view = await driver.run(commit_one(view, Append(OWNER, first, (entry,)), 0, draw))
        newer, _ = await driver.run(claim(view, OWNER, 2, 0, draw))
        late = await driver.run(upload(sample_object(9, 12), first, draw))
        with pytest.raises(Exception, match="has ended"):
            await driver.run(commit_one(view, Append(OWNER, first, (late,)), 0, draw))
        assert await driver.run(find("shared/0")) == newer
        assert verify(await store.get(entry.key)) == sample_object(0, 9).footer

    check(scenario)


# Stores that are not suitable


def _probed(stub: S3Stub) -> StoreError | None:
    async def main() -> StoreError | None:
        env = new_env()
        await stub.start()
        store = open_store(f"s3://{BUCKET}", env, s3_options(stub.port))
        try:
            await Driver(store, env.clock, env.random).run(probe(env.random.bytes))
        except StoreError as error:
            return error
        finally:
            await stub.stop()
        return None

    return asyncio.run(main())


def test_the_probe_accepts_a_server_that_does_everything_right() -> None:
    stub = S3Stub()
    assert _probed(stub) is None
    assert stub.objects == {}


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        (S3Stub(ignores_create=True), "ignores create-if-absent"),
        (S3Stub(creates_at_once=True), "concurrent creates of one name succeeded"),
        (S3Stub(forgets_deletes=True), "still returns an object that was deleted"),
        (S3Stub(status=403), "403"),
        (S3Stub(status=404), "check that the bucket exists"),
    ],
)
def test_the_probe_refuses_an_unsuitable_server_with_the_reason(stub: S3Stub, reason: str) -> None:
    error = _probed(stub)
    assert isinstance(error, Refused)
    assert reason in str(error)


def test_a_refused_server_is_left_clean() -> None:
    stub = S3Stub(ignores_create=True)
    assert isinstance(_probed(stub), Refused)
    assert stub.objects == {}


def test_a_store_that_is_not_known_is_refused() -> None:
    paths = ("file:///", "file://///", "file:///a%00b", "file:///mnt/a#b", "file:///mnt/a?b")
    for url in ("ftp://x", "bucket", "file://host/path", "s3:///", *paths):
        with pytest.raises(Refused):
            open_store(url, new_env())
    with pytest.raises(Refused, match="has no options"):
        open_store("file:///tmp/x", new_env(), {"endpoint": "x"})
    with pytest.raises(Refused):
        open_store("s3://bucket", new_env(), {"no_such_option": "x"})


def test_without_the_extra_only_directories_can_be_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "penstock.tier.cloud_store", None)
    with pytest.raises(Refused, match="pip install"):
        open_store("s3://bucket", new_env())
    assert not isinstance(open_store(f"file://{tmp_path}/a", new_env()), CloudStore)
