"""The catalog of deployed pipelines: reads and changes what `topics` describes.

A change is a transaction with the transactional id of its deployment. The order makes it safe:

    1. Initialise the transactional id. This aborts a change of the same deployment that is in
       progress, and fences the client that makes it.
    2. Read DEFINITIONS to its high watermark, with read_committed. No change of this deployment
       can be committed any more without fencing this client.
    3. Decide, write everything in one transaction (the chunks of an archive too), and commit.

So two changes never mix, and a client that is killed half-way leaves nothing that is visible.
"""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Final, Self, TypeVar, Unpack

from penstock.client.admin.admin import Admin
from penstock.client.admin.operations import NewTopic
from penstock.client.consumer import Consumer
from penstock.client.environment import ClientEnv, default_environment
from penstock.client.errors import BrokerError, ClientError
from penstock.client.option_keywords import ClientKeywords
from penstock.client.options import AdminOptions
from penstock.client.producing.producer import Producer
from penstock.spark.deployments import archive_store, change_plan, topics
from penstock.spark.deployments.archive_store import RawConsumer, RawProducer
from penstock.spark.deployments.catalog_errors import (
    LOOKING,
    ChangeConflict,
    NoSuchDeployment,
    changing,
    is_conflict,
    is_missing,
    is_refusal,
    refusal,
    rights_named,
)
from penstock.spark.deployments.catalog_reader import FOLLOWED, Follower, read_records
from penstock.spark.deployments.catalog_view import (
    ARCHIVE_BYTES_MAX,
    CatalogView,
    WorkerState,
    actual_state,
    is_sound_deployment,
    is_sound_version,
)
from penstock.spark.deployments.change_plan import Change, NewVersion
from penstock.spark.deployments.model import (
    Deployment,
    Event,
    LogChunk,
    LogLine,
    State,
    Status,
    Version,
    WorkerStatus,
    decode,
    encode,
)
from penstock.spark.deployments.status_size import fitting
from penstock.spark.pipelines.errors import PipelineError
from penstock.wire.errors import ErrorCode

T = TypeVar("T")
LINE_CHARACTERS_MAX: Final = 16 << 10
_LINES_PER_RECORD: Final = 200
_LINES_CHARACTERS: Final = 256 << 10
_REPLICAS: Final = 3
_CHANGE_TIMEOUT_MS: Final = 30_000
_REQUEST_TIMEOUT_MS: Final = 20_000
_CLOSE_S: Final = 3.0
_UPLOAD_BYTES_PER_S: Final = 256 << 10
"""The slowest upload that is waited for. It sets the timeout of the transaction."""


