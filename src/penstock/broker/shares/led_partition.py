"""The share groups of one partition while this broker leads it.

It carries out the effects of `PartitionShares`: writes go to the share coordinator, timers to the
event loop, answers to requests. A share partition is loaded when a session first needs it. Share
fetches that wait are attempted again when something may be acquired, in the order of their arrival.

A leadership that has ended is never used again: a later one has a `LedPartition` of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from penstock.broker.coordinators.shard_timers import ShardTimers, ticks_ms
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.large_batches import LargeBatches
from penstock.broker.partitions.parked_requests import next_key
from penstock.broker.shares.ack_answers import AckAnswers, ShareCounters
from penstock.broker.shares.acquired_reads import AcquiredReads, Given, Wanted
from penstock.broker.shares.dead_letters import DeadLetters
from penstock.broker.shares.due_scan import DueScan
from penstock.broker.shares.far_schedules import FarCounters, FarSchedules
from penstock.broker.shares.length_limits import QueueLength, until_changed
from penstock.broker.shares.letter_sender import LetterSender
from penstock.broker.shares.promoted_marks import PromotedMarks
from penstock.broker.shares.record_scans import RecordScans, ScanCounters
from penstock.broker.shares.start_offsets import decide_start
from penstock.coordination.effects import Now, SetTimer
from penstock.partition.leadership import Leadership
from penstock.ports import Env
from penstock.shares import events
from penstock.shares.events import (
    AckBatch,
    Acknowledge,
    Acknowledged,
    Acquired,
    ReleaseMember,
    SettingsChanged,
    TakeProducerId,
    TimerFired,
    WakeFetches,
    WriteDeadLetters,
)
from penstock.shares.image import ShareImage
from penstock.shares.loading import LogEnd, cut_lost, has_start, start_delta
from penstock.shares.partition_shares import Effect, PartitionShares, Store
from penstock.shares.settings import ShareSettings
from penstock.shares.share_partition import SharePartition
from penstock.shares.state_port import SharePartitionId, ShareState
from penstock.wire.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)

SURE: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""Outcomes of a write that are known. After any other, what is in memory is out of date: the share
coordinator has another state or a later leader, or it is unknown whether the write was stored."""
_REFUSED: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""There is another leader or another state, so locks mean nothing any more."""
RELOAD_PAUSE_S: Final = 0.05
"""Before a state is read again because a write has failed: the next one may fail as fast."""


class Waiting(Protocol):
    """A share fetch that waits for this partition."""

    def attempt(self, woken: LedPartition) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all led partitions of a broker share."""

    env: Env
    state: Callable[[], ShareState]
    """Raises `KafkaError` if there is no share coordinator."""
    letter_sender: Callable[[], LetterSender]
    """Raises `KafkaError` until the broker is wired."""
    settings_of: Callable[[str], ShareSettings]
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    has_session: Callable[[str], bool]
    counters: ShareCounters
    on_over: Callable[[LedPartition], None]
    """Called when no group uses the partition any more, or after a bug."""
    threads: LargeBatches
    """For scans of records."""
    scans: ScanCounters
    far: FarCounters
    on_letters_dropped: Callable[[HostedPartition, str], None]
    """Called when the share partition of a group with a dead-letter topic was dropped."""


