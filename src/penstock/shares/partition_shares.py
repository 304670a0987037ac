"""The share partitions of one partition on its leader, one for each group that uses it. Pure.

It passes what share partitions write to its shell, and outcomes back. A share partition is in
memory only while its group uses it: the shell loads its image from the share coordinator, and it is
dropped when the group has no session here and nothing is acquired or under way.

    load(group_id, settings, image, now)    the shell has loaded the image of a group
    handle(group_id, event, now)            an event of one share partition
    on_stored, on_log_start, on_idle        reports of the shell
    drop(group_id)                          the leadership has ended, or a write was refused
    suspend(group_id)                       the outcome of a write is unknown: members keep their
                                            locks if this leader loads the state again

All of them return effects. Those of a share partition come with its group, as `GroupEffect`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.coordination.effects import Now
from penstock.shares import events
from penstock.shares.carried_locks import CarriedLocks
from penstock.shares.events import LogStartMoved, Write, WriteCommitted, WriteFailed
from penstock.shares.image import Delta, ShareImage
from penstock.shares.settings import ShareSettings
from penstock.shares.share_partition import SharePartition
from penstock.wire.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class GroupEffect:
    """An effect of a group's share partition, other than `Write`."""

    group_id: str
    effect: events.Effect


@dataclass(frozen=True, slots=True)
class Store:
    """Store the delta at the share coordinator, and report the outcome with `on_stored`."""

    group_id: str
    load_id: int
    """A share partition that was dropped and loaded again counts its writes from 0 again."""
    write_id: int
    delta: Delta


Effect = GroupEffect | Store


@dataclass(slots=True)
class _Live:
    partition: SharePartition
    load_id: int
    is_idle: bool = False


class PartitionShares:
    """See the module's docstring."""

    def __init__(self, log_start_offset: int) -> None:
        self._log_start_offset = log_start_offset
        self._live: dict[str, _Live] = {}
        self._locks: dict[str, CarriedLocks] = {}
        """Of groups that are to be loaded again."""
        self._loads = 0
        self._effects: list[Effect] = []

    # What others read

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._live

    @property
    def live_groups(self) -> list[str]:
        """The groups whose share partitions are in memory."""
        return sorted(self._live)

    def partition(self, group_id: str) -> SharePartition:
        """Returns the share partition, to be read only.

        Raises `KafkaError` if it is not in memory.
        """
        return self._require(group_id).partition

    @property
    def is_unused(self) -> bool:
        """Whether no share partition is in memory, nor anything of one."""
        return not (self._live or self._locks)

    def is_same_load(self, group_id: str, load_id: int) -> bool:
        live = self._live.get(group_id)
        return live is not None and live.load_id == load_id

    # Events

    def load(
        self, group_id: str, settings: ShareSettings, image: ShareImage, now: Now
    ) -> list[Effect]:
        """Adds the share partition of a group. `image` is only read; its start is decided."""
        self._loads += 1
        partition = SharePartition(settings, image, now)
        locks = self._locks.pop(group_id, None)
        if locks is not None:
            partition.put_back(locks)
        live = self._live[group_id] = _Live(partition, self._loads)
        self._route(group_id, live, partition.on_loaded(now))
        self._move_start(group_id, live, now)
        return self._take()

    def use(self, group_id: str) -> bool:
        """The group has a session here. Returns whether its share partition is in memory."""
        live = self._live.get(group_id)
        if live is not None:
            live.is_idle = False
        return live is not None

    def handle(self, group_id: str, event: events.Event, now: Now) -> list[Effect]:
        """Raises `KafkaError` if the share partition is not in memory."""
        live = self._require(group_id)
        self._route(group_id, live, live.partition.handle(event, now))
        self._drop_if_at_rest(group_id, live)
        return self._take()

    def on_stored(
        self, group_id: str, load_id: int, write_id: int, error: ErrorCode, now: Now
    ) -> list[Effect]:
        """The outcome of a `Store`. It has no effect if the share partition was dropped since."""
        if not self.is_same_load(group_id, load_id):
            return []
        event: events.Event = WriteCommitted(write_id)
        if error is not ErrorCode.NONE:
            event = WriteFailed(write_id, error)
        return self.handle(group_id, event, now)

    def on_idle(self, group_id: str) -> None:
        """The group has no session on this broker any more."""
        self._locks.pop(group_id, None)
        live = self._live.get(group_id)
        if live is not None:
            live.is_idle = True
            self._drop_if_at_rest(group_id, live)

    def on_log_start(self, log_start_offset: int, now: Now) -> list[Effect]:
        if log_start_offset > self._log_start_offset:
            self._log_start_offset = log_start_offset
            for group_id, live in self._live.items():
                self._move_start(group_id, live, now)
        return self._take()

    def drop(self, group_id: str) -> None:
        """Forgets a share partition, and everything that is not stored."""
        self._live.pop(group_id, None)

    def suspend(self, group_id: str) -> None:
        """Forgets a share partition, except which member has which record.

        That is kept until `load`, or until the group has no session here.
        """
        if locks := self._require(group_id).partition.locks:
            self._locks[group_id] = locks
        self.drop(group_id)

    def has_locks(self, group_id: str) -> bool:
        """Whether members of a group that is not in memory have records."""
        return group_id in self._locks

    def end_locks(self, group_id: str, member_id: str, now: Now) -> None:
        """A member of a group that is not in memory has gone."""
        if (locks := self._locks.get(group_id)) is not None:
            self._locks[group_id] = locks.ended(member_id, now.ticks_ms)

    # Small steps

    def _move_start(self, group_id: str, live: _Live, now: Now) -> None:
        moved = LogStartMoved(self._log_start_offset)
        self._route(group_id, live, live.partition.handle(moved, now))

    def _route(self, group_id: str, live: _Live, effects: Iterable[events.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Write):
                self._effects.append(Store(group_id, live.load_id, effect.write_id, effect.delta))
            else:
                self._effects.append(GroupEffect(group_id, effect))

    def _require(self, group_id: str) -> _Live:
        live = self._live.get(group_id)
        if live is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"group {group_id} does not use this partition here: send a ShareFetch first",
            )
        return live

    def _drop_if_at_rest(self, group_id: str, live: _Live) -> None:
        if live.is_idle and live.partition.is_at_rest:
            self._live.pop(group_id, None)

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
