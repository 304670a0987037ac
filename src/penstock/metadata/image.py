"""The cluster image: one broker's copy of the metadata store.

The image is mutable and has one owner, the task that reads the store's watch. Only that task calls
`load` and `apply`; all other code on the same event loop only reads. An event changes one key, and
costs the same with ten topics as with ten thousand. The objects in the image are immutable, so a
reader that keeps a `Topic` across an await keeps a consistent one, although it may be out of date.

`revision` is the store revision that the image has reached: it contains everything up to there. A
decision names the revision of each key that it changes. A decision based on an old image therefore
fails at the store, and is made again on a newer one.

`apply` and `load` return what changed, so that the broker can open and delete logs. A topic that
was deleted and created again is recognized by its new id. `load` may skip the steps in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from urllib.parse import unquote

from penstock.metadata import keys
from penstock.metadata.acl_values import AclSeen, StoredAcls, decode_acl_seen, read_acls
from penstock.metadata.broker_configs import CORDONED
from penstock.metadata.cluster_values import (
    decode_broker,
    decode_cluster,
    decode_controller,
    decode_controller_epoch,
    decode_producer_ids,
    decode_stopping,
)
from penstock.metadata.config_values import NO_CONFIGS, decode_configs
from penstock.metadata.model import BrokerInfo, Controller, Partition, Topic
from penstock.metadata.quota_values import QuotaTable
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.metadata.token_values import TokenTable
from penstock.metadata.topic_ids import to_text
from penstock.metadata.topic_values import decode_chunk, decode_head, decode_topic, is_head
from penstock.metadata.user_values import UserTable
from penstock.wire.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A changed topic. It was created if `before` is None, and deleted if `after` is None."""

    name: str
    before: Topic | None
    after: Topic | None


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """A changed broker. It registered if `before` is None, and left if `after` is None.

    Both are equal if the broker has begun to stop, or has cancelled its stop.
    """

    broker_id: int
    before: BrokerInfo | None
    after: BrokerInfo | None


@dataclass(frozen=True, slots=True)
class Changed:
    """What an event or a reload has changed."""

    topics: tuple[TopicChange, ...] = ()
    brokers: tuple[BrokerChange, ...] = ()
    controller: bool = False
    configs: bool = False
    cluster: bool = False
    users: bool = False
    acls: bool = False
    """ACLs, or only their version."""
    acls_seen: bool = False
    """A broker has noted that it applied a change of ACLs."""
    quotas: bool = False
    tokens: tuple[str, ...] = ()
    """The ids of delegation tokens."""
    token_secret: bool = False
    """The check of the secret key of delegation tokens."""

    def __bool__(self) -> bool:
        tokens = self.tokens or self.token_secret
        access = self.users or self.quotas or tokens or self.acls or self.acls_seen
        others = self.controller or self.configs or self.cluster
        return bool(self.topics or self.brokers or others or access)

    @property
    def topic_names(self) -> tuple[str, ...]:
        return tuple(change.name for change in self.topics)

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(change.broker_id for change in self.brokers)


_NOTHING = Changed()
_CONTROLLER = Changed(controller=True)
_CONFIGS = Changed(configs=True)
_CLUSTER = Changed(cluster=True)
_USERS = Changed(users=True)
_ACLS = Changed(acls=True)
_ACLS_SEEN = Changed(acls_seen=True)
_QUOTAS = Changed(quotas=True)
_TOKEN_SECRET = Changed(token_secret=True)


