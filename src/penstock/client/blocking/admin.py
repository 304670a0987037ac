"""The sync Admin: runs each method of the async `Admin` through a portal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self, Unpack

from penstock.client.admin.access import Entity, ScramUser
from penstock.client.admin.admin import Admin as AsyncAdmin
from penstock.client.admin.arguments import When
from penstock.client.admin.delegation_tokens import DelegationToken
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
from penstock.client.admin.share_groups import ShareGroupInfo, SharePartitionOffsets
from penstock.client.admin.transactions import HangingSearch, TransactionInfo, TransactionListing
from penstock.client.blocking.lifecycle import Lifecycle
from penstock.client.environment import ClientEnv
from penstock.client.errors import BrokerError
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


@with_help(AdminOptions)
class Admin:
    """Manages topics, configs, groups and offsets of a cluster. May be used from several threads.

    `bootstrap_servers` is "host:port", or a list of them. `env` is for tests without a network. The
    other keywords are options: see `help(Admin)` or docs/CLIENTS.md.

    Methods that concern one thing raise an error when they fail: `BrokerError`, or `TopicNotFound`
    where there is a topic. Methods that concern several things return an outcome for each. A call
    that takes longer than `default_api_timeout_ms` (one minute) raises `DeadlineExceeded`.

    Example:
        with Admin("localhost:9092") as admin:
            admin.create_topic("refunds", partitions=6)
            print([(topic.name, len(topic.partitions)) for topic in admin.list_topics()])
        #> [('refunds', 6)]
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        *,
        env: ClientEnv | None = None,
        **options: Unpack[AdminKeywords],
    ) -> None:
        self._async = core = AsyncAdmin(bootstrap_servers, env=env, **options)
        self.options = core.options
        self.env = core.env
        self._life = Lifecycle("admin", core.env.clock, core.start, lambda _: core.close())
        self._life.watch(self)

    from_profile = FromProfile()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> None:
        """Connects now. Otherwise the first call connects.

        Raises `ConnectFailed` if no broker can be reached, and `Closed` after `close`.
        """
        self._life.portal()

    def close(self) -> None:
        """Closes the connections."""
        self._life.close()

    # -- topics ---------------------------------------------------------------------------------

    def create_topic(
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
            topic = admin.create_topic("refunds", 3, configs={"retention.ms": "86400000"})
            print(topic.name, topic.partitions)
            #> refunds 3
        """
        return self._life.call(
            self._async.create_topic(
                name, partitions, replication_factor, configs, validate_only=validate_only
            )
        )

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | BrokerError]:
        """Creates several topics. Returns what was created, or the error, for each name."""
        return self._life.call(self._async.create_topics(topics, validate_only=validate_only))

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with all its records. Raises `TopicNotFound` if there is none."""
        self._life.call(self._async.delete_topic(name))

    def delete_topics(self, names: Sequence[str]) -> dict[str, BrokerError | None]:
        """Deletes several topics and returns the outcome of each: None if the topic was deleted."""
        return self._life.call(self._async.delete_topics(names))

    def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """Returns all topics sorted by name; internal topics only with `internal`."""
        return self._life.call(self._async.list_topics(internal=internal))

    def describe_topic(self, name: str) -> TopicInfo:
        """Returns a topic's partitions, leaders and replicas. Raises `TopicNotFound` if there is
        none.
        """
        return self._life.call(self._async.describe_topic(name))

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo | BrokerError]:
        """Returns the partitions of several topics, or an error for each topic that cannot be
        described."""
        return self._life.call(self._async.describe_topics(names))

    def create_partitions(self, topic: str, total: int) -> None:
        """Increases the topic to `total` partitions. The number can never be reduced.

        Raises `TopicNotFound`, or `BrokerError` if the topic has as many partitions already.
        """
        self._life.call(self._async.create_partitions(topic, total))

    # -- configs and the cluster ----------------------------------------------------------------

    def describe_configs(
        self, *, topic: str | None = None, broker: int | None = None, group: str | None = None
    ) -> dict[str, ConfigEntry]:
        """Returns every config of one topic, broker or group by name, including defaults.

        Raises `OptionError` unless exactly one of them is given.
        """
        return self._life.call(
            self._async.describe_configs(topic=topic, broker=broker, group=group)
        )

    def alter_configs(
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
            admin.alter_configs(topic="orders", set_values={"retention.ms": "86400000"})
            configs = admin.describe_configs(topic="orders")
            print(configs["retention.ms"].value)
            #> 86400000
        """
        self._life.call(
            self._async.alter_configs(
                topic=topic, broker=broker, group=group, set_values=set_values, delete=delete
            )
        )

    def describe_cluster(self) -> ClusterInfo:
        """Returns the cluster's id, its controller and its brokers."""
        return self._life.call(self._async.describe_cluster())

    def describe_log_dirs(self, brokers: Sequence[int] | None = None) -> list[LogDirInfo]:
        """Describes the log directories of these brokers, or of all brokers."""
        return self._life.call(self._async.describe_log_dirs(brokers))

    # -- leaders and replicas -------------------------------------------------------------------

    def elect_leaders(
        self, topic_partitions: Sequence[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, BrokerError | None]:
        """Elects the preferred replica as leader of these partitions, or of all partitions.

        With `unclean`, partitions without a leader get any live replica as their leader; records
        that only other replicas have are lost. When all partitions were requested, the result omits
        those that needed no election.
        """
        return self._life.call(self._async.elect_leaders(topic_partitions, unclean=unclean))

    def alter_partition_reassignments(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> dict[TopicPartition, BrokerError | None]:
        """Starts to move partitions to these brokers, listed with the preferred leader first.

        None cancels the reassignment of a partition.
        """
        return self._life.call(
            self._async.alter_partition_reassignments(
                replicas, allow_replication_factor_change=allow_replication_factor_change
            )
        )

    def list_partition_reassignments(
        self, topic_partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Returns the ongoing reassignments of these partitions, or of all partitions."""
        return self._life.call(self._async.list_partition_reassignments(topic_partitions))

    def unregister_broker(self, broker: int) -> None:
        """Removes the registration of a broker that is gone for good.

        Raises `BrokerError` while the broker is alive or has replicas.
        """
        self._life.call(self._async.unregister_broker(broker))

    # -- groups ---------------------------------------------------------------------------------

    def list_groups(self) -> list[GroupListing]:
        """Returns all groups of the cluster."""
        return self._life.call(self._async.list_groups())

    def describe_group(self, group: str) -> GroupInfo:
        """Returns a group's state and its members. Raises `BrokerError` if there is none."""
        return self._life.call(self._async.describe_group(group))

    def describe_groups(self, names: Sequence[str]) -> dict[str, GroupInfo | BrokerError]:
        """Returns state and members of several groups, or an error for each that failed."""
        return self._life.call(self._async.describe_groups(names))

    def delete_group(self, group: str) -> None:
        """Deletes a group and its committed offsets. Raises `BrokerError` if it has members."""
        self._life.call(self._async.delete_group(group))

    def delete_groups(self, names: Sequence[str]) -> dict[str, BrokerError | None]:
        """Deletes groups without members. Returns the outcome of each: None if it was deleted."""
        return self._life.call(self._async.delete_groups(names))

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the offsets that the group has committed: the next to read of each partition.

        Example:
            consumer.poll(timeout_ms=10_000)
            consumer.commit()
            offsets = admin.group_offsets("billing")
            print(offsets[TopicPartition("orders", 0)].offset)
            #> 3
        """
        return self._life.call(self._async.group_offsets(group))

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Sets committed offsets of a group without members. A member would overwrite them."""
        return self._life.call(self._async.alter_group_offsets(group, offsets))

    def delete_group_offsets(
        self, group: str, topic_partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Deletes the group's committed offsets of these partitions."""
        return self._life.call(self._async.delete_group_offsets(group, topic_partitions))

    def describe_share_group(self, group: str) -> ShareGroupInfo:
        """Returns a share group's state and its members. Raises `BrokerError` if there is none."""
        return self._life.call(self._async.describe_share_group(group))

    def share_group_offsets(self, group: str) -> dict[TopicPartition, SharePartitionOffsets]:
        """Returns how far a share group is with each partition. Empty if there is no such group."""
        return self._life.call(self._async.share_group_offsets(group))

    def alter_share_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Sets the first offset that is not done, for a share group without members. What is at or
        after it is delivered again; what is before it counts as done."""
        return self._life.call(self._async.alter_share_group_offsets(group, offsets))

    def delete_share_group_offsets(
        self, group: str, topics: Sequence[str]
    ) -> dict[str, BrokerError | None]:
        """Deletes what a share group without members knows of these topics."""
        return self._life.call(self._async.delete_share_group_offsets(group, topics))

    # -- partitions -----------------------------------------------------------------------------

    def list_offsets(
        self, times: Mapping[TopicPartition, When]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """Returns for each partition the first offset at or after a time.

        A time is a datetime with a time zone, milliseconds since 1970, "earliest", "latest" or
        "max_timestamp". The result is None if the partition has no record at or after the time.

        Example:
            orders = TopicPartition("orders", 0)
            found = admin.list_offsets({orders: "latest"})
            print(found[orders].offset)
            #> 3
        """
        return self._life.call(self._async.list_offsets(times))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes the records before these offsets (-1: all). Returns the new log start offsets.

        Raises `BrokerError` for an offset beyond the end of its partition.

        Example:
            orders = TopicPartition("orders", 0)
            print(admin.delete_records({orders: 2})[orders])
            #> 2
        """
        return self._life.call(self._async.delete_records(before))

    def describe_producers(
        self, topic_partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerInfo]]:
        """Returns the idempotent producers that the leaders of these partitions have state for."""
        return self._life.call(self._async.describe_producers(topic_partitions))

    # -- transactions ---------------------------------------------------------------------------

    def list_transactions(
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
        return self._life.call(
            self._async.list_transactions(
                states=states,
                producer_ids=producer_ids,
                running_longer_than_ms=running_longer_than_ms,
                pattern=pattern,
            )
        )

    def describe_transactions(
        self, transactional_ids: Sequence[str]
    ) -> dict[str, TransactionInfo | BrokerError]:
        """Returns the state, producer and open partitions of each transactional id."""
        return self._life.call(self._async.describe_transactions(transactional_ids))

    def terminate_transaction(self, transactional_id: str) -> None:
        """Aborts the open transaction of this id and fences its producer. Returns when that is
        done."""
        self._life.call(self._async.terminate_transaction(transactional_id))

    def find_hanging_transactions(self, topics: Sequence[str] | None = None) -> HangingSearch:
        """Finds open transactions in these topics, or in all topics, that no coordinator will ever
        end."""
        return self._life.call(self._async.find_hanging_transactions(topics))

    def abort_transaction(
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
        self._life.call(
            self._async.abort_transaction(
                topic_partition,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
            )
        )

    # -- access rules, users and quotas ---------------------------------------------------------

    def create_acls(self, acls: Sequence[AclBinding]) -> dict[AclBinding, BrokerError | None]:
        """Creates access rules. It is no error if a rule exists."""
        return self._life.call(self._async.create_acls(acls))

    def describe_acls(self, wanted: AclFilter = AclFilter()) -> list[AclBinding]:  # noqa: B008 (it does not change)
        """Returns the access rules that the filter selects, by default all, sorted."""
        return self._life.call(self._async.describe_acls(wanted))

    def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[AclBinding] | BrokerError]:
        """Deletes the access rules that each filter selects, and returns them."""
        return self._life.call(self._async.delete_acls(filters))

    def describe_scram_users(
        self, users: Sequence[str] | None = None
    ) -> dict[str, ScramUser | BrokerError]:
        """Returns these users, or all, with the mechanisms for which they have a password."""
        return self._life.call(self._async.describe_scram_users(users))

    def upsert_scram_user(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-512", iterations: int = 4096
    ) -> None:
        """Adds a user, or sets a new password. The password itself is not sent."""
        self._life.call(self._async.upsert_scram_user(user, password, mechanism, iterations))

    def delete_scram_user(self, user: str, mechanism: str | None = None) -> None:
        """Deletes a user's password for one mechanism, or for all."""
        self._life.call(self._async.delete_scram_user(user, mechanism))

    def describe_client_quotas(
        self, entity: Entity | None = None, *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Returns quotas: {"user": "ann"} of one user, {"user": "*"} of each, {"user": None} the
        default. `strict` leaves out entities with further parts, such as a client id."""
        return self._life.call(self._async.describe_client_quotas(entity, strict=strict))

    def alter_client_quotas(
        self,
        entity: Entity,
        *,
        set_values: Limits | None = None,
        delete: Sequence[str] = (),
    ) -> None:
        """Changes the quotas of an entity, such as {"user": "ann"} or {"client-id": None}."""
        self._life.call(
            self._async.alter_client_quotas(entity, set_values=set_values, delete=delete)
        )

    def describe_roles(self, principal: str | None = None) -> RoleListing:
        """Returns the roles of a Penstock cluster, and who has them: all, or one principal."""
        return self._life.call(self._async.describe_roles(principal))

    def alter_roles(self, edits: Sequence[RoleEdit]) -> None:
        """Defines, deletes, grants and revokes roles: all of it, or nothing if one is refused."""
        self._life.call(self._async.alter_roles(edits))

    def check_access(
        self, principal: str, operation: AclOperation, resource: ResourcePattern, host: str = "*"
    ) -> AccessAnswer:
        """Returns whether a principal may do this with one resource, and by which rule."""
        return self._life.call(self._async.check_access(principal, operation, resource, host))

    def create_delegation_token(
        self,
        owner: str | None = None,
        *,
        renewers: Sequence[str] = (),
        max_lifetime_ms: int = -1,
    ) -> DelegationToken:
        """Creates a token with which programs log in as its owner, by default as this client's
        user. For another owner, this client's user needs CREATE_TOKENS on it."""
        made = self._async.create_delegation_token(
            owner, renewers=renewers, max_lifetime_ms=max_lifetime_ms
        )
        return self._life.call(made)

    def renew_delegation_token(self, hmac: str, period_ms: int = -1) -> int:
        """Lets a token last longer. Returns when it expires, in ms since 1970."""
        return self._life.call(self._async.renew_delegation_token(hmac, period_ms))

    def expire_delegation_token(self, hmac: str, period_ms: int = -1) -> int:
        """Lets a token expire after a period, or at once if that is below 0. Returns when it
        expires. Afterwards no broker accepts the token."""
        return self._life.call(self._async.expire_delegation_token(hmac, period_ms))

    def describe_delegation_tokens(
        self, owners: Sequence[str] | None = None
    ) -> list[DelegationToken]:
        """Returns the tokens that this client's user may see: all, or those that concern some
        users."""
        return self._life.call(self._async.describe_delegation_tokens(owners))
