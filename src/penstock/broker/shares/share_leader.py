"""Share groups on this broker: the sessions of their members, and the partitions that they use.

A partition has a `LedPartition` from the first share fetch on, until no group uses it, or until the
leadership ends. Partitions that share groups do not use cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.large_batches import LargeBatches
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.shares.ack_answers import ShareCounters
from penstock.broker.shares.far_schedules import FarCounters
from penstock.broker.shares.led_partition import LedPartition, Surroundings
from penstock.broker.shares.letter_sender import LetterSender
from penstock.broker.shares.parked_fetch import ParkedFetch
from penstock.broker.shares.record_scans import ScanCounters
from penstock.metadata.image import Changed
from penstock.ports import Env
from penstock.shares.priorities import PriorityTurns
from penstock.shares.sessions import (
    Connection,
    ConnectionClosed,
    Effect,
    Event,
    GroupIdle,
    Proceed,
    Refuse,
    ReleaseRecords,
    SessionKey,
    SharedPartition,
    ShareSessions,
)
from penstock.shares.settings import ShareSettings
from penstock.shares.state_port import ShareState
from penstock.wire.errors import ErrorCode, KafkaError

_DEFAULTS: Final = ShareSettings()


class ShareLeader:
    """See the module's docstring."""

    def __init__(
        self,
        env: Env,
        replicas: Replicas,
        sessions_max: int,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        threads: LargeBatches,
    ) -> None:
        self.state: ShareState | None = None
        """Set when the share coordinator can be reached. Until then all loads fail."""
        self.letter_sender: LetterSender | None = None
        """Set when the broker is wired. Until then dead letters wait."""
        self.settings_of: Callable[[str], ShareSettings] = lambda _: _DEFAULTS
        """The settings of a group."""
        self.counters = ShareCounters()
        self.scans = ScanCounters()
        self.far = FarCounters()
        self.sessions = ShareSessions(sessions_max)
        self._env = env
        self._around = Surroundings(
            env,
            self._require_state,
            self._require_letter_sender,
            self._settings,
            spawn,
            lambda group_id: self.sessions.sessions_of(group_id) > 0,
            self.counters,
            self._forget,
            threads,
            self.scans,
            self.far,
            self._on_letters_dropped,
        )
        self._letters_dropped: Callable[[HostedPartition, str], None] = lambda _, __: None
        self._led: dict[SharedPartition, LedPartition] = {}
        self._parked: dict[SessionKey, ParkedFetch[Any]] = {}
        self._turns: dict[tuple[str, bytes], PriorityTurns] = {}
        replicas.role_changes.on_resigned(self._on_resigned)

    def __iter__(self) -> Iterator[LedPartition]:
        return iter(list(self._led.values()))

    def on_letters_dropped(self, listener: Callable[[HostedPartition, str], None]) -> None:
        """Calls the listener when the share partition of a group with a dead-letter topic was
        dropped, and must be loaded again even if no member comes."""
        self._letters_dropped = listener

    # Partitions

    def lead(self, hosted: HostedPartition) -> LedPartition:
        """Returns the share groups of a partition. Raises `KafkaError` unless this broker leads
        it."""
        term = hosted.require_leader()
        key = SharedPartition(hosted.topic_id, hosted.index)
        led = self._led.get(key)
        if led is not None and (led.term is not term or led.hosted is not hosted):
            self._close(key, led)
            led = None
        if led is None:
            led = self._led[key] = LedPartition(self._around, hosted, term)
        return led

    def find(self, key: SharedPartition) -> LedPartition | None:
        """Returns the share groups of a partition, if they are in memory."""
        return self._led.get(key)

    def _on_resigned(self, hosted: HostedPartition) -> None:
        key = SharedPartition(hosted.topic_id, hosted.index)
        led = self._led.get(key)
        if led is not None and (led.hosted is not hosted or hosted.leadership is not led.term):
            self._close(key, led)

    def _close(self, key: SharedPartition, led: LedPartition) -> None:
        del self._led[key]
        led.close()

    def _forget(self, led: LedPartition) -> None:
        key = SharedPartition(led.hosted.topic_id, led.hosted.index)
        if self._led.get(key) is led:
            self._close(key, led)

    def _settings(self, group_id: str) -> ShareSettings:
        return self.settings_of(group_id)

    def _on_letters_dropped(self, hosted: HostedPartition, group_id: str) -> None:
        self._letters_dropped(hosted, group_id)

    def _require_state(self) -> ShareState:
        if self.state is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "this broker does not know the share coordinator yet: try again",
            )
        return self.state

    def _require_letter_sender(self) -> LetterSender:
        if self.letter_sender is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the broker is starting")
        return self.letter_sender

    def on_change(self, changed: Changed) -> None:
        """The cluster has changed: the settings of groups may have."""
        if changed.configs and self._led:
            for led in self:
                led.refresh_settings()

    def turns(self, group_id: str, topic_id: bytes, levels: int) -> PriorityTurns:
        """Returns which level of priority of a topic is next. They are forgotten when the group
        has no session here."""
        found = self._turns.get((group_id, topic_id))
        if found is None or found.levels != levels:
            found = self._turns[group_id, topic_id] = PriorityTurns(levels)
        return found

    # Sessions

    def on_request(self, event: Event) -> tuple[Proceed | Refuse, list[Effect]]:
        """Returns the verdict about a request, and what to do after its acknowledgements."""
        if not isinstance(event, ConnectionClosed):
            # The member no longer waits for an earlier fetch: it may use another connection.
            self._end_parked(event.key)
        verdict, *later = self.sessions.handle(event)
        assert isinstance(verdict, Proceed | Refuse)
        return verdict, later

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case ReleaseRecords():
                    self._end_parked(effect.key)
                    self._release(effect)
                case GroupIdle():
                    for led in self:
                        led.on_idle(effect.group_id)
                    for key in [each for each in self._turns if each[0] == effect.group_id]:
                        del self._turns[key]

    def on_closed(self, connection: Connection) -> None:
        """A connection has closed: its sessions end."""
        if len(self.sessions):
            self.carry_out(self.sessions.handle(ConnectionClosed(connection)))

    def _release(self, effect: ReleaseRecords) -> None:
        group_id, member_id = effect.key
        for key in effect.partitions:
            led = self._led.get(key)
            if led is not None:
                led.release(group_id, member_id, with_backoff=effect.with_backoff)

    # Share fetches that wait

    def park(self, key: SessionKey, parked: ParkedFetch[Any]) -> None:
        """Ends the fetch with its session. A member has one fetch at a time."""
        self._end_parked(key)
        self._parked[key] = parked
        parked.future.add_done_callback(lambda _: self._unpark(key, parked))

    @property
    def parked(self) -> int:
        return len(self._parked)

    def _unpark(self, key: SessionKey, parked: ParkedFetch[Any]) -> None:
        if self._parked.get(key) is parked:
            del self._parked[key]

    def _end_parked(self, key: SessionKey) -> None:
        parked = self._parked.pop(key, None)
        if parked is not None:
            parked.end_without_records()
