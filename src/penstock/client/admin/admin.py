"""The async `Admin` client. Methods that concern several things return an outcome for each."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

from penstock.client.admin import (
    access,
    delegation_tokens,
    groups,
    inspection,
    offsets,
    operations,
    reassignment,
    roles,
    share_group_methods,
    transactions,
)
from penstock.client.admin.access import Entity, ScramUser
from penstock.client.admin.arguments import When, raise_outcome, resource_of, time_ms, within
from penstock.client.admin.groups import GroupInfo, GroupListing
from penstock.client.admin.inspection import LogDirInfo, ProducerInfo
from penstock.client.admin.offsets import FoundOffset
from penstock.client.admin.operations import (
    BROKER_DEFAULT,
    ClusterInfo,
    ConfigEntry,
    CreatedTopic,
    NewTopic,
    TopicInfo,
)
from penstock.client.admin.reassignment import Reassignment
from penstock.client.admin.roles import AccessAnswer, RoleListing
from penstock.client.admin.transactions import HangingSearch, TransactionInfo, TransactionListing
from penstock.client.cluster import Cluster
from penstock.client.environment import ClientEnv, default_environment
from penstock.client.errors import BrokerError, Closed
from penstock.client.model import OffsetAndMetadata
from penstock.client.option_help import with_help
from penstock.client.option_keywords import AdminKeywords
from penstock.client.options import AdminOptions
from penstock.client.profiles import FromProfile
from penstock.security.acl_filters import AclFilter
from penstock.security.acls import AclBinding, AclOperation, ResourcePattern
from penstock.security.quotas import Limits, QuotaEntity
from penstock.security.role_edits import RoleEdit
from penstock.topic_partition import TopicPartition

T = TypeVar("T")


@with_help(AdminOptions)
class Admin:
    """Manages the topics, configs, groups and offsets of a cluster, on the running event loop.

    `bootstrap_servers` is "host:port", or a list of them. `env` is for tests without a network. The
    other keywords are options: see `help(aio.Admin)` or docs/CLIENTS.md.

    Methods that concern one thing raise an error when they fail: `BrokerError`, or `TopicNotFound`
    where there is a topic. Methods that concern several things return an outcome for each. A call
    that takes longer than `default_api_timeout_ms` (one minute) raises `DeadlineExceeded`.

    Example:
        async with aio.Admin("localhost:9092") as admin:
            await admin.create_topic("refunds", partitions=6)
            print([(topic.name, len(topic.partitions)) for topic in await admin.list_topics()])
        #> [('refunds', 6)]
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        *,
        env: ClientEnv | None = None,
        **options: Unpack[AdminKeywords],
    ) -> None:
        self.options = AdminOptions.parse(bootstrap_servers, options)
        self.env = env or default_environment()
        self._cluster: Cluster | None = None

    from_profile = FromProfile()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connects to the cluster. Raises `ConnectFailed` at once if no broker can be reached."""
        if self._cluster is None:
            env = self.env
            config = self.options.cluster_config()
            cluster = Cluster(config, env.network, env.clock, env.random, env.executor)
            self._cluster = await cluster.__aenter__()

    async def close(self) -> None:
        """Closes the connections."""
        if self._cluster is not None:
            self._cluster.close()
            await self._cluster.closed()
            self._cluster = None

    # -- topics ---------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Creates a topic. The broker's defaults apply to what is not given.

        With `validate_only` the broker only checks whether it could create the topic. Raises
        `BrokerError` with the code TOPIC_ALREADY_EXISTS if there is one.

        Example:
            topic = await admin.create_topic("refunds", 3, configs={"retention.ms": "86400000"})
            print(topic.name, topic.partitions)
            #> refunds 3
        """
        topic = NewTopic(name, partitions, replication_factor, configs or {})
        work = operations.create_topic(self._open, topic, validate_only=validate_only)
        return await self._do("create_topic", work)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | BrokerError]:
        """Creates several topics. Returns what was created, or the error, for each name."""
        work = operations.create_topics(self._open, topics, validate_only=validate_only)
        return await self._do("create_topics", work)

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic with all its records. Raises `TopicNotFound` if there is none."""
        raise_outcome((await self.delete_topics([name]))[name])

    async def delete_topics(self, names: Sequence[str]) -> dict[str, BrokerError | None]:
        """Deletes several topics and returns the outcome of each: None if the topic was deleted."""
        return await self._do("delete_topics", operations.delete_topics(self._open, names))

    async def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """Returns all topics sorted by name; internal topics only with `internal`."""
        found = await self._do("list_topics", operations.list_topics(self._open))
        return [topic for topic in found if internal or not topic.internal]

    async def describe_topic(self, name: str) -> TopicInfo:
        """Returns a topic's partitions, leaders and replicas. Raises `TopicNotFound` if there is
        none.
        """
        found = (await self.describe_topics([name]))[name]
        if isinstance(found, BrokerError):
            raise found
        return found

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo | BrokerError]:
        """Returns the partitions of several topics, or an error for each topic that cannot be
        described."""
        return await self._do("describe_topics", operations.describe_topics(self._open, names))

    async def create_partitions(self, topic: str, total: int) -> None:
        """Increases the topic to `total` partitions. The number can never be reduced.

        Raises `TopicNotFound`, or `BrokerError` if the topic has as many partitions already.
        """
        await self._do("create_partitions", operations.create_partitions(self._open, topic, total))

    # -- configs and the cluster ----------------------------------------------------------------

    async def describe_configs(
        self, *, topic: str | None = None, broker: int | None = None, group: str | None = None
    ) -> dict[str, ConfigEntry]:
        """Returns every config of one topic, broker or group by name, including defaults.

        Raises `OptionError` unless exactly one of them is given.
        """
        kind, name = resource_of(topic, broker, group)
        found = await self._do(
            "describe_configs", operations.describe_configs(self._open, kind, name)
        )
        return {entry.name: entry for entry in found}

    async def alter_configs(
        self,
        *,
        topic: str | None = None,
        broker: int | None = None,
        group: str | None = None,
        set_values: Mapping[str, str] | None = None,
        delete: Sequence[str] = (),
    ) -> None:
        """Sets some configs of one topic, broker or group, and resets those in `delete`.

        All other configs keep their values. Raises `OptionError` unless exactly one of `topic`,
        `broker` and `group` is given, and `BrokerError` for a config that does not exist.

        Example:
            await admin.alter_configs(topic="orders", set_values={"retention.ms": "86400000"})
            configs = await admin.describe_configs(topic="orders")
            print(configs["retention.ms"].value)
            #> 86400000
        """
        kind, name = resource_of(topic, broker, group)
        work = operations.alter_configs(
            self._open, kind, name, set_values=set_values, delete=delete
        )
        await self._do("alter_configs", work)

    async def describe_cluster(self) -> ClusterInfo:
        """Returns the cluster's id, its controller and its brokers."""
        return await self._do("describe_cluster", operations.describe_cluster(self._open))

    async def describe_log_dirs(self, brokers: Sequence[int] | None = None) -> list[LogDirInfo]:
        """Describes the log directories of these brokers, or of all brokers."""
        work = inspection.describe_log_dirs(self._open, brokers)
        return await self._do("describe_log_dirs", work)

    # -- leaders and replicas -------------------------------------------------------------------

    async def elect_leaders(
        self, topic_partitions: Sequence[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, BrokerError | None]:
        """Elects the preferred replica as leader of these partitions, or of all partitions.

        With `unclean`, partitions without a leader get any live replica as their leader; records
        that only other replicas have are lost. When all partitions were requested, the result omits
        those that needed no election.
        """
        work = reassignment.elect_leaders(self._open, topic_partitions, unclean=unclean)
        return await self._do("elect_leaders", work)

    async def alter_partition_reassignments(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> dict[TopicPartition, BrokerError | None]:
        """Starts to move partitions to these brokers, listed with the preferred leader first.

        None cancels the reassignment of a partition.
        """
        work = reassignment.alter_partition_reassignments(
            self._open, replicas, allow_replication_factor_change=allow_replication_factor_change
        )
        return await self._do("alter_partition_reassignments", work)

    async def list_partition_reassignments(
        self, topic_partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Returns the ongoing reassignments of these partitions, or of all partitions."""
        work = reassignment.list_partition_reassignments(self._open, topic_partitions)
        return await self._do("list_partition_reassignments", work)

    async def unregister_broker(self, broker: int) -> None:
        """Removes the registration of a broker that is gone for good.

        Raises `BrokerError` while the broker is alive or has replicas.
        """
        await self._do("unregister_broker", reassignment.unregister_broker(self._open, broker))

    # -- groups ---------------------------------------------------------------------------------

    async def list_groups(self) -> list[GroupListing]:
        """Returns all groups of the cluster."""
        return await self._do("list_groups", groups.list_groups(self._open))

    async def describe_group(self, group: str) -> GroupInfo:
        """Returns a group's state and its members. Raises `BrokerError` if there is none."""
        return await self._do("describe_group", groups.describe_group(self._open, group))

    async def describe_groups(self, names: Sequence[str]) -> dict[str, GroupInfo | BrokerError]:
        """Returns state and members of several groups, or an error for each that failed."""
        return await self._do("describe_groups", groups.describe_groups(self._open, names))

    async def delete_group(self, group: str) -> None:
        """Deletes a group and its committed offsets. Raises `BrokerError` if it has members."""
        raise_outcome((await self.delete_groups([group]))[group])

    async def delete_groups(self, names: Sequence[str]) -> dict[str, BrokerError | None]:
        """Deletes groups without members. Returns the outcome of each: None if it was deleted."""
        return await self._do("delete_groups", groups.delete_groups(self._open, names))

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the offsets that the group has committed: the next to read of each partition.

        Example:
            await consumer.poll(timeout_ms=10_000)
            await consumer.commit()
            offsets = await admin.group_offsets("billing")
            print(offsets[TopicPartition("orders", 0)].offset)
            #> 3
        """
        return await self._do("group_offsets", groups.group_offsets(self._open, group))

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Sets committed offsets of a group without members. A member would overwrite them."""
        work = groups.commit_offsets(self._open, group, offsets)
        return await self._do("alter_group_offsets", work)

    async def delete_group_offsets(
        self, group: str, topic_partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Deletes the group's committed offsets of these partitions."""
        work = groups.delete_offsets(self._open, group, topic_partitions)
        return await self._do("delete_group_offsets", work)

    describe_share_group = share_group_methods.describe_share_group
    share_group_offsets = share_group_methods.share_group_offsets
    alter_share_group_offsets = share_group_methods.alter_share_group_offsets
    delete_share_group_offsets = share_group_methods.delete_share_group_offsets

    # -- partitions -----------------------------------------------------------------------------

    async def list_offsets(
        self, times: Mapping[TopicPartition, When]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """Returns for each partition the first offset at or after a time.

        A time is a datetime with a time zone, milliseconds since 1970, "earliest", "latest" or
        "max_timestamp". The result is None if the partition has no record at or after the time.

        Example:
            orders = TopicPartition("orders", 0)
            found = await admin.list_offsets({orders: "latest"})
            print(found[orders].offset)
            #> 3
        """
        wanted = {topic_partition: time_ms(when) for topic_partition, when in times.items()}
        return await self._do("list_offsets", offsets.list_offsets(self._open, wanted))

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Deletes the records before these offsets (-1: all). Returns the new log start offsets.

        Raises `BrokerError` for an offset beyond the end of its partition.

        Example:
            orders = TopicPartition("orders", 0)
            print((await admin.delete_records({orders: 2}))[orders])
            #> 2
        """
        return await self._do("delete_records", offsets.delete_records(self._open, before))

    async def describe_producers(
        self, topic_partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerInfo]]:
        """Returns the idempotent producers that the leaders of these partitions have state for."""
        work = inspection.describe_producers(self._open, topic_partitions)
        return await self._do("describe_producers", work)

    # -- transactions ---------------------------------------------------------------------------

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        running_longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Returns the cluster's transactional ids that match every filter, sorted by name.

        `pattern` is a regular expression that must match the whole id.
        """
        return await self._do(
            "list_transactions",
            transactions.list_transactions(
                self._open,
                states=states,
                producer_ids=producer_ids,
                running_longer_than_ms=running_longer_than_ms,
                pattern=pattern,
            ),
        )

    async def describe_transactions(
        self, transactional_ids: Sequence[str]
    ) -> dict[str, TransactionInfo | BrokerError]:
        """Returns the state, producer and open partitions of each transactional id."""
        work = transactions.describe_transactions(self._open, transactional_ids)
        return await self._do("describe_transactions", work)

    async def terminate_transaction(self, transactional_id: str) -> None:
        """Aborts the open transaction of this id, and fences its producer."""
        work = transactions.terminate_transaction(self._open, transactional_id)
        await self._do("terminate_transaction", work)

    async def find_hanging_transactions(self, topics: Sequence[str] | None = None) -> HangingSearch:
        """Finds open transactions in these topics, or in all, that no coordinator will end."""
        work = transactions.find_hanging(self._open, topics)
        return await self._do("find_hanging_transactions", work)

    async def abort_transaction(
        self,
        topic_partition: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = 0,
    ) -> None:
        """Ends a hanging transaction in one partition by writing an abort marker.

        Use `terminate_transaction` for a transaction that is not hanging: its coordinator ends it.
        """
        await self._do(
            "abort_transaction",
            transactions.abort_transaction(
                self._open,
                topic_partition,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
            ),
        )

    # -- access rules, users and quotas ---------------------------------------------------------

    async def create_acls(self, acls: Sequence[AclBinding]) -> dict[AclBinding, BrokerError | None]:
        """Creates access rules. It is no error if a rule exists."""
        return await self._do("create_acls", access.create_acls(self._open, acls))

    async def describe_acls(self, wanted: AclFilter = AclFilter()) -> list[AclBinding]:  # noqa: B008 (it does not change)
        """Returns the access rules that the filter selects, by default all, sorted."""
        return await self._do("describe_acls", access.describe_acls(self._open, wanted))

    async def delete_acls(
        self, filters: Sequence[AclFilter]
    ) -> list[list[AclBinding] | BrokerError]:
        """Deletes the access rules that each filter selects, and returns them."""
        return await self._do("delete_acls", access.delete_acls(self._open, filters))

    async def describe_scram_users(
        self, users: Sequence[str] | None = None
    ) -> dict[str, ScramUser | BrokerError]:
        """Returns these users, or all, with the mechanisms for which they have a password."""
        work = access.describe_scram_users(self._open, users)
        return await self._do("describe_scram_users", work)

    async def upsert_scram_user(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-512", iterations: int = 4096
    ) -> None:
        """Adds a user, or sets a new password. The password itself is not sent."""
        work = access.upsert_scram_user(self._open, user, password, mechanism, iterations)
        await self._do("upsert_scram_user", work)

    async def delete_scram_user(self, user: str, mechanism: str | None = None) -> None:
        """Deletes a user's password for one mechanism, or for all."""
        await self._do("delete_scram_user", access.delete_scram_user(self._open, user, mechanism))

    async def describe_client_quotas(
        self, entity: Entity | None = None, *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Returns the quotas of {"user": "ann"}, {"user": "*"} (each), {"user": None} (default)."""
        work = access.describe_client_quotas(self._open, entity or {}, strict)
        return await self._do("describe_client_quotas", work)

    async def alter_client_quotas(
        self, entity: Entity, *, set_values: Limits | None = None, delete: Sequence[str] = ()
    ) -> None:
        """Changes the quotas of an entity, such as {"user": "ann"} or {"client-id": None}."""
        work = access.alter_client_quotas(self._open, entity, set_values or {}, delete)
        await self._do("alter_client_quotas", work)

    async def describe_roles(self, principal: str | None = None) -> RoleListing:
        """Returns the roles of a Penstock cluster, and who has them: all, or one principal."""
        return await self._do("describe_roles", roles.describe_roles(self._open, principal))

    async def alter_roles(self, edits: Sequence[RoleEdit]) -> None:
        """Defines, deletes, grants and revokes roles: all of it, or nothing if one is refused."""
        await self._do("alter_roles", roles.alter_roles(self._open, edits))

    async def check_access(
        self, principal: str, operation: AclOperation, resource: ResourcePattern, host: str = "*"
    ) -> AccessAnswer:
        """Returns whether a principal may do this with one resource, and by which rule."""
        work = roles.check_access(self._open, principal, operation, resource, host)
        return await self._do("check_access", work)

    create_delegation_token = delegation_tokens.create_delegation_token
    renew_delegation_token = delegation_tokens.renew_delegation_token
    expire_delegation_token = delegation_tokens.expire_delegation_token
    describe_delegation_tokens = delegation_tokens.describe_delegation_tokens

    # -- common parts ---------------------------------------------------------------------------

    @property
    def _open(self) -> Cluster:
        if self._cluster is None:
            raise Closed("the admin client is not open: use `async with`, or call start() first")
        return self._cluster

    async def _do(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        return await within(self.options.default_api_timeout_ms / 1000, what, work)
