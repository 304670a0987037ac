"""The state that the modules of a shard share: its image, its groups, effects, appends in flight.

Committed records reach the image through `appends` only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.coordination.effects import Append, EffectList, Now
from penstock.coordination.in_flight import AppendsInFlight
from penstock.coordination.invariants import InvariantViolated
from penstock.groups.config import (
    ConsumerGroupConfig,
    ConsumerGroupSettings,
    GroupConfig,
    ShareGroupConfig,
    ShareGroupSettings,
)
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.topics import NoTopics, Topics
from penstock.groups.effects import OwnEffect, TimerKey, TimerKind
from penstock.groups.group import Group, Member
from penstock.groups.image import NO_PRODUCER, ShardImage
from penstock.groups.share.group import ShareGroup
from penstock.groups.topic_readers import TopicReaders
from penstock.wire.messages.base import Response

AnyGroup: TypeAlias = Group | ConsumerGroup
"""A group of the classic or of the new protocol."""


class ConsumerContext:
    """What consumer groups of the new protocol depend on: settings, and the topics to assign."""

    def __init__(
        self,
        config: ConsumerGroupConfig | None = None,
        topics: Topics | None = None,
        settings_of: Callable[[str], ConsumerGroupSettings] | None = None,
    ) -> None:
        """`settings_of` returns the settings of a group; without it, all have those of `config`."""
        self.config: Final = config or ConsumerGroupConfig()
        self.topics: Final[Topics] = topics or NoTopics()
        self._settings_of = settings_of

    def settings_of(self, group_id: str) -> ConsumerGroupSettings:
        return self.config.settings if self._settings_of is None else self._settings_of(group_id)


class ShareContext:
    """What share groups depend on in addition: their settings."""

    def __init__(
        self,
        config: ShareGroupConfig | None = None,
        settings_of: Callable[[str], ShareGroupSettings] | None = None,
    ) -> None:
        """`settings_of` returns the settings of a group; without it, all have those of `config`."""
        self.config: Final = config or ShareGroupConfig()
        self._settings_of = settings_of

    def settings_of(self, group_id: str) -> ShareGroupSettings:
        return self.config.settings if self._settings_of is None else self._settings_of(group_id)


@dataclass(slots=True)
class GroupCounters:
    """What the groups of a shard did, for metrics."""

    rebalances: int = 0
    """Generations with members that have begun, and assignments of consumer and share groups."""
    consumer_rebalances: int = 0
    """Assignments of consumer groups of the new protocol."""
    upgrades: int = 0
    """Classic groups with members that became groups of the new protocol."""
    downgrades: int = 0
    regexes_outgrown: int = 0
    """Regular expressions that took too long to match, or matched too many topics."""

    def add(self, other: GroupCounters) -> None:
        self.rebalances += other.rebalances
        self.consumer_rebalances += other.consumer_rebalances
        self.upgrades += other.upgrades
        self.downgrades += other.downgrades
        self.regexes_outgrown += other.regexes_outgrown


class ShardState:
    def __init__(
        self,
        config: GroupConfig,
        new_member_id: Callable[[str], str],
        batch_bytes_max: Callable[[], int],
        consumers: ConsumerContext,
        shares: ShareContext,
    ) -> None:
        self.config: Final = config
        self.consumers: Final = consumers
        self.shares: Final = shares
        self.new_member_id: Final = new_member_id
        self.batch_bytes_max: Final = batch_bytes_max
        self.image: Final = ShardImage()
        self.groups: Final[dict[str, AnyGroup]] = {}
        self.share_groups: Final[dict[str, ShareGroup]] = {}
        """Share groups. A group id is in this dict, in the other, or in none."""
        self.share_calls = 0
        """How many calls of the share coordinator have begun."""
        self.effects: Final = EffectList[Response, TimerKey, OwnEffect]()
        self.appends: Final = AppendsInFlight(self, self.effects, self._replay, batch_bytes_max)
        self.readers: Final = TopicReaders()
        self.counters: Final = GroupCounters()

    def _replay(self, append: Append) -> None:
        producer_id = NO_PRODUCER if append.producer is None else append.producer.producer_id
        for record in append.records:
            self.image.replay(record.key, record.value, producer_id)

    def classic(self, group_id: str) -> Group | None:
        """Returns the group if it exists and is of the classic protocol."""
        group = self.groups.get(group_id)
        return group if isinstance(group, Group) else None

    def require_classic(self, group_id: str) -> Group:
        """Returns a group that is known to be of the classic protocol."""
        group = self.groups[group_id]
        if not isinstance(group, Group):
            raise InvariantViolated(f"{group_id} is not a classic group")
        return group

    def consumer(self, group_id: str) -> ConsumerGroup | None:
        """Returns the group if it exists and is of the new protocol."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    # Timers

    def set_join_timer(self, group: Group, at_ms: int) -> None:
        group.join_timer_at_ms = at_ms
        self.effects.set_timer(TimerKey(TimerKind.JOIN, group.group_id), at_ms)

    def cancel_join_timer(self, group: Group) -> None:
        if group.join_timer_at_ms is not None:
            group.join_timer_at_ms = None
            self.effects.cancel_timer(TimerKey(TimerKind.JOIN, group.group_id))

    def set_sync_timer(self, group: Group, at_ms: int) -> None:
        group.sync_timer_at_ms = at_ms
        self.effects.set_timer(TimerKey(TimerKind.SYNC, group.group_id), at_ms)

    def cancel_sync_timer(self, group: Group) -> None:
        if group.sync_timer_at_ms is not None:
            group.sync_timer_at_ms = None
            self.effects.cancel_timer(TimerKey(TimerKind.SYNC, group.group_id))

    def extend_session(
        self, group: Group, member: Member, now: Now, timeout_ms: int | None = None
    ) -> None:
        """Restarts the member's session timeout, because the member made contact.

        A timer that is set for an earlier time stays: when it fires, it is set again for the rest.
        So heartbeats, which are frequent, need no timer changes.
        """
        if timeout_ms is None:
            timeout_ms = member.session_timeout_ms
        member.session_ends_ms = now.ticks_ms + timeout_ms
        timer_at_ms = member.session_timer_at_ms
        if timer_at_ms is None or timer_at_ms > member.session_ends_ms:
            self.set_session_timer(group, member)

    def set_session_timer(self, group: Group, member: Member) -> None:
        member.session_timer_at_ms = member.session_ends_ms
        self.effects.set_timer(
            TimerKey(TimerKind.SESSION, group.group_id, member.member_id), member.session_ends_ms
        )

    def cancel_session_timer(self, group: Group, member: Member) -> None:
        if member.session_timer_at_ms is not None:
            member.session_timer_at_ms = None
            self.effects.cancel_timer(TimerKey(TimerKind.SESSION, group.group_id, member.member_id))
