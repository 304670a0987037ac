"""Tests the catalog of deployed pipelines with a real broker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from penstock import aio
from penstock.spark.deployments import archive_store, topics
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.catalog_errors import (
    ArchiveDamaged,
    ChangeConflict,
    NoSuchDeployment,
)
from penstock.spark.deployments.change_plan import VERSIONS_KEPT, NewVersion
from penstock.spark.deployments.model import (
    Deployment,
    Event,
    Schedule,
    Status,
    Version,
    WorkerStatus,
    encode,
)
from penstock.spark.pipelines.errors import PipelineError
from penstock.testing import Broker
from penstock.testing.slowness import patient


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def name(broker: Broker) -> str:
    return broker.new_name("views").lower().replace("_", "-")


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(patient(120)):
            await work

    asyncio.run(bounded())


@asynccontextmanager
async def catalog(broker: Broker) -> AsyncIterator[Catalog]:
    async with Catalog(broker.bootstrap, user="ann") as opened:
        await opened.caught_up()
        yield opened


def plan(name: str, archive: bytes = b"files", **given: Any) -> NewVersion:
    return NewVersion(name, "project", "spark-pipeline.yml", archive, **given)


def stopped(old: Deployment) -> Deployment:
    return replace(old, wanted="STOPPED")


def test_a_deployment_is_visible_to_another_client(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine, catalog(broker) as other:
            changes: list[int] = []
            other.on_change(lambda: changes.append(1))
            schedule = Schedule(every_s=600.0)
            given = plan(name, note="first", schedule=schedule, flows={"clicks": "f1"})
            made = await mine.deploy(given)
            assert (made.revision, made.version, made.wanted) == (1, 1, "RUNNING")
            assert mine.deployments[name] == made
            await other.caught_up()
            assert other.deployments[name] == made
            version = other.versions[name, 1]
            assert (version.note, version.deployed_by) == ("first", "ann")
            assert version.flows == {"clicks": "f1"}
            assert await other.archive(version) == b"files"
            assert changes
            assert [event.what async for event in other.history(name)] == ["deployed"]

    run(work())


def test_a_second_version_keeps_the_settings_that_are_not_given(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            first = plan(name, schedule=Schedule(cron="0 * * * *"), secrets=["DB"], memory_mb=700)
            await mine.deploy(first)
            made = await mine.deploy(plan(name, b"other files", master="local[4]"))
            assert (made.revision, made.version) == (2, 2)
            assert made.schedule.cron == "0 * * * *"
            assert (made.secrets, made.memory_mb, made.master) == (["DB"], 700, "local[4]")
            assert await mine.archive(mine.versions[name, 1]) == b"files"
            assert await mine.archive(mine.versions[name, 2]) == b"other files"

    run(work())


def test_a_large_archive_comes_back_in_one_piece(broker: Broker, name: str) -> None:
    data = os.urandom(3 * archive_store.CHUNK_BYTES + 17)

    async def work() -> None:
        async with catalog(broker) as mine:
            shown: list[int] = []
            await mine.deploy(plan(name, data), progress=shown.append)
            assert sum(shown) == len(data)
            assert len(shown) == 4
            assert await mine.archive(mine.versions[name, 1]) == data

    run(work())


def test_an_archive_that_is_too_large_is_refused(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            with pytest.raises(PipelineError, match=r"\.penstockignore"):
                await mine.deploy(plan(name, bytes((64 << 20) + 1)))
            assert name not in mine.deployments

    run(work())


def test_changes_have_revisions_and_a_history(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            await mine.deploy(plan(name))
            made = await mine.change(name, stopped, "stopped", "for the night", by="bob")
            assert (made.revision, made.wanted, made.changed_by) == (2, "STOPPED", "bob")
            assert await mine.change(name, stopped, "stopped", "again") == made
            events = [event async for event in mine.history(name)]
            assert [(event.what, event.by) for event in events] == [
                ("deployed", "ann"),
                ("stopped", "bob"),
            ]
            assert [each async for each in mine.history(name, events[1].at_ms + 60_000)] == []

    run(work())


def test_a_change_needs_a_deployment_and_a_version(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            with pytest.raises(NoSuchDeployment, match="penstock pipeline list"):
                await mine.change(name, stopped, "stopped", "")
            with pytest.raises(NoSuchDeployment):
                await mine.delete(name)
            await mine.deploy(plan(name))
            with pytest.raises(PipelineError, match="no version 7"):
                await mine.change(name, lambda old: replace(old, version=7), "rolled-back", "")

    run(work())


def test_of_two_changes_at_the_same_time_one_wins(broker: Broker, name: str) -> None:
    """The second client takes over while the first is about to write."""

    async def work() -> None:
        async with catalog(broker) as mine, catalog(broker) as other:
            await mine.deploy(plan(name))
            late: list[asyncio.Task[Deployment]] = []
            reached = asyncio.Event()
            original = archive_store.write

            async def interrupted(*arguments: Any) -> int:
                late.append(
                    asyncio.create_task(other.change(name, stopped, "stopped", "by the other"))
                )
                await asyncio.wait(late)
                reached.set()
                return await original(*arguments)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(archive_store, "write", interrupted)
                with pytest.raises(ChangeConflict, match=f"penstock pipeline status {name}"):
                    await mine.deploy(plan(name, b"second"))
            assert reached.is_set()
            assert (await late[0]).revision == 2
            await mine.caught_up()
            assert mine.deployments[name].wanted == "STOPPED"
            assert (name, 2) not in mine.versions

    run(work())


def test_many_changes_at_the_same_time_never_mix(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine, catalog(broker) as other:
            await mine.deploy(plan(name))

            def add(old: Deployment) -> Deployment:
                return replace(old, restarts=old.restarts + 1)

            async def attempt(through: Catalog) -> int:
                try:
                    await through.change(name, add, "restarted", "")
                except ChangeConflict:
                    return 0
                return 1

            made = sum(
                await asyncio.gather(*(attempt(each) for each in (mine, other) for _ in range(5)))
            )
            assert made >= 1
            await mine.caught_up()
            assert mine.deployments[name].restarts == made
            assert mine.deployments[name].revision == 1 + made
            assert len([event async for event in mine.history(name)]) == 1 + made

    run(work())


def test_a_version_that_was_compared_with_another_one_is_refused(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            await mine.deploy(plan(name, expected_version=0))
            with pytest.raises(ChangeConflict):
                await mine.deploy(plan(name, expected_version=0))
            assert (await mine.deploy(plan(name, expected_version=1))).version == 2

    run(work())


def test_a_deploy_that_is_killed_after_the_upload_leaves_nothing_visible(
    broker: Broker, name: str
) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            uploaded = asyncio.Event()

            async def never(*_: Any) -> None:
                uploaded.set()
                await asyncio.Event().wait()

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Catalog, "_write_version", never)
                # A producer that does not say goodbye, as after SIGKILL.
                patch.setattr(aio.Producer, "__aexit__", _ends_without_closing)
                task = asyncio.create_task(mine.deploy(plan(name, b"lost")))
                await uploaded.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        async with catalog(broker) as other:
            assert name not in other.deployments
            assert other.versions_of(name) == []
            made = await other.deploy(plan(name, b"kept"))
            assert made.version == 1
            assert await other.archive(other.versions[name, 1]) == b"kept"
            assert len([event async for event in other.history(name)]) == 1

    run(work())


async def _ends_without_closing(self: Any, *_: object) -> None:
    await self.close(0)


async def write(broker: Broker, topic: str, key: bytes | None, value: bytes | None) -> None:
    async with aio.Producer(broker.bootstrap) as producer:
        await (await producer.send(topic, value, key=key, partition=0))


async def until_chunks_are(broker: Broker, version: Version, values: list[bytes | None]) -> None:
    """Waits until these are the last values of the chunks. A broker may write the markers of a
    transaction after it has acknowledged its end."""
    while await chunk_values(broker, version) != values:
        pass


async def chunk_values(broker: Broker, version: Version) -> list[bytes | None]:
    """Returns the last value of each chunk."""
    keys = archive_store.chunk_keys(version)
    found: dict[bytes | None, bytes | None] = {}
    async with aio.Consumer(broker.bootstrap, isolation_level="read_committed") as consumer:
        async for batch in consumer.read_batches(topics.FILES):
            for row in batch.to_pylist():
                found[row["key"]] = row["value"]
    return [found.get(key) for key in keys]


def test_a_damaged_chunk_is_noticed(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            await mine.deploy(plan(name, b"sound"))
            version = mine.versions[name, 1]
            # It begins after its own chunks, so only damaged ones are found there.
            (key,) = archive_store.chunk_keys(version)
            await write(broker, topics.FILES, key, b"wrong")
            assert await mine.archive(version) == b"sound"
            moved = replace(version, archive_offset=version.archive_offset + 1)
            with pytest.raises(ArchiveDamaged, match="deploy it again"):
                await mine.archive(moved)
            await mine.deploy(plan(name, b"sound"))
            assert await mine.archive(moved) == b"sound"

    run(work())


def test_garbage_in_the_topics_is_skipped(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            made = await mine.deploy(plan(name))
            other = f"{name}-2"
            mine_key = topics.deployment_key(name)
            for key, value in (
                (b"", b"x"),
                (b"\xff/\xfe", b"x"),
                (mine_key, b"no json"),
                (mine_key, encode(replace(made, name=other))),
                (mine_key, encode(replace(made, secrets=["../etc/passwd"]))),
                (mine_key, encode(replace(made, schedule=Schedule()))),
                (topics.version_key(name, 1), encode(replace(mine.versions[name, 1], number=2))),
                (
                    topics.version_key(name, 2),
                    encode(replace(mine.versions[name, 1], number=2, entry="../run.py")),
                ),
                (topics.version_key(name, 1) + b"x", None),
            ):
                await write(broker, topics.DEFINITIONS, key, value)
            await write(broker, topics.STATUS, topics.status_key(name), b"[]")
            await write(broker, topics.STATUS, topics.worker_key("w"), b"{}")
            await write(broker, topics.HISTORY, name.encode(), b"garbage")
            await write(broker, topics.LOGS, name.encode(), b"garbage")
            await mine.caught_up()
            assert mine.deployments[name] == made
            assert [version.number for version in mine.versions_of(name)] == [1]
            assert name not in mine.statuses
            assert "w" not in mine.workers
            assert [event.what async for event in mine.history(name)] == ["deployed"]
            assert [line async for line in mine.logs(name, follow=False)] == []

    run(work())


def test_old_versions_and_their_chunks_are_removed(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            await mine.deploy(plan(name, b"files 1"))
            first = mine.versions[name, 1]
            await mine.deploy(plan(name, b"shared"))
            shared = mine.versions[name, 2]
            for number in range(3, VERSIONS_KEPT + 3):
                content = b"shared" if number == 5 else f"files {number}".encode()
                await mine.deploy(plan(name, content))
            kept = [version.number for version in mine.versions_of(name)]
            assert kept == list(range(VERSIONS_KEPT + 2, 2, -1))
            await until_chunks_are(broker, first, [None])
            await until_chunks_are(broker, shared, [b"shared"])
            assert await mine.archive(mine.versions[name, 5]) == b"shared"

    run(work())


def test_the_last_version_that_worked_is_kept(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            await mine.deploy(plan(name, b"good"))
            await mine.report(Status(name, "RUNNING", 1, 1, good_version=1))
            for number in range(VERSIONS_KEPT + 1):
                await mine.deploy(plan(name, f"bad {number}".encode()))
            assert mine.versions_of(name)[-1].number == 1
            assert await mine.archive(mine.versions[name, 1]) == b"good"

    run(work())


def test_a_deleted_deployment_is_gone_with_its_files(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            await mine.deploy(plan(name))
            await mine.report(Status(name, "RUNNING", 1, 1, storage_id="disk"))
            version = mine.versions[name, 1]
            await mine.delete(name)
            assert name not in mine.deployments
            assert mine.versions_of(name) == []
            await until_chunks_are(broker, version, [None])
            again = await mine.deploy(plan(name))
            assert (again.revision, again.version) == (2, 2), "workers may have files of version 1"
            assert mine.statuses[name].storage_id == "disk"

    run(work())


def test_flows_begin_again_once(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            await mine.deploy(plan(name))
            made = await mine.deploy(plan(name, reset_flows=["a"]))
            assert (made.reset_flows, made.reset_revision) == (["a"], 2)
            made = await mine.change(name, stopped, "stopped", "")
            assert (made.reset_flows, made.reset_revision) == (["a"], 2), "no worker has done it"
            made = await mine.change(name, lambda old: old, "reset", "", reset=["b"])
            assert (made.reset_flows, made.reset_revision) == (["a", "b"], 4)
            await mine.report(Status(name, "STOPPED", 4, 2, reset_revision=4))
            made = await mine.deploy(plan(name))
            assert (made.reset_flows, made.reset_revision) == ([], 4)

    run(work())


def test_workers_report(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine:
            now_ms = mine._env.clock.wall_ms()
            # From an hour later: on a busy machine it would soon count as silent.
            worker = WorkerStatus(f"w-{name}", "box", "disk", now_ms, now_ms + 3_600_000, [name])
            old = replace(worker, id=f"old-{name}", updated_ms=now_ms - 3_600_000)
            await mine.report_worker(worker)
            await mine.report_worker(old)
            await mine.report(Status(name, "RUNNING", 3, 2, worker=worker.id))
            await mine.caught_up()
            assert mine.workers[worker.id] == worker
            assert worker in mine.live_workers()
            assert old not in mine.live_workers()
            assert mine.statuses[name].worker == worker.id
            await mine.forget_worker(worker.id)
            await mine.caught_up()
            assert worker.id not in mine.workers
            await mine.record(Event(name, now_ms, "moved", "to box", worker=worker.id))
            assert [event.what async for event in mine.history(name)] == ["moved"]

    run(work())


def test_lines_of_logs_are_followed(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with catalog(broker) as mine, catalog(broker) as other:
            await mine.log(name, 1, ["first", "x" * 100_000, *map(str, range(1000))])
            await mine.log(f"{name}-2", 1, ["of another"])
            lines = [line async for line in mine.logs(name, follow=False)]
            assert lines[0].text == "first"
            assert len(lines[1].text) < 100_000
            assert [line.text for line in lines[2:]] == [str(each) for each in range(1000)]
            seen: list[str] = []
            async for line in other.logs(name, follow=True, since_ms=lines[0].at_ms):
                seen.append(line.text)
                if len(seen) == len(lines):
                    await mine.log(name, 2, ["last"])
                if line.text == "last":
                    assert line.version == 2
                    break
            assert len(seen) == len(lines) + 1

    run(work())


def test_a_reader_creates_no_topics() -> None:
    async def work(broker: Broker) -> None:
        async with Catalog(broker.bootstrap, create=False) as reader:
            await reader.caught_up()
            assert reader.is_empty_cluster
            assert dict(reader.deployments) == {}
        async with aio.Admin(broker.bootstrap) as admin:
            names = [topic.name for topic in await admin.list_topics(internal=True)]
            assert not [each for each in names if each in topics.SETTINGS]

    with Broker() as fresh:
        run(work(fresh))