class ClusterImage:
    """The cluster image. The module docstring says which task may call what."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.revision = 0
        self.controller: Controller | None = None
        self.controller_epoch = 0
        self.next_producer_id = 0
        self.stopping: frozenset[int] = frozenset()
        """Brokers that are handing over their partitions in order to stop. They are still
        registered."""
        self._brokers: dict[int, BrokerInfo] = {}
        self._stopping_epochs: dict[int, int] = {}
        self._topics: dict[str, Topic] = {}
        self._topics_by_id: dict[bytes, Topic] = {}
        self._chunks: dict[bytes, dict[int, tuple[Partition, ...]]] = {}
        """The chunks of large topics, by topic id. Includes chunks that the topic's head does not
        count yet."""
        self._names_by_metric: dict[str, dict[str, None]] = {}
        self._broker_configs: dict[int, Mapping[str, str]] = {}
        self._group_configs: dict[str, Mapping[str, str]] = {}
        self._key_revisions: dict[str, int] = {}
        self.users = UserTable()
        self.quotas = QuotaTable()
        self.tokens = TokenTable()
        self._acls: dict[str, StoredAcls] = {}
        self._acls_seen: dict[int, AclSeen] = {}
        self.stored_roles: bytes | None = None
        """The stored roles, not decoded: `metadata.acls.role_book` does that."""
        self.default_broker_configs: Mapping[str, str] = NO_CONFIGS
        self.default_synced_from = 0
        """The revision at which the default of `log.durability` last changed; 0 if it never did."""
        self.brokers: Mapping[int, BrokerInfo] = MappingProxyType(self._brokers)
        self.topics: Mapping[str, Topic] = MappingProxyType(self._topics)
        self.group_configs: Mapping[str, Mapping[str, str]] = MappingProxyType(self._group_configs)
        """The overrides of single groups, by group id."""
        self.broker_configs: Mapping[int, Mapping[str, str]] = MappingProxyType(
            self._broker_configs
        )
        self.acls: Mapping[str, StoredAcls] = MappingProxyType(self._acls)
        """The ACLs by the key of their resource pattern."""
        self.acls_seen: Mapping[int, AclSeen] = MappingProxyType(self._acls_seen)

    @property
    def living(self) -> dict[int, int]:
        """The broker epochs of all brokers that are registered and not about to stop."""
        return {
            each: broker.broker_epoch
            for each, broker in self._brokers.items()
            if each not in self.stopping
        }

    @property
    def cordoned(self) -> frozenset[int]:
        """Brokers on which no new partitions are placed (KIP-1066)."""
        everywhere = self.default_broker_configs.get(CORDONED, "")
        return frozenset(
            each
            for each in {*self._brokers, *self._broker_configs}
            if self._broker_configs.get(each, NO_CONFIGS).get(CORDONED, everywhere)
        )

    @property
    def acl_revision(self) -> int:
        """The revision of the last change of ACLs; 0 if there was none."""
        return self._key_revisions.get(keys.ACL_VERSION_KEY, 0)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        return self._topics_by_id.get(topic_id)

    def require_topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"There is no topic '{name}': check the name, or create the topic.",
            )
        return topic

    def require_topic_id(self, topic_id: bytes) -> Topic:
        topic = self._topics_by_id.get(topic_id)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"There is no topic with the id {to_text(topic_id)}: it was deleted, or this "
                "broker does not know it yet. Refresh the metadata.",
            )
        return topic

    def partition(self, name: str, index: int) -> Partition | None:
        topic = self._topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def revision_of(self, key: str) -> int:
        """Returns the revision that last changed the key; 0 if the key does not exist."""
        return self._key_revisions.get(key, 0)

    def colliding_topic(self, name: str) -> str | None:
        """Returns another topic whose name differs from this one only in dots and underscores."""
        others = self._names_by_metric.get(_metric_name(name), {})
        return next((other for other in others if other != name), None)

    def apply(self, key: str, value: bytes | None, revision: int) -> Changed:
        """Applies one event. An event that is not newer than the image changes nothing."""
        if revision < self.revision or (
            value is not None and revision <= self._key_revisions.get(key, 0)
        ):
            return _NOTHING
        # Decode before changing anything: a value that cannot be decoded leaves the image intact.
        changed = self._set(key, value, revision)
        self.revision = revision
        if value is None:
            self._key_revisions.pop(key, None)
        else:
            self._key_revisions[key] = revision
        return changed

    def load(self, entries: Iterable[tuple[str, bytes, int]], revision: int) -> Changed:
        """Replaces the image with the store's content at `revision`. Each entry is (key, value,
        modify revision)."""
        changes: list[Changed] = []
        seen: set[str] = set()
        # Sorted by key, the chunks of a topic come before its head.
        for key, value, key_revision in sorted(entries):
            seen.add(key)
            if key_revision != self._key_revisions.get(key, 0):
                changes.append(self._set(key, value, key_revision))
                self._key_revisions[key] = key_revision
        for key in [key for key in self._key_revisions if key not in seen]:
            changes.append(self._set(key, None, revision))
            del self._key_revisions[key]
        self.revision = revision
        return _merged(changes)

    def _set(self, key: str, value: bytes | None, revision: int) -> Changed:
        # Check topics first: they are the most frequent.
        if key.startswith(keys.TOPICS_PREFIX):
            return self._set_topic(key, value, revision)
        if key.startswith(keys.PARTITIONS_PREFIX):
            return self._set_chunk(key, value)
        if key.startswith(keys.BROKERS_PREFIX):
            return self._set_broker(key, value, revision)
        if key.startswith(keys.STOPPING_PREFIX):
            return self._set_stopping(key, value)
        if key.startswith(keys.BROKER_CONFIGS_PREFIX):
            return self._set_broker_configs(key, value, revision)
        if key.startswith(keys.GROUP_CONFIGS_PREFIX):
            group_id = unquote(key.removeprefix(keys.GROUP_CONFIGS_PREFIX))
            if value is None:
                self._group_configs.pop(group_id, None)
            else:
                self._group_configs[group_id] = decode_configs(key, value)[0]
            return _CONFIGS
        if key.startswith(keys.USERS_PREFIX):
            self.users.set_credential(key, value)
            return _USERS
        if key.startswith(keys.ACLS_PREFIX):
            return self._set_acls(key, value)
        if key.startswith(keys.ACL_SEEN_PREFIX):
            return self._set_acls_seen(key, value)
        if key.startswith(keys.QUOTAS_PREFIX):
            self.quotas.set(key, value)
            return _QUOTAS
        if key.startswith(keys.TOKENS_PREFIX):
            return Changed(tokens=(self.tokens.set(key, value),))
        single = _SINGLE_KEYS.get(key)
        # Ignore unknown keys: a newer version may have written them, and they must not stop this
        # broker.
        return _NOTHING if single is None else single(self, value, revision)

    def _set_topic(self, key: str, value: bytes | None, revision: int) -> Changed:
        name = key.removeprefix(keys.TOPICS_PREFIX)
        after = None if value is None else self._read_topic(key, value, revision)
        before = self._topics.get(name)
        if after is not None:
            holder = self._topics_by_id.get(after.topic_id)
            if holder is not None and holder.name != name:
                raise MetadataInvalid(key, f"topic {holder.name} has the same id")
        if before is not None:
            del self._topics_by_id[before.topic_id]
        if after is not None:
            self._topics[name] = after
            self._topics_by_id[after.topic_id] = after
            self._names_by_metric.setdefault(_metric_name(name), {})[name] = None
        elif before is not None:
            del self._topics[name]
            names = self._names_by_metric[_metric_name(name)]
            del names[name]
            if not names:
                del self._names_by_metric[_metric_name(name)]
        if before is None and after is None:
            return _NOTHING
        return Changed(topics=(TopicChange(name, before, after),))

    def _read_topic(self, key: str, value: bytes, revision: int) -> Topic:
        if not is_head(value):
            return decode_topic(key, value, revision)
        head, count = decode_head(key, value, revision)
        chunks = self._chunks.get(head.topic_id, {})
        partitions: tuple[Partition, ...] = ()
        for number in range(-(-count // head.chunk_partitions)):
            left = count - len(partitions)
            held = chunks.get(number, ())[: min(left, head.chunk_partitions)]
            if len(held) < min(left, head.chunk_partitions):
                raise MetadataInvalid(key, f"its chunk {number} of partitions is incomplete")
            partitions += held
        return replace(head, partitions=partitions)

    def _set_chunk(self, key: str, value: bytes | None) -> Changed:
        """Applies a chunk of a large topic. Chunks are written before the head that counts them,
        and deleted after it, so a chunk without a head changes nothing."""
        topic_id, number = keys.chunk_of(key)
        if value is None:
            chunks = self._chunks.get(topic_id, {})
            chunks.pop(number, None)
            if not chunks:
                self._chunks.pop(topic_id, None)
            return _NOTHING
        before = self._topics_by_id.get(topic_id)
        step = before.chunk_partitions if before is not None else 0
        held = decode_chunk(key, value, number * step)
        start = number * step
        counted = () if before is None or not step else before.partitions[start : start + step]
        if len(held) < len(counted):
            raise MetadataInvalid(key, f"it has only {len(held)} of {len(counted)} partitions")
        self._chunks.setdefault(topic_id, {})[number] = held
        if before is None or not counted:
            return _NOTHING
        stop, partitions = start + len(counted), before.partitions
        after = replace(
            before, partitions=partitions[:start] + held[: len(counted)] + partitions[stop:]
        )
        self._topics[before.name] = self._topics_by_id[topic_id] = after
        return Changed(topics=(TopicChange(before.name, before, after),))

    def _set_broker(self, key: str, value: bytes | None, revision: int) -> Changed:
        broker_id = keys.broker_id_of(key, keys.BROKERS_PREFIX)
        after = None if value is None else decode_broker(key, value, revision)
        before = self._brokers.pop(broker_id, None)
        if after is not None:
            self._brokers[broker_id] = after
        if before is None and after is None:
            return _NOTHING
        self._note_stopping()
        return Changed(brokers=(BrokerChange(broker_id, before, after),))

    def _set_stopping(self, key: str, value: bytes | None) -> Changed:
        broker_id = keys.broker_id_of(key, keys.STOPPING_PREFIX)
        if value is None:
            self._stopping_epochs.pop(broker_id, None)
        else:
            self._stopping_epochs[broker_id] = decode_stopping(key, value)
        before = self.stopping
        self._note_stopping()
        if before == self.stopping:
            return _NOTHING
        broker = self._brokers.get(broker_id)
        return Changed(brokers=(BrokerChange(broker_id, broker, broker),))

    def _note_stopping(self) -> None:
        # A key that a killed run of the broker left behind does not apply to the next run.
        self.stopping = frozenset(
            each
            for each, epoch in self._stopping_epochs.items()
            if each in self._brokers and self._brokers[each].broker_epoch == epoch
        )

    def _set_broker_configs(self, key: str, value: bytes | None, revision: int) -> Changed:
        configs, synced_from = NO_CONFIGS, 0
        if value is not None:
            configs, synced_from = decode_configs(key, value, revision)
        if key == keys.broker_config_key(None):
            self.default_broker_configs, self.default_synced_from = configs, synced_from
            return _CONFIGS
        broker_id = keys.broker_id_of(key, keys.BROKER_CONFIGS_PREFIX)
        if value is None:
            self._broker_configs.pop(broker_id, None)
        else:
            self._broker_configs[broker_id] = configs
        return _CONFIGS

    def _set_acls(self, key: str, value: bytes | None) -> Changed:
        # Values that cannot be read are kept as such: the broker must refuse requests, not stop.
        if value is None:
            self._acls.pop(key, None)
        else:
            self._acls[key] = read_acls(key, value)
        return _ACLS

    def _set_acls_seen(self, key: str, value: bytes | None) -> Changed:
        broker_id = keys.broker_id_of(key, keys.ACL_SEEN_PREFIX)
        if value is None:
            self._acls_seen.pop(broker_id, None)
        else:
            self._acls_seen[broker_id] = decode_acl_seen(key, value)
        return _ACLS_SEEN

    def _set_acl_version(self, _value: bytes | None, _revision: int) -> Changed:
        return _ACLS

    def _set_roles(self, value: bytes | None, _revision: int) -> Changed:
        self.stored_roles = value
        return _NOTHING

    def _set_controller(self, value: bytes | None, revision: int) -> Changed:
        self.controller = None if value is None else decode_controller(value, revision)
        return _CONTROLLER

    def _set_controller_epoch(self, value: bytes | None, _revision: int) -> Changed:
        self.controller_epoch = 0 if value is None else decode_controller_epoch(value)
        return _CONTROLLER

    def _set_cluster(self, value: bytes | None, _revision: int) -> Changed:
        self.cluster_id = None if value is None else decode_cluster(value)
        return _CLUSTER

    def _set_producer_ids(self, value: bytes | None, _revision: int) -> Changed:
        self.next_producer_id = 0 if value is None else decode_producer_ids(value)
        return _NOTHING

    def _set_decoy_secret(self, value: bytes | None, _revision: int) -> Changed:
        self.users.set_decoy_secret(value)
        return _USERS

    def _set_token_secret(self, value: bytes | None, _revision: int) -> Changed:
        self.tokens.set_secret_check(value)
        return _TOKEN_SECRET


_SINGLE_KEYS: Mapping[str, Callable[[ClusterImage, bytes | None, int], Changed]] = {
    keys.CONTROLLER_KEY: ClusterImage._set_controller,
    keys.CONTROLLER_EPOCH_KEY: ClusterImage._set_controller_epoch,
    keys.CLUSTER_KEY: ClusterImage._set_cluster,
    keys.PRODUCER_IDS_KEY: ClusterImage._set_producer_ids,
    keys.DECOY_SECRET_KEY: ClusterImage._set_decoy_secret,
    keys.TOKEN_SECRET_KEY: ClusterImage._set_token_secret,
    keys.ACL_VERSION_KEY: ClusterImage._set_acl_version,
    keys.ROLES_KEY: ClusterImage._set_roles,
}


def _metric_name(name: str) -> str:
    """Returns the name that metrics use. Kafka's metric names cannot contain dots, so topics that
    differ only in them would share metrics."""
    return name.replace(".", "_")


def _merged(changes: Iterable[Changed]) -> Changed:
    kept = [change for change in changes if change]
    topics: dict[str, TopicChange] = {}
    for change in kept:
        for topic in change.topics:
            # A large topic changes key by key. Report only its first and its last state.
            first = topics.get(topic.name, topic)
            topics[topic.name] = TopicChange(topic.name, first.before, topic.after)
    return Changed(
        tuple(topics.values()),
        tuple(broker for change in kept for broker in change.brokers),
        any(change.controller for change in kept),
        any(change.configs for change in kept),
        any(change.cluster for change in kept),
        any(change.users for change in kept),
        any(change.acls for change in kept),
        any(change.acls_seen for change in kept),
        any(change.quotas for change in kept),
        tuple(token_id for change in kept for token_id in change.tokens),
        any(change.token_secret for change in kept),
    )