class LedPartition:
    """See the module's docstring."""

    def __init__(self, around: Surroundings, hosted: HostedPartition, term: Leadership) -> None:
        self._around = around
        self.hosted = hosted
        self.term = term
        self.is_closed = False
        self._shares = PartitionShares(hosted.log.log_start_offset)
        self._settings: dict[str, ShareSettings] = {}
        self._timers: ShardTimers[str] = ShardTimers(around.env.clock, self._on_timer)
        self._loading: set[str] = set()
        self._load_errors: dict[str, KafkaError] = {}
        self._answers = AckAnswers(around.counters)
        self._late: dict[str, list[Acknowledge]] = {}
        """Acknowledgements that wait until a share partition is loaded again."""
        self._waiting: dict[str, dict[Waiting, None]] = {}
        self._to_wake: dict[str, None] = {}
        self._key = next_key()
        self._idle: set[str] = set()
        self._letters = DeadLetters(
            around.env,
            hosted,
            around.letter_sender,
            around.counters.letters,
            self._settings.get,
            self._handle,
            lambda work: around.spawn(self._guarded(work)),
        )
        self._length = QueueLength(hosted, around.counters.lengths)
        self.schedules, self._reads = self._reading()

    def _reading(self) -> tuple[FarSchedules, AcquiredReads]:
        around, hosted, shares = self._around, self.hosted, self._shares

        def spawn(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
            around.spawn(self._guarded(work))

        env, threads, counters = around.env, around.threads, around.scans
        schedules = FarSchedules(
            env,
            hosted,
            DueScan(env, hosted, threads, self.term.epoch),
            around.far,
            shares,
            self.now,
            self._handle,
            spawn,
        )
        reads = AcquiredReads(
            hosted,
            shares,
            self._settings,
            around.counters,
            RecordScans(env, hosted, threads, counters, spawn, self._wake),
            PromotedMarks(hosted, threads, counters, spawn, self._wake),
            self._length,
            schedules,
            self.now,
            self._carry_out,
            self._wake,
        )
        return schedules, reads

    def id_of(self, group_id: str) -> SharePartitionId:
        return SharePartitionId(group_id, self.hosted.topic_id, self.hosted.index)

    @property
    def groups(self) -> list[str]:
        return self._shares.live_groups

    def partition(self, group_id: str) -> SharePartition:
        return self._shares.partition(group_id)

    def now(self) -> Now:
        clock = self._around.env.clock
        return Now(ticks_ms(clock), clock.wall_ms())

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a task. A bug in it must not end the broker: what is in memory is dropped."""
        try:
            await work()
        except Exception:  # noqa: BLE001 - logged; members load the state again
            _log.exception(
                "a task of the share groups of %s-%d failed; discarding their state from memory, "
                "members load it again",
                self.hosted.topic,
                self.hosted.index,
            )
            self._around.on_over(self)

    # Loading

    def use(self, group_id: str) -> bool:
        """Returns whether the group's share partition is in memory. If not, begins to load it.

        Its window begins at the log start, at least: what is below cannot be read.
        """
        if self._shares.use(group_id):
            self._follow_log_start()
            return True
        if group_id not in self._loading:
            self._load_errors.pop(group_id, None)
            self._loading.add(group_id)
            self._around.spawn(self._guarded(partial(self._load, group_id)))
        return False

    def load_error(self, group_id: str) -> KafkaError | None:
        """Returns why the last load failed; None if none did, or another one has begun."""
        return self._load_errors.get(group_id)

    def require_loadable(self, group_id: str) -> None:
        """Raises the error of the last load, if there is one."""
        failure = self.load_error(group_id)
        if failure is not None:
            raise failure

    async def _load(self, group_id: str) -> None:
        if self._shares.has_locks(group_id):
            await self._around.env.clock.sleep(RELOAD_PAUSE_S)
        settings = self._around.settings_of(group_id)
        try:
            image = await self._image(group_id, settings)
        except EXPECTED_ERRORS as error:
            self._around.counters.loads_failed += 1
            failure = error if isinstance(error, KafkaError) else KafkaError(code_of(error))
            self._load_errors[group_id] = failure
        else:
            if not self.is_closed:
                self._settings[group_id] = settings
                self._carry_out(self._shares.load(group_id, settings, image, self.now()))
        self._loading.discard(group_id)
        for late in self._late.pop(group_id, ()):
            self._acknowledge(group_id, late)
        for waiting in list(self._waiting.get(group_id, ())):
            waiting.attempt(self)
        if not self._around.has_session(group_id):
            self.on_idle(group_id)
        self.refresh_settings()

    async def _image(self, group_id: str, settings: ShareSettings) -> ShareImage:
        state, share_partition, epoch = self._around.state(), self.id_of(group_id), self.term.epoch
        image = await state.read(share_partition, epoch)
        log = self.hosted.log
        if not has_start(image):
            start = await decide_start(
                self._around.env, self.hosted, self.term, settings.offset_reset
            )
            self._require_leading()
            delta = start_delta(image, start, log.epochs.epoch_at(start - 1))
            await state.write(share_partition, epoch, delta)
            image.apply(delta)
        else:
            self._require_leading()
            end = log.epochs.end_offset_for(image.end_leader_epoch, log.end_offset)
            if cut_lost(image, LogEnd(*end, log.end_offset)):
                await state.replace(share_partition, epoch, image)
        self._require_leading()
        return image

    def _require_leading(self) -> None:
        if self.is_closed or self.hosted.leadership is not self.term:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # Requests

    def acquire(self, group_id: str, wanted: Wanted) -> Given | None:
        """Returns records for a member. Raises one of `EXPECTED_ERRORS` if they cannot be read."""
        self._follow_log_start()
        return self._reads.acquire(group_id, wanted)

    def upper_offset(self, group_id: str) -> int:
        """Returns the offset below which the group may read."""
        return self._reads.upper_offset(group_id)

    def has_bytes(self, group_id: str, size: int) -> bool:
        """Whether about this many bytes may be acquired."""
        return self._reads.has_bytes(group_id, size)

    def acknowledge(
        self, group_id: str, member_id: str, batches: tuple[AckBatch, ...], is_renew: bool
    ) -> asyncio.Future[ErrorCode]:
        """Raises `KafkaError` if the share partition is not in memory, unless it is loaded again
        and members have records."""
        self._follow_log_start()
        token, answer = self._answers.add(group_id)
        event = Acknowledge(token, member_id, batches, is_renew)
        if group_id in self._loading and self._shares.has_locks(group_id):
            self._late.setdefault(group_id, []).append(event)
            return answer
        try:
            self._carry_out(self._shares.handle(group_id, event, self.now()))
        except KafkaError:
            self._answers.remove(token)
            raise
        return answer

    def _acknowledge(self, group_id: str, late: Acknowledge) -> None:
        try:
            self._carry_out(self._shares.handle(group_id, late, self.now()))
        except KafkaError as error:
            failure = self._load_errors.get(group_id, error)
            self._answers.give(late.token, failure.code)

    def release(self, group_id: str, member_id: str, *, with_backoff: bool) -> None:
        if group_id in self._shares:
            event = ReleaseMember(member_id, with_backoff)
            self._carry_out(self._shares.handle(group_id, event, self.now()))
        else:
            self._shares.end_locks(group_id, member_id, self.now())

    # Waiting

    def wait(self, group_id: str, waiting: Waiting) -> None:
        """Attempts the fetch again whenever something may be acquired, until `end_wait`."""
        if not self._waiting:
            self.hosted.listen_commits(self._key, self._on_commit)
        self._waiting.setdefault(group_id, {})[waiting] = None
        self._wake(group_id)  # Something may have become available since its last attempt.

    def end_wait(self, group_id: str, waiting: Waiting) -> None:
        of_group = self._waiting.get(group_id)
        if of_group is not None:
            of_group.pop(waiting, None)
            if not of_group:
                del self._waiting[group_id]
                if not self._waiting:
                    self.hosted.unlisten_commits(self._key)

    def _on_commit(self, _: HostedPartition) -> None:
        for group_id in self._waiting:
            self._wake(group_id)

    def _wake(self, group_id: str) -> None:
        if group_id in self._waiting:
            if not self._to_wake:
                asyncio.get_running_loop().call_soon(self._attempt_waiting)
            self._to_wake[group_id] = None

    def _attempt_waiting(self) -> None:
        to_wake, self._to_wake = self._to_wake, {}
        for group_id in to_wake:
            for waiting in list(self._waiting.get(group_id, ())):
                if self._reads.acquirable_at(group_id) is None:
                    break
                waiting.attempt(self)

    # Events

    def on_idle(self, group_id: str) -> None:
        """The group has no session on this broker."""
        if group_id in self._loading:
            return  # The end of the load looks again.
        self._load_errors.pop(group_id, None)
        if not self._length.is_limited or group_id not in self._shares:
            self._shares.on_idle(group_id)
            self._note_dropped(group_id)
        elif group_id not in self._idle:
            self._idle.add(group_id)
            epoch = self._shares.partition(group_id).state_epoch
            self._around.spawn(self._guarded(partial(self._keep_idle, group_id, epoch)))

    async def _keep_idle(self, group_id: str, epoch: int) -> None:
        """Keeps the share partition of a group without sessions, as long as its start matters."""
        shares, around = self._shares, self._around

        def is_kept() -> bool:
            return group_id in shares and not around.has_session(group_id)

        where = self.id_of(group_id)
        await until_changed(around.env.clock, around.state, where, epoch, self._length, is_kept)
        self._idle.discard(group_id)
        if is_kept():
            shares.on_idle(group_id)
            self._note_dropped(group_id)

    def refresh_settings(self) -> None:
        """Applies the settings of the groups, if they have changed."""
        for group_id in self._shares.live_groups:
            settings = self._around.settings_of(group_id)
            if settings != self._settings[group_id]:
                self._settings[group_id] = settings
                self._handle(group_id, SettingsChanged(settings))

    def close(self) -> None:
        """The leadership has ended: nothing of this is used any more."""
        self.is_closed = True
        self._late.clear()
        self._timers.cancel_all()
        self._letters.close()
        self._length.close()
        self.schedules.close()
        self.hosted.unlisten_commits(self._key)
        for group_id in self._shares.live_groups:
            self._shares.drop(group_id)
        self._answers.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        waiting = [each for of_group in self._waiting.values() for each in of_group]
        for each in waiting:
            each.attempt(self)

    def _on_timer(self, group_id: str) -> None:
        self._follow_log_start()
        if group_id in self._shares:
            self._carry_out(self._shares.handle(group_id, TimerFired(), self.now()))
            self._note_dropped(group_id)

    def _follow_log_start(self) -> None:
        start = self.hosted.log.log_start_offset
        self._carry_out(self._shares.on_log_start(start, self.now()))

    def _note_dropped(self, group_id: str) -> None:
        if group_id not in self._shares:
            self._timers.cancel(group_id)
            self._settings.pop(group_id, None)
            self._letters.forget(group_id)
            self._reads.forget(group_id)
            self._follow_lengths()
            if self._shares.is_unused and not (self._loading or self._waiting):
                self._around.on_over(self)

    def _handle(self, group_id: str, event: events.Event) -> None:
        if group_id in self._shares:
            self._carry_out(self._shares.handle(group_id, event, self.now()))
            self._note_dropped(group_id)

    # Effects

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                self._around.spawn(self._guarded(partial(self._store, effect)))
            else:
                self._carry_out_one(effect.group_id, effect.effect)
        self._follow_lengths()
        self.schedules.poke()

    def _follow_lengths(self) -> None:
        is_needed = self._length.is_limited or self.hosted.append_guard is not None
        if is_needed and not self.is_closed:
            self._length.update(self._shares)

    def _carry_out_one(self, group_id: str, effect: events.Effect) -> None:
        match effect:
            case Acquired():
                self._reads.acquired = effect.ranges
            case Acknowledged():
                self._answers.give(effect.token, effect.error)
            case WakeFetches():
                self._wake(group_id)
            case SetTimer():
                self._timers.set(group_id, effect.at_ms)
            case WriteDeadLetters() | TakeProducerId():
                self._letters.carry_out(group_id, effect)

    async def _store(self, store: Store) -> None:
        error = ErrorCode.NONE
        try:
            state = self._around.state()
            await state.write(self.id_of(store.group_id), self.term.epoch, store.delta)
        except EXPECTED_ERRORS as failure:
            self._around.counters.writes_failed += 1
            error = code_of(failure)
        if self.is_closed:
            return
        group_id = store.group_id
        if error not in SURE and self._shares.is_same_load(group_id, store.load_id):
            (self._shares.drop if error in _REFUSED else self._shares.suspend)(group_id)
            self._answers.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER, group_id)
            if self._settings[group_id].dead_letters:
                self._around.on_letters_dropped(self.hosted, group_id)
            if self._shares.has_locks(group_id) or self._length.is_limited:
                self.use(group_id)
            self._note_dropped(group_id)
            return
        self._carry_out(
            self._shares.on_stored(group_id, store.load_id, store.write_id, error, self.now())
        )
        self._note_dropped(group_id)
