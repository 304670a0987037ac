"""The topics behind queues and exchanges: created when they are declared, and what they can do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.celery.queue_arguments import LENGTH_MAX, LENGTH_POLICY, QueueArguments
from penstock.celery.settings import LOG_PARTITIONS, LOG_RETENTION_MS, Settings
from penstock.client.blocking.admin import Admin
from penstock.client.errors import BrokerError, TopicNotFound
from penstock.client.queues.job_headers import TIMED, priority_levels
from penstock.ports import Clock
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

_FRESH_S: Final = 30.0
_log: Final = logging.getLogger("penstock.celery")


class Abilities(NamedTuple):
    """What the brokers do for a topic, beyond a plain queue."""

    timed: bool
    """Whether a record can have a due time."""
    levels: int
    """How many levels of priority there are; 0 for none."""


class Topics:
    """Creates topics, and remembers what was asked about them."""

    def __init__(self, admin: Admin, settings: Settings, clock: Clock) -> None:
        self._admin = admin
        self._settings = settings
        self._clock = clock
        self._known: set[str] = set()
        self._declared: set[str] = set()
        self._abilities: dict[str, tuple[float, Abilities]] = {}

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic. Topics that exist are remembered, others are not: another
        client may create them at any time."""
        if topic in self._known:
            return True
        try:
            self._admin.describe_topic(topic)
        except TopicNotFound:
            return False
        self._known.add(topic)
        return True

    def ensure_queue(self, topic: str, arguments: QueueArguments) -> None:
        """Creates the topic of a queue, with due times. With a highest priority, the topic gets
        levels, too, and with a greatest length, this limit. Brokers that do not have these
        settings create a plain topic."""
        given = self._settings.topic_configs
        configs = {TIMED: "true", **arguments.topic_configs(), **given}
        if topic not in self._declared:
            self._declared.add(topic)
            self._warn(topic, arguments, configs)
        levels = priority_levels(configs)
        partitions = self._settings.partitions
        try:
            self._ensure(topic, max(partitions, levels) if levels else partitions, configs)
        except BrokerError as error:
            if error.code != ErrorCode.INVALID_CONFIG:
                raise
            self._ensure(topic, partitions, given)
            _log.warning(
                "topic %s was created without the settings for due times, priorities and limits, "
                "because the broker refused them: %s",
                topic,
                error,
            )

    def _warn(self, topic: str, arguments: QueueArguments, configs: Mapping[str, str]) -> None:
        """Says once what of a declaration has no effect."""
        if arguments.ignored:
            names = ", ".join(arguments.ignored)
            _log.warning("topic %s: these queue arguments have no effect: %s", topic, names)
        if arguments.length_max is None or not self.exists(topic):
            return
        wanted = {name: configs[name] for name in (LENGTH_MAX, LENGTH_POLICY)}
        entries = self._admin.describe_configs(topic=topic)
        found = {name: entries[name].value for name in wanted if name in entries}
        if found != wanted:
            settings = " ".join(f"--config {name}={value}" for name, value in wanted.items())
            _log.warning(
                "topic %s exists, but its limits differ from those of the queue's declaration; to "
                "change them: penstock topic alter %s %s",
                topic,
                topic,
                settings,
            )

    def ensure_log(self, topic: str, *, is_keyed: bool) -> None:
        """Creates the log of an exchange. Only with routing keys it has several partitions."""
        configs = {"retention.ms": str(LOG_RETENTION_MS)}
        self._ensure(topic, LOG_PARTITIONS if is_keyed else 1, configs)

    def ensure_compacted(self, topic: str) -> None:
        self._ensure(topic, 1, {"cleanup.policy": "compact"})

    def _ensure(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        if self.exists(topic):
            return
        try:
            self._admin.create_topic(topic, partitions, configs=configs)
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        self._known.add(topic)

    def delete(self, topic: str) -> None:
        self.forget(topic)
        try:
            self._admin.delete_topic(topic)
        except TopicNotFound:
            return

    def forget(self, topic: str) -> None:
        """The topic may be gone: it is looked up again."""
        self._known.discard(topic)
        self._abilities.pop(topic, None)

    def abilities(self, topic: str) -> Abilities:
        """Returns what the topic can do. Looked up again after half a minute."""
        now = self._clock.monotonic()
        found = self._abilities.get(topic)
        if found is not None and now - found[0] < _FRESH_S:
            return found[1]
        entries = self._admin.describe_configs(topic=topic)
        values = {name: entry.value or "" for name, entry in entries.items()}
        abilities = Abilities(values.get(TIMED) == "true", priority_levels(values))
        self._abilities[topic] = now, abilities
        return abilities

    def ends(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns where the logs end now."""
        found = self._admin.list_offsets(dict.fromkeys(places, "latest"))
        return {place: 0 if each is None else each.offset for place, each in found.items()}
