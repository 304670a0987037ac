"""All share groups of one partition, on its leader: share partitions and one state log. Pure.

It passes what share partitions write to the state writer, and outcomes back. A share partition is
in memory only while its group uses it. It is built from the image that the state writer has, and
dropped when the group has no session here and nothing is acquired or under way.

    handle(group_id, event, now)        an event of one share partition
    begin_reset, on_idle                the state is set or removed; the group has no session here
    on_turn_ended, on_appended, on_append_failed, on_log_start     reports of the shell

All of them return effects. Those of a share partition come with its group, as `GroupEffect`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.coordination.effects import Append, Now, Token
from penstock.shares import events, state_writer
from penstock.shares.events import LogStartMoved, Write, WriteCommitted, WriteFailed
from penstock.shares.image import ShareImage
from penstock.shares.settings import ShareSettings
from penstock.shares.share_partition import SharePartition
from penstock.shares.state_writer import (
    AppendCommitted,
    AppendFailed,
    FlushSoon,
    Reset,
    ResetDone,
    StateWriter,
    Store,
    Stored,
    StoredGroup,
    TrimLog,
    TurnEnded,
    WriterSettings,
)
from penstock.wire.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class GroupEffect:
    """An effect of a group's share partition, other than `Write`."""

    group_id: str
    effect: events.Effect


Effect = GroupEffect | FlushSoon | Append | TrimLog | ResetDone


class PartitionShares:
    """See the module's docstring."""

    def __init__(
        self,
        settings_of: Callable[[str], ShareSettings],
        writer_settings: WriterSettings,
        groups: dict[str, StoredGroup],
        end_offset: int,
        log_start_offset: int,
    ) -> None:
        """`groups` is what the state log has, and `end_offset` where the state log ends."""
        self._settings_of = settings_of
        self._writer = StateWriter(writer_settings, groups, end_offset)
        self._log_start_offset = log_start_offset
        self._live: dict[str, SharePartition] = {}
        self._idle: set[str] = set()
        self._resetting: dict[Token, str] = {}
        self._effects: list[Effect] = []

    # What others read

    @property
    def groups(self) -> list[str]:
        return sorted(self._writer.groups)

    @property
    def live_groups(self) -> list[str]:
        """The groups whose share partitions are in memory."""
        return sorted(self._live)

    def start_offset(self, group_id: str) -> int:
        """Returns the first offset that is not done. Raises `KafkaError` for an unknown group."""
        live = self._live.get(group_id)
        if live is not None:
            return live.start_offset
        return max(self._image(group_id).start_offset, self._log_start_offset)

    def next_fetch_offset(self, group_id: str, now: Now) -> int | None:
        """Returns where the group may acquire something. Effects come with the next event."""
        return self._partition(group_id, now).next_fetch_offset(now)

    # Events

    def handle(self, group_id: str, event: events.Event, now: Now) -> list[Effect]:
        """Raises `KafkaError` if the group has no state here, or is being reset."""
        if isinstance(event, events.Acquire):
            self._idle.discard(group_id)
        self._route(group_id, self._partition(group_id, now).handle(event, now), now)
        self._drop_if_at_rest(group_id)
        return self._take()

    def on_idle(self, group_id: str) -> list[Effect]:
        """The group has no session on this broker any more."""
        self._idle.add(group_id)
        self._drop_if_at_rest(group_id)
        return self._take()

    def begin_reset(
        self, token: Token, group_id: str, image: ShareImage | None, now: Now
    ) -> list[Effect]:
        """Sets the state of a group, or removes it. `ResetDone` is the answer."""
        live = self._live.get(group_id)
        if group_id in self._resetting.values() or not (live is None or live.is_at_rest):
            return [ResetDone(token, ErrorCode.NON_EMPTY_GROUP)]
        self._live.pop(group_id, None)
        self._idle.discard(group_id)
        self._resetting[token] = group_id
        self._write(Reset(token, group_id, image), now)
        return self._take()

    def on_log_start(self, log_start_offset: int, now: Now) -> list[Effect]:
        self._log_start_offset = log_start_offset
        for group_id, partition in self._live.items():
            self._route(group_id, partition.handle(LogStartMoved(log_start_offset), now), now)
        return self._take()

    def on_turn_ended(self, now: Now) -> list[Effect]:
        self._write(TurnEnded(), now)
        return self._take()

    def on_appended(self, append_id: int, base_offset: int, now: Now) -> list[Effect]:
        self._write(AppendCommitted(append_id, base_offset), now)
        return self._take()

    def on_append_failed(self, append_id: int, error: ErrorCode, now: Now) -> list[Effect]:
        self._write(AppendFailed(append_id, error), now)
        return self._take()

    # Between share partitions and the state writer

    def _route(self, group_id: str, effects: Iterable[events.Effect], now: Now) -> None:
        for effect in effects:
            if isinstance(effect, Write):
                self._write(Store(group_id, effect.write_id, effect.delta), now)
            else:
                self._effects.append(GroupEffect(group_id, effect))

    def _write(self, event: state_writer.Event, now: Now) -> None:
        for effect in self._writer.handle(event, now):
            if isinstance(effect, Stored):
                self._on_stored(effect, now)
                continue
            if isinstance(effect, ResetDone):
                del self._resetting[effect.token]
            self._effects.append(effect)

    def _on_stored(self, stored: Stored, now: Now) -> None:
        event: events.Event = WriteCommitted(stored.write_id)
        if stored.error is not ErrorCode.NONE:
            event = WriteFailed(stored.write_id, stored.error)
        # It is in memory: a share partition with a write under way is never dropped.
        partition = self._live[stored.group_id]
        self._route(stored.group_id, partition.handle(event, now), now)
        self._drop_if_at_rest(stored.group_id)

    # Share partitions in memory

    def _partition(self, group_id: str, now: Now) -> SharePartition:
        live = self._live.get(group_id)
        if live is not None:
            return live
        image = self._image(group_id)
        live = self._live[group_id] = SharePartition(self._settings_of(group_id), image, now)
        self._route(group_id, live.on_loaded(now), now)
        if self._log_start_offset > live.start_offset:
            self._route(group_id, live.handle(LogStartMoved(self._log_start_offset), now), now)
        return live

    def _image(self, group_id: str) -> ShareImage:
        group = self._writer.groups.get(group_id)
        if group is None or group_id in self._resetting.values():
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"group {group_id} has no state for this partition, or it is being reset: retry",
            )
        return group.image

    def _drop_if_at_rest(self, group_id: str) -> None:
        live = self._live.get(group_id)
        if live is not None and group_id in self._idle and live.is_at_rest:
            del self._live[group_id]
            self._idle.discard(group_id)

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
