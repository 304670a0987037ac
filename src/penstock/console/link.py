"""The console's connection to the cluster, and the only place where changes are allowed or refused.

Code that only reads gets a `Reading`, a type without any method that changes something. Code that
changes something must pass a description of the change to this module. A read-only console refuses
the change; otherwise the description goes to the audit log (`penstock.console.audit`). There is no
other way to get an `Admin`, so no route can skip this check.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from penstock.client.admin.access import Entity, ScramUser
from penstock.client.admin.admin import Admin
from penstock.client.admin.arguments import When
from penstock.client.admin.cordons import find_cordoned
from penstock.client.admin.groups import GroupInfo, GroupListing
from penstock.client.admin.inspection import LogDirInfo
from penstock.client.admin.offsets import FoundOffset
from penstock.client.admin.operations import ClusterInfo, ConfigEntry, TopicInfo
from penstock.client.admin.reassignment import Reassignment
from penstock.client.admin.roles import AccessAnswer, RoleListing
from penstock.client.cluster import Cluster
from penstock.client.consumer import Consumer
from penstock.client.environment import ClientEnv
from penstock.client.errors import BrokerError, ClientError, ConnectFailed
from penstock.client.model import OffsetAndMetadata
from penstock.client.producing.producer import Producer
from penstock.client.queues.dead_letters import DeadLetters, dead_letter_topic, dead_letters
from penstock.client.queues.queue_stats import GroupQueues, QueueStats, group_queues, queue_stats
from penstock.client.redrive import Redrive, Redriven
from penstock.console.config import ConsoleConfig
from penstock.console.errors import NotReached, ReadOnly
from penstock.security.acl_filters import AclFilter
from penstock.security.acls import AclBinding, AclOperation, ResourcePattern
from penstock.security.quotas import QuotaEntity
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.topics import PREVIEWS
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)

CLIENT_ID: Final = "penstock-console"
_CONNECT_MS: Final = 2_000
_ACTION_MS: Final = 20_000
_LOOK_MS: Final = 3_000
_PROBE_S: Final = 1.5
_REQUEST_BYTES_MAX: Final = 8 << 20
_FETCH_AHEAD_BYTES: Final = 16 << 20

_audit = logging.getLogger("penstock.console.audit")


class Reading(Protocol):
    """The methods of `Admin` that change nothing."""

    async def describe_cluster(self) -> ClusterInfo: ...
    async def describe_acls(self, wanted: AclFilter = ...) -> list[AclBinding]: ...
    async def describe_scram_users(
        self, users: Sequence[str] | None = None
    ) -> dict[str, ScramUser | BrokerError]: ...
    async def describe_client_quotas(
        self, wanted: Entity = ..., *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]: ...
    async def describe_roles(self, principal: str | None = None) -> RoleListing: ...
    async def check_access(
        self, principal: str, operation: AclOperation, resource: ResourcePattern, host: str = "*"
    ) -> AccessAnswer: ...
    async def list_topics(self, *, internal: bool = False) -> list[TopicInfo]: ...
    async def describe_topic(self, name: str) -> TopicInfo: ...
    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo | BrokerError]: ...
    async def describe_configs(
        self, *, topic: str | None = None, broker: int | None = None
    ) -> dict[str, ConfigEntry]: ...
    async def describe_log_dirs(self, brokers: Sequence[int] | None = None) -> list[LogDirInfo]: ...
    async def list_partition_reassignments(
        self, topic_partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]: ...
    async def list_groups(self) -> list[GroupListing]: ...
    async def describe_group(self, group: str) -> GroupInfo: ...
    async def describe_groups(self, names: Sequence[str]) -> dict[str, GroupInfo | BrokerError]: ...
    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]: ...
    async def list_offsets(
        self, times: Mapping[TopicPartition, When]
    ) -> dict[TopicPartition, FoundOffset | None]: ...


class Link:
    """Connects when it is first needed, since a console may be started before its cluster.

    `security` has the options of connections. If users sign in, there is a link for each of them,
    with the user's own login, so the brokers decide what the user may do.
    """

    def __init__(
        self,
        config: ConsoleConfig,
        env: ClientEnv,
        security: Mapping[str, Any],
        user: str | None = None,
    ) -> None:
        self.config = config
        self.env = env
        self.user = user
        self._security = security
        self._acting = self._admin(_ACTION_MS)
        self._looking = self._admin(_LOOK_MS)
        self._prober: Cluster | None = None
        self._opening = asyncio.Lock()

    def _admin(self, timeout_ms: int) -> Admin:
        return Admin(
            self.config.bootstrap,
            **self._security,
            env=self.env,
            client_id=CLIENT_ID,
            request_timeout_ms=timeout_ms,
            default_api_timeout_ms=timeout_ms,
            socket_connection_setup_timeout_ms=_CONNECT_MS,
        )

    async def close(self) -> None:
        await self._acting.close()
        await self._looking.close()
        if self._prober is not None:
            self._prober.close()

    async def reading(self) -> Reading:
        """Returns the client for reads that a user waits for."""
        return await self._started(self._acting)

    async def watching(self) -> Reading:
        """Returns the client for background polling, which has a shorter timeout."""
        return await self._started(self._looking)

    async def changing(self, what: str) -> Admin:
        """Returns the client for a change. `what` describes the change for the audit log."""
        self.allow(what)
        return await self._started(self._acting)

    def allow(self, what: str) -> None:
        self.check_writable(what)
        _audit.info("%s%s", self._who(), what)

    def check_writable(self, what: str) -> None:
        """Raises `ReadOnly` if the console is read-only. A change that takes long to prepare calls
        this first, and `allow` when it is ready."""
        if self.config.read_only:
            _audit.info("%srefused, the console is read-only: %s", self._who(), what)
            raise ReadOnly

    def _who(self) -> str:
        return "" if self.user is None else f"{self.user}: "

    async def _started(self, admin: Admin) -> Admin:
        async with self._opening:
            await admin.start()
        return admin

    async def answer_ms(self, broker: int) -> float | None:
        """Returns how long this broker takes to answer; None if it takes longer than `_PROBE_S`."""
        try:
            async with asyncio.timeout(_PROBE_S):
                cluster = await self._probing()
                if broker not in cluster.brokers:
                    await cluster.metadata([])
                connection = await cluster.connection(broker)
                began = self.env.clock.monotonic()
                await connection.call(ApiVersionsRequest(), ApiVersionsResponse)
        except (ClientError, TimeoutError):
            return None
        return (self.env.clock.monotonic() - began) * 1000

    async def cordoned(self, brokers: Iterable[int]) -> frozenset[int]:
        """Returns those of the brokers that get no new partitions."""
        return await find_cordoned(await self._started(self._looking), brokers)

    async def _probing(self) -> Cluster:
        async with self._opening:
            if self._prober is None:
                env = self.env
                config = self._looking.options.cluster_config()
                cluster = Cluster(config, env.network, env.clock, env.random)
                self._prober = await cluster.__aenter__()
        return self._prober

    async def group_queues(self, group: str) -> GroupQueues:
        return await group_queues(await self._probing(), group)

    async def queue_stats(self, topic: str, group: str) -> QueueStats:
        return await queue_stats(await self._probing(), topic, group)

    async def dead_letter_topic(self, group: str) -> str:
        """Returns the dead-letter topic of a share group; empty if it has none."""
        return await dead_letter_topic(await self._probing(), group)

    async def dead_letters(self, topic: str) -> DeadLetters:
        return await dead_letters(await self._probing(), topic)

    async def preview_redrive(
        self, topic: str, *, to: str, error: str, limit: int | None
    ) -> Redriven:
        """Returns what a redrive would do. It writes nothing."""
        return await self._redrive(topic, to=to, error=error, limit=limit).preview()

    def redrive(self, what: str, topic: str, *, to: str, error: str, limit: int | None) -> Redrive:
        self.allow(what)
        return self._redrive(topic, to=to, error=error, limit=limit)

    def _redrive(self, topic: str, *, to: str, error: str, limit: int | None) -> Redrive:
        return Redrive(
            self.config.bootstrap,
            topic,
            to=to,
            error=error,
            limit=limit,
            env=self.env,
            **self._security,
            client_id=CLIENT_ID,
            socket_connection_setup_timeout_ms=_CONNECT_MS,
        )

    def consumer(self, *, committed_only: bool = False) -> Consumer[bytes | None, bytes | None]:
        """Returns a consumer without a group, so that reading records commits no offsets."""
        return Consumer(
            self.config.bootstrap,
            **self._security,
            env=self.env,
            client_id=CLIENT_ID,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
            fetch_max_wait_ms=200,
            queued_bytes_max=_FETCH_AHEAD_BYTES,
            isolation_level="read_committed" if committed_only else "read_uncommitted",
            request_timeout_ms=_ACTION_MS,
            default_api_timeout_ms=_ACTION_MS,
            socket_connection_setup_timeout_ms=_CONNECT_MS,
        )

    def catalog(self, what: str, *, create: bool = False) -> Catalog:
        """Returns the catalog of deployed pipelines for a change. With `create`, its topics are
        created if they are missing."""
        self.allow(what)
        return Catalog(
            self.config.bootstrap,
            **self._security,
            env=self.env,
            create=create,
            user=self.user or "",
            client_id=CLIENT_ID,
            socket_connection_setup_timeout_ms=_CONNECT_MS,
        )

    async def readable(self, names: Iterable[str]) -> frozenset[str]:
        """Returns those of the topics whose records the user may read, as the brokers say. Raises
        `NotReached` if they do not answer in time."""
        request = MetadataRequest(
            [MetadataRequest.Topic(name=name) for name in names],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        try:
            async with asyncio.timeout(_LOOK_MS / 1000):
                cluster = await self._probing()
                if not cluster.brokers:
                    await cluster.metadata([])
                connection = await cluster.connection(min(cluster.brokers))
                answer = await connection.call(request, MetadataResponse)
        except TimeoutError:
            raise NotReached(
                "the broker did not answer in time, so it is not known what you may read: try again"
            ) from None
        return frozenset(
            topic.name
            for topic in answer.topics
            if topic.name
            and not topic.error_code
            and topic.topic_authorized_operations & (1 << AclOperation.READ)
        )

    async def ask_preview(self, key: bytes, value: bytes) -> None:
        """Writes a request for rows of a table. It changes nothing, so a read-only console may."""
        async with self._producer() as producer:
            await (await producer.send(PREVIEWS, value, key=key, partition=0))

    def producer(self, what: str) -> Producer[bytes | None, bytes | None]:
        self.allow(what)
        return self._producer()

    def _producer(self) -> Producer[bytes | None, bytes | None]:
        return Producer(
            self.config.bootstrap,
            **self._security,
            env=self.env,
            client_id=CLIENT_ID,
            allow_auto_create_topics=False,
            max_request_size=_REQUEST_BYTES_MAX,
            request_timeout_ms=_ACTION_MS,
            delivery_timeout_ms=_ACTION_MS * 2,
            max_block_ms=_ACTION_MS,
            socket_connection_setup_timeout_ms=_CONNECT_MS,
        )


def is_unreachable(error: ClientError) -> bool:
    return isinstance(error, ConnectFailed) or isinstance(
        getattr(error, "last", None), ConnectFailed
    )
