"""The sync Admin: `penstock.client.administration.Admin` behind a portal, method by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from penstock.client.admin import (
    BROKER_DEFAULT,
    ClusterInfo,
    ConfigEntry,
    CreatedTopic,
    NewTopic,
    TopicInfo,
)
from penstock.client.administration import Admin as AsyncAdmin
from penstock.client.administration import When
from penstock.client.blocking.life import Life
from penstock.client.environment import ClientEnv
from penstock.client.errors import BrokerError
from penstock.client.groups import GroupInfo, GroupListing
from penstock.client.inspection import LogDirInfo, ProducerInfo
from penstock.client.model import OffsetAndMetadata, TopicPartition
from penstock.client.offsets import FoundOffset
from penstock.client.options import AdminKeywords
from penstock.client.reassignment import Reassignment
from penstock.client.transactions import HangingSearch, TransactionInfo, TransactionListing


class Admin:
    """Topics, configs, groups and offsets of a cluster; may be used from several threads.

        with Admin("localhost:9092") as admin:
            admin.create_topic("payments", partitions=6)

    Methods about one thing raise what went wrong; methods about several return an outcome for
    each. Every call ends within `default_api_timeout_ms`."""

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
        self._life = Life("admin", core.env.clock, core.start, lambda _: core.close())
        self._life.watch(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Connect now; otherwise the first call does."""
        self._life.portal()

    def close(self) -> None:
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
        """Make a topic; partitions and replicas as the broker's settings say unless given."""
        return self._life.call(
            self._async.create_topic(
                name, partitions, replication_factor, configs, validate_only=validate_only
            )
        )

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | BrokerError]:
        return self._life.call(self._async.create_topics(topics, validate_only=validate_only))

    def delete_topic(self, name: str) -> None:
        self._life.call(self._async.delete_topic(name))

    def delete_topics(self, names: Sequence[str]) -> dict[str, BrokerError | None]:
        return self._life.call(self._async.delete_topics(names))

    def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """All topics by name; with `internal` also those that the cluster keeps for itself."""
        return self._life.call(self._async.list_topics(internal=internal))

    def describe_topic(self, name: str) -> TopicInfo:
        return self._life.call(self._async.describe_topic(name))

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo | BrokerError]:
        return self._life.call(self._async.describe_topics(names))

    def create_partitions(self, topic: str, total: int) -> None:
        """Grow the topic to `total` partitions; there is no way back."""
        self._life.call(self._async.create_partitions(topic, total))

    # -- configs and the cluster ----------------------------------------------------------------

    def describe_configs(
        self, *, topic: str | None = None, broker: int | None = None
    ) -> dict[str, ConfigEntry]:
        """Every config of one topic or of one broker, defaults included, by name."""
        return self._life.call(self._async.describe_configs(topic=topic, broker=broker))

    def alter_configs(
        self,
        *,
        topic: str | None = None,
        broker: int | None = None,
        set_values: Mapping[str, str] | None = None,
        delete: Sequence[str] = (),
    ) -> None:
        """Set some configs and put others back to their defaults; the rest stays as it is."""
        self._life.call(
            self._async.alter_configs(
                topic=topic, broker=broker, set_values=set_values, delete=delete
            )
        )

    def describe_cluster(self) -> ClusterInfo:
        return self._life.call(self._async.describe_cluster())

    def describe_log_dirs(self, brokers: Sequence[int] | None = None) -> list[LogDirInfo]:
        """What lies in the log directories of these brokers, or of all."""
        return self._life.call(self._async.describe_log_dirs(brokers))

    # -- leaders and replicas -------------------------------------------------------------------

    def elect_leaders(
        self, places: Sequence[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, BrokerError | None]:
        """Let these partitions, or all, be led by their preferred replicas.

        With `unclean` by any that is alive, where nobody leads: what only others have is lost. Of
        all, those that needed no election are left out."""
        return self._life.call(self._async.elect_leaders(places, unclean=unclean))

    def alter_partition_reassignments(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> dict[TopicPartition, BrokerError | None]:
        """Begin to move partitions to these brokers, the preferred leader first; None cancels."""
        return self._life.call(
            self._async.alter_partition_reassignments(
                replicas, allow_replication_factor_change=allow_replication_factor_change
            )
        )

    def list_partition_reassignments(
        self, places: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The moves under way, of these partitions or of all."""
        return self._life.call(self._async.list_partition_reassignments(places))

    def unregister_broker(self, broker: int) -> None:
        """Forget a broker that is gone for good; refused while anything counts on it."""
        self._life.call(self._async.unregister_broker(broker))

    # -- groups ---------------------------------------------------------------------------------

    def list_groups(self) -> list[GroupListing]:
        return self._life.call(self._async.list_groups())

    def describe_group(self, group: str) -> GroupInfo:
        return self._life.call(self._async.describe_group(group))

    def describe_groups(self, names: Sequence[str]) -> dict[str, GroupInfo | BrokerError]:
        return self._life.call(self._async.describe_groups(names))

    def delete_group(self, group: str) -> None:
        """Forget a group that has no members, and all it has committed."""
        self._life.call(self._async.delete_group(group))

    def delete_groups(self, names: Sequence[str]) -> dict[str, BrokerError | None]:
        return self._life.call(self._async.delete_groups(names))

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Every offset the group has committed."""
        return self._life.call(self._async.group_offsets(group))

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Move a group that has no members; a member would commit over it."""
        return self._life.call(self._async.alter_group_offsets(group, offsets))

    def delete_group_offsets(
        self, group: str, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Forget what the group has committed for these partitions."""
        return self._life.call(self._async.delete_group_offsets(group, places))

    # -- partitions -----------------------------------------------------------------------------

    def list_offsets(
        self, times: Mapping[TopicPartition, When]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """For each partition the first offset at or after a time, or at "earliest", "latest" or
        "max_timestamp"; None when no record is that young."""
        return self._life.call(self._async.list_offsets(times))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Drop what lies before these offsets (-1: all there is); where the logs begin now."""
        return self._life.call(self._async.delete_records(before))

    def describe_producers(
        self, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerInfo]]:
        """The idempotent producers that these partitions' leaders remember."""
        return self._life.call(self._async.describe_producers(places))

    # -- transactions ---------------------------------------------------------------------------

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        running_longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of the cluster that pass every filter, by name. `pattern` is a
        regular expression for the whole id."""
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
        """State, producer and open partitions of each."""
        return self._life.call(self._async.describe_transactions(transactional_ids))

    def terminate_transaction(self, transactional_id: str) -> None:
        """Abort what the id has open, and fence its producer; returns when that is done."""
        self._life.call(self._async.terminate_transaction(transactional_id))

    def find_hanging_transactions(self, topics: Sequence[str] | None = None) -> HangingSearch:
        """Those that these topics, or all, have open and that no coordinator will ever end."""
        return self._life.call(self._async.find_hanging_transactions(topics))

    def abort_transaction(
        self,
        place: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = 0,
    ) -> None:
        """End a hanging transaction on one partition, with a marker. One that does not hang is its
        coordinator's to end: `terminate_transaction`."""
        self._life.call(
            self._async.abort_transaction(
                place,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
            )
        )