class Catalog:
    """The deployed pipelines of a cluster. Belongs to one event loop.

    With `create` the topics are created if they are missing. Otherwise a cluster without them has
    no deployments, and `is_empty_cluster` is true.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        env: ClientEnv | None = None,
        create: bool = True,
        user: str = "",
        **client_options: Unpack[ClientKeywords],
    ) -> None:
        self._bootstrap = bootstrap
        self._env = env or default_environment()
        self._options: dict[str, Any] = {**client_options}
        self._create = create
        self.user = user or _user(AdminOptions.parse(bootstrap, self._options).sasl_username)
        self._view = CatalogView()
        self.deployments: Mapping[str, Deployment] = self._view.deployments
        self.versions: Mapping[tuple[str, int], Version] = self._view.versions
        self.statuses: Mapping[str, Status] = self._view.statuses
        self.workers: Mapping[str, WorkerStatus] = self._view.workers
        self._admin = Admin(bootstrap, env=self._env, **self._options)
        self._follower = Follower(self._consumer("read_committed"), self._view, self._env.clock)
        self._producer: RawProducer | None = None
        self._starting_producer = asyncio.Lock()
        self.is_empty_cluster = False

    # -- starting and closing -------------------------------------------------------------------

    async def start(self) -> None:
        """Creates the topics if they are missing, and begins to follow them. Does not wait until
        they are read: see `caught_up`."""
        async with AsyncExitStack() as stack:
            await self._admin.start()
            stack.push_async_callback(self._admin.close)
            with rights_named("view deployed pipelines", LOOKING):
                await self._prepare_topics()
                if not self.is_empty_cluster:
                    await self._follower.start()
            stack.pop_all()

    async def close(self) -> None:
        try:
            await self._follower.close()
            if self._producer is not None:
                # Statuses and log lines that brokers do not accept now are not waited for.
                await self._producer.close(_CLOSE_S)
        finally:
            await self._admin.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _prepare_topics(self) -> None:
        found = await self._admin.describe_topics(list(topics.SETTINGS))
        for name in (topics.DEFINITIONS, topics.STATUS):
            error = found[name]
            if isinstance(error, BrokerError) and not is_missing(error):
                raise error
        missing = [name for name, topic in found.items() if is_missing(topic)]
        if not self._create:
            self.is_empty_cluster = topics.DEFINITIONS in missing or topics.STATUS in missing
            return
        if not missing:
            return
        replicas = min(_REPLICAS, len((await self._admin.describe_cluster()).brokers))
        safe = {"min.insync.replicas": "2"} if replicas == _REPLICAS else {}
        needed = [
            NewTopic(name, 1, replicas, {**topics.SETTINGS[name], **safe}) for name in missing
        ]
        for name, made in (await self._admin.create_topics(needed)).items():
            if is_refusal(made):
                raise refusal(
                    "create the topics of deployed pipelines", f"Create on the topic {name}", None
                )
            if isinstance(made, BrokerError) and made.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise made

    # -- reading --------------------------------------------------------------------------------

    async def caught_up(self) -> None:
        """Waits until everything that is in the topics now is read."""
        if self.is_empty_cluster:
            return
        with rights_named("view deployed pipelines", LOOKING):
            found = await self._admin.list_offsets(dict.fromkeys(FOLLOWED, "latest"))
        ends = {partition: 0 if at is None else at.offset for partition, at in found.items()}
        await self._follower.reach(ends)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls the function on the event loop after records were read."""
        self._follower.add_callback(callback)

    def deployment(self, name: str) -> Deployment:
        """Returns a deployment, or raises `NoSuchDeployment`."""
        found = self._view.deployments.get(name)
        if found is None:
            raise NoSuchDeployment(name)
        return found

    def versions_of(self, name: str) -> list[Version]:
        """Returns the versions of a deployment, the newest first."""
        return self._view.versions_of(name)

    def forget_details_of_deleted(self) -> None:
        """Keeps no more of the statuses of deployments that are gone than a new one needs."""
        self._view.forget_details_of_deleted()

    def live_workers(self) -> list[WorkerStatus]:
        """Returns the workers that have reported recently."""
        return self._view.live_workers(self._env.clock.wall_ms())

    def shown_workers(self) -> list[tuple[WorkerStatus, WorkerState]]:
        """Returns the workers to list: those that report, and those that have not been gone for
        long."""
        return self._view.shown_workers(self._env.clock.wall_ms())

    def gone_workers(self) -> list[WorkerStatus]:
        """Returns the workers whose statuses are to be removed."""
        return self._view.gone_workers(self._env.clock.wall_ms())

    def state(self, name: str) -> State:
        """Returns the state of a deployment. A worker that is gone runs nothing."""
        status = self._view.statuses.get(name)
        worker = None if status is None else self._view.workers.get(status.worker)
        return actual_state(self.deployment(name), status, worker, self._env.clock.wall_ms())

    async def archive(self, version: Version) -> bytes:
        """Returns the archive of a version. Raises `ArchiveDamaged` if it is not as deployed."""
        with rights_named("read the files of pipelines", f"Read on the topic {topics.FILES}"):
            return await archive_store.read(lambda: self._consumer("read_uncommitted"), version)

    async def history(self, name: str, since_ms: int = 0) -> AsyncGenerator[Event, None]:
        """Yields the events of a deployment, the oldest first."""
        records = read_records(self._consumer("read_committed"), topics.HISTORY, since_ms=since_ms)
        with rights_named("read the history of pipelines", f"Read on the topic {topics.HISTORY}"):
            async with aclosing(records):
                async for record in records:
                    if record.key != name.encode():
                        continue
                    event = decode(Event, record.value)
                    if event is not None and event.name == name and event.at_ms >= since_ms:
                        yield event

    async def logs(
        self, name: str, *, follow: bool, since_ms: int = 0
    ) -> AsyncGenerator[LogLine, None]:
        """Yields the lines that the drivers of a deployment printed; with `follow` without end."""
        records = read_records(
            self._consumer("read_uncommitted"), topics.LOGS, since_ms=since_ms, follow=follow
        )
        with rights_named("read the logs of pipelines", f"Read on the topic {topics.LOGS}"):
            async with aclosing(records):
                async for record in records:
                    chunk = decode(LogChunk, record.value) if record.key == name.encode() else None
                    if chunk is None or chunk.name != name or chunk.at_ms < since_ms:
                        continue
                    for text in chunk.lines:
                        yield LogLine(name, chunk.version, chunk.at_ms, text)

    # -- changes --------------------------------------------------------------------------------

    async def deploy(
        self, plan: NewVersion, *, progress: Callable[[int], None] = lambda _: None
    ) -> Deployment:
        """Uploads a version and makes it the one that runs. `progress` is called with the numbers
        of uploaded bytes. Raises `ChangeConflict` if someone else changes the deployment."""
        size = len(plan.archive)
        if not 0 < size <= ARCHIVE_BYTES_MAX:
            raise PipelineError(
                f"the archive has {size:,} bytes, and at most {ARCHIVE_BYTES_MAX:,} are allowed: "
                "list large files in .penstockignore"
            )
        archive = await archive_store.digest(plan.archive)
        timeout_ms = _CHANGE_TIMEOUT_MS + 1000 * size // _UPLOAD_BYTES_PER_S

        async def work(producer: RawProducer) -> Deployment:
            now = Change(self.user, self._env.clock.wall_ms())
            old = self._view.deployments.get(plan.name)
            running = 0 if old is None else old.version
            if plan.expected_version is not None and plan.expected_version != running:
                raise ChangeConflict(plan.name)
            version = change_plan.next_version(self._view, plan, archive, now)
            new = change_plan.planned(self._view, plan, version.number, now)
            if not (is_sound_version(version) and is_sound_deployment(new)):
                raise PipelineError(
                    f"{plan.name} cannot be deployed: its name, entry, schedule, memory or the "
                    "names of its secrets are not valid"
                )
            async with producer.transaction():
                offset = await archive_store.write(producer, version, plan.archive, progress)
                version = replace(version, archive_offset=offset)
                await self._write_version(producer, version, new)
                what, text = change_plan.deployed_text(plan, version.number)
                event = Event(plan.name, now.at_ms, what, text, version.number, by=now.user)
                await self._write(producer, topics.HISTORY, plan.name.encode(), encode(event))
            return new

        return await self._changed(plan.name, work, timeout_ms)

    async def change(
        self,
        name: str,
        change: Callable[[Deployment], Deployment],
        what: str,
        text: str,
        *,
        reset: Sequence[str] = (),
        keep: Sequence[str] = (),
        by: str | None = None,
    ) -> Deployment:
        """Changes a deployment and adds the event `what` to its history. Returns the new one.

        Revision, time and user of the change are set here. If `change` returns its argument,
        nothing is written. `reset` are flows that begin again without their checkpoints, and `keep`
        those that keep them, even if they were to begin again.
        """
        user = self.user if by is None else by

        async def work(producer: RawProducer) -> Deployment:
            old = self.deployment(name)
            wanted = change(old)
            if wanted == old and not reset:
                return old
            now_ms = self._env.clock.wall_ms()
            status = self._view.statuses.get(name)
            made = Change(user, now_ms)
            new = change_plan.revised(old, wanted, status, reset, made, keep=keep)
            if (name, new.version) not in self._view.versions:
                raise PipelineError(
                    f"{name} has no version {new.version}: see penstock pipeline versions {name}"
                )
            told = text + change_plan.given_up_text(old, new, status)
            event = Event(name, now_ms, what, told, new.version, by=user)
            async with producer.transaction():
                await self._write(
                    producer, topics.DEFINITIONS, topics.deployment_key(name), encode(new)
                )
                await self._write(producer, topics.HISTORY, name.encode(), encode(event))
            return new

        return await self._changed(name, work, _CHANGE_TIMEOUT_MS)

    async def delete(self, name: str) -> None:
        """Deletes a deployment with its versions and their files. Its tables, checkpoints, last
        status and history are kept."""

        async def work(producer: RawProducer) -> None:
            old = self.deployment(name)
            now_ms = self._env.clock.wall_ms()
            event = Event(name, now_ms, "deleted", "", old.version, by=self.user)
            async with producer.transaction():
                for version in self._view.versions_of(name):
                    await self._remove(producer, version, True)
                await self._write(producer, topics.DEFINITIONS, topics.deployment_key(name), None)
                await self._write(producer, topics.HISTORY, name.encode(), encode(event))

        await self._changed(name, work, _CHANGE_TIMEOUT_MS)

    async def _write_version(
        self, producer: RawProducer, version: Version, deployment: Deployment
    ) -> None:
        """Writes the deployment and its version, and removes versions that are too old."""
        key = topics.version_key(version.name, version.number)
        await self._write(producer, topics.DEFINITIONS, key, encode(version))
        key = topics.deployment_key(version.name)
        await self._write(producer, topics.DEFINITIONS, key, encode(deployment))
        for removal in change_plan.removals(self._view, version):
            await self._remove(producer, *removal)

    async def _remove(self, producer: RawProducer, version: Version, with_chunks: bool) -> None:
        key = topics.version_key(version.name, version.number)
        await self._write(producer, topics.DEFINITIONS, key, None)
        if with_chunks:
            for chunk in archive_store.chunk_keys(version):
                await self._write(producer, topics.FILES, chunk, None)

    async def _changed(
        self, name: str, work: Callable[[RawProducer], Awaitable[T]], timeout_ms: int
    ) -> T:
        """Runs a change in the order that the module describes."""
        with rights_named(f"change {name}", changing(name)):
            try:
                async with self._transactional(name, timeout_ms) as producer:
                    await self.caught_up()
                    result = await work(producer)
            except ClientError as error:
                if is_conflict(error):
                    raise ChangeConflict(name) from error
                raise
        await self.caught_up()
        return result

    @asynccontextmanager
    async def _transactional(self, name: str, timeout_ms: int) -> AsyncIterator[RawProducer]:
        producer: RawProducer = Producer(
            self._bootstrap,
            env=self._env,
            **{**self._options, "request_timeout_ms": _REQUEST_TIMEOUT_MS},
            transactional_id=topics.change_id(name),
            transaction_timeout_ms=timeout_ms,
            delivery_timeout_ms=timeout_ms,
            acks="all",
        )
        async with producer:
            yield producer

    # -- what workers write ---------------------------------------------------------------------

    async def report(self, status: Status) -> None:
        """Writes the status of a deployment, or as much of it as a record may have."""
        key = topics.status_key(status.name)
        await self._write_plainly(topics.STATUS, key, fitting(status))

    async def report_worker(self, status: WorkerStatus) -> None:
        """Writes the status of a worker."""
        await self._write_plainly(topics.STATUS, topics.worker_key(status.id), encode(status))

    async def forget_worker(self, worker: str) -> None:
        """Removes the status of a worker that has ended."""
        await self._write_plainly(topics.STATUS, topics.worker_key(worker), None)

    async def record(self, event: Event) -> None:
        """Adds an event to the history of its deployment."""
        await self._write_plainly(topics.HISTORY, event.name.encode(), encode(event))

    async def log(self, name: str, version: int, lines: Sequence[str]) -> None:
        """Writes lines that a driver printed. Very long lines are cut."""
        at_ms = self._env.clock.wall_ms()
        for part in _parts(lines):
            chunk = LogChunk(name, version, at_ms, part)
            await self._write_plainly(topics.LOGS, name.encode(), encode(chunk))

    async def _write_plainly(self, topic: str, key: bytes, value: bytes | None) -> None:
        with rights_named("run pipelines", f"Write on the topic {topic}"):
            async with self._starting_producer:
                if self._producer is None:
                    producer: RawProducer = Producer(
                        self._bootstrap, env=self._env, **self._options, acks="all"
                    )
                    await producer.start()
                    self._producer = producer
            delivery = await self._producer.send(topic, value, key=key, partition=0)
            await delivery

    @staticmethod
    async def _write(producer: RawProducer, topic: str, key: bytes, value: bytes | None) -> None:
        """Adds a record to the open transaction. Its commit waits for the delivery."""
        await producer.send(topic, value, key=key, partition=0)

    def _consumer(self, isolation_level: Any) -> RawConsumer:
        return Consumer(
            self._bootstrap,
            env=self._env,
            **self._options,
            isolation_level=isolation_level,
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
        )


def _parts(lines: Sequence[str]) -> list[list[str]]:
    """Divides lines into records of a reasonable size."""
    parts: list[list[str]] = [[]]
    size = 0
    for line in lines:
        cut = line[:LINE_CHARACTERS_MAX]
        if len(parts[-1]) >= _LINES_PER_RECORD or size + len(cut) > _LINES_CHARACTERS:
            parts.append([])
            size = 0
        parts[-1].append(cut)
        size += len(cut)
    return [part for part in parts if part]


def _user(login: str | None) -> str:
    """Returns who is named in the history: the user of the login, or of the system."""
    if login:
        return login
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
