"""Runs a coordinator's shard: the part that group and transaction coordinators have in common.

A shard (`groups.shard`, `txns.shard`) decides, and its shell carries out the effects. The shell
appends records and notifies the shard when they are committed, sends replies to waiting requests,
and runs timers. A shell is created, and its partition replayed from the start, when this broker
begins to lead the partition. It is dropped when the leadership ends. It answers no request before
everything that it replayed is committed: uncommitted records may be lost with this leader, and no
client may see state that was lost.

The shell reports the outcome of an append once it is known: committed, or refused by the log. If
the leadership ends first, the outcome is unknown, because the next leader may or may not have the
records. The shard then gets no report, and its `unload` sends all clients to the next coordinator.
If an append takes too long, the shell notifies the shard so that it can answer waiting requests.
The outcome is still reported later.

An unexpected exception is a bug in Penstock. If it is raised before the shard has decided anything,
only the request that caused it fails. In any other case the shard's memory may be wrong, while its
log is right: every waiting request is answered with NOT_COORDINATOR, the shard is dropped, and a
new one is loaded from the log under the same leadership (`break_off`).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.error_codes import EXPECTED, code_of
from penstock.broker.partitions.partition import HostedPartition, Written
from penstock.ports import Env
from penstock.records.batch import BatchHeader, Buffer, iter_batches
from penstock.records.compression import DecompressedTooLarge
from penstock.records.record import Record, read_records
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError

_LOAD_BYTES = 4 << 20
_DECODE_BYTES_MAX = 64 << 10
_DECODE_OUTPUT_BYTES_MAX = 256 << 10
"""A compressed batch beyond either size is decoded on a thread."""
_APPEND_TIMEOUT_MS = 5_000
_LOAD_AGAIN_S, _LOAD_AGAIN_MAX_S = 0.25, 10.0
_EARLY_S = 0.001
"""How long a timer that fired too early waits before it fires again."""
_log = logging.getLogger(__name__)

Effect = TypeVar("Effect")
Answer = TypeVar("Answer")
Key = TypeVar("Key", bound=Hashable)
Fate = Callable[[ErrorCode | None], None]
"""Called once with an append's outcome: None if it is committed, otherwise why it never will be."""


class LogRecord(Protocol):
    @property
    def key(self) -> bytes: ...

    @property
    def value(self) -> bytes | None: ...


class _Append:
    """An append whose outcome is not reported yet."""

    __slots__ = ("abandon", "code", "is_known", "is_late", "late_at_ms", "on_late", "tell")

    def __init__(
        self,
        tell: Fate,
        abandon: Callable[[], None],
        on_late: Callable[[], None],
        late_at_ms: int,
    ) -> None:
        self.tell = tell
        self.abandon = abandon
        self.on_late = on_late
        self.late_at_ms = late_at_ms
        self.is_late = False
        self.code: ErrorCode | None = None
        self.is_known = False


def _nobody_waits() -> None:
    """Does nothing. Used where the shard's `unload` already answers the waiting requests."""


class ShardShell(ABC, Generic[Effect, Key, Answer]):
    """One shard with its partition, its timers and the requests that wait for it."""

    def __init__(
        self, env: Env, hosted: HostedPartition, append_timeout_ms: int = _APPEND_TIMEOUT_MS
    ) -> None:
        self._env = env
        self._append_timeout_ms = append_timeout_ms
        self._late_timer: asyncio.TimerHandle | None = None
        self.hosted = hosted
        self.loaded = False
        self.is_over = False
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._waiting: dict[Hashable, asyncio.Future[Answer]] = {}
        self._next_token = 0
        self._appends: deque[_Append] = deque()
        self._due: deque[Effect] = deque()
        self._is_busy = False
        self.on_broken: Callable[[], None] = _nobody_waits
        """Called once by `break_off`, after all waiting requests have been answered."""

    # Calls to the shard

    @abstractmethod
    def replay(self, header: BatchHeader, records: Iterable[Record]) -> None: ...

    @abstractmethod
    def on_loaded(self) -> Iterable[Effect]: ...

    @abstractmethod
    def on_committed(self, append_id: int) -> Iterable[Effect]: ...

    @abstractmethod
    def on_append_failed(self, append_id: int, code: ErrorCode) -> Iterable[Effect]: ...

    def on_append_late(self, append_id: int) -> Iterable[Effect]:
        """Returns answers for the requests that wait for this slow append. Its outcome follows
        later."""
        return ()

    @abstractmethod
    def on_timer(self, key: Key) -> Iterable[Effect]: ...

    @abstractmethod
    def on_unload(self, code: ErrorCode) -> Iterable[Effect]: ...

    @abstractmethod
    def take_effects(self) -> Sequence[Effect]:
        """Returns the effects that a call of the shard had decided on before it raised."""

    @abstractmethod
    def carry_out_one(self, effect: Effect) -> None:
        """Carries out one effect, by `reply`, `append`, `set_timer` or `cancel_timer`."""

    # Times

    def ticks_ms(self) -> int:
        # A timer for a whole millisecond fires at it, but the float may be just below it.
        return int(self._env.clock.monotonic() * 1000 + 0.001)

    def wall_ms(self) -> int:
        return self._env.clock.wall_ms()

    # Loading and unloading

    async def load(self) -> None:
        """Replays the partition, in pieces, so that the event loop is never blocked for long."""
        log = self.hosted.log
        offset, end = log.log_start_offset, log.end_offset
        while offset < end:
            piece = log.read(offset, _LOAD_BYTES, end)
            if piece is None:
                break
            for position, header in iter_batches(piece.data):
                offset = header.next_offset
                batch = piece.data[position : position + header.size]
                records = await self._decode(batch, header)
                if self.is_over:
                    return
                self.replay(header, records)
            await asyncio.sleep(0)
            if self.is_over:
                return
        await self._committed(end)
        if not self.is_over:
            self.loaded = True
            self.carry_out(self.on_loaded())

    async def _decode(self, batch: Buffer, header: BatchHeader) -> list[Record]:
        """Decodes a batch, on a thread if it takes long to decompress."""
        if not header.codec:
            return read_records(batch, header)
        if header.size <= _DECODE_BYTES_MAX:
            with suppress(DecompressedTooLarge):
                return read_records(batch, header, max_bytes=_DECODE_OUTPUT_BYTES_MAX)
        return await self._env.executor.run(partial(read_records, batch, header))

    async def _committed(self, end_offset: int) -> None:
        """Waits until everything below the offset is committed, or until the leadership has
        ended."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(_: ErrorCode | None) -> None:
            if not done.done():
                done.set_result(None)

        if not self.is_over and not self.hosted.when_committed(end_offset, tell):
            await done

    def unload(self) -> None:
        """Ends the shard. Every waiting request is answered, whatever fails on the way."""
        self.is_over = True
        appends, self._appends = self._appends, deque()
        self._due.clear()
        for append in appends:
            try:
                append.abandon()
            except Exception:  # noqa: BLE001 - the other requests must be answered
                _log.exception("could not cancel a pending append to %s", self.place)
        try:
            for effect in self.on_unload(ErrorCode.NOT_COORDINATOR):
                self.carry_out_one(effect)
        except Exception:  # noqa: BLE001 - the other requests must be answered
            _log.exception("the coordinator of %s failed while it was unloaded", self.place)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._late_timer is not None:
            self._late_timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(KafkaError(ErrorCode.NOT_COORDINATOR))

    def break_off(self, error: Exception) -> None:
        """Drops the shard after an unexpected exception and requests a new one."""
        if self.is_over:
            _log.error(
                "the coordinator of %s failed after it was unloaded", self.place, exc_info=error
            )
            return
        _log.error(
            "the coordinator of %s failed; its clients must retry, and it is loaded again from "
            "its log",
            self.place,
            exc_info=error,
        )
        self.unload()
        self.on_broken()

    @property
    def place(self) -> str:
        return f"{self.hosted.topic}-{self.hosted.index}"

    # Effects

    def put(self, decide: Callable[[int], Iterable[Effect]]) -> asyncio.Future[Answer]:
        """Passes a request to the shard under a new token, and returns a future for its reply.

        If the shard raises, this raises too. If the shard had already decided on effects by then,
        they cannot be taken back, and the shard is dropped (`break_off`).
        """
        token = self._next_token = self._next_token + 1
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[token] = reply
        try:
            effects = decide(token)
        except Exception as error:
            self._waiting.pop(token)
            if self.take_effects():
                self.break_off(error)
            raise
        self.step(lambda: effects)
        return reply

    def step(self, decide: Callable[[], Iterable[Effect]]) -> None:
        """Lets the shard decide and carries out the effects. If that raises, drops the shard."""
        if self.is_over:
            return
        try:
            self.carry_out(decide())
        except Exception as error:  # noqa: BLE001 - logged; every waiting request is answered
            self.break_off(error)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carries out effects in order. Effects that result from these are carried out after
        them."""
        self._due.extend(effects)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._due:
                self.carry_out_one(self._due.popleft())
        finally:
            self._is_busy = False

    def reply(self, token: Hashable, answer: Answer) -> None:
        reply = self._waiting.pop(token, None)
        if reply is not None and not reply.done():
            reply.set_result(answer)

    def append(
        self,
        append_id: int,
        records: Sequence[LogRecord],
        timestamp_ms: int,
        write: Callable[[Sequence[Record]], Written],
    ) -> None:
        """Appends a shard's records and reports their outcome to the shard."""
        batch = [
            Record(offset, timestamp_ms, record.key, record.value)
            for offset, record in enumerate(records)
        ]

        def tell(code: ErrorCode | None) -> None:
            if code is None:
                self.step(lambda: self.on_committed(append_id))
            else:
                self.step(lambda: self.on_append_failed(append_id, code))

        self.write(
            lambda: write(batch),
            tell,
            on_late=lambda: self.step(lambda: self.on_append_late(append_id)),
        )

    def write(
        self,
        write: Callable[[], Written],
        tell: Fate,
        abandon: Callable[[], None] = _nobody_waits,
        on_late: Callable[[], None] = _nobody_waits,
    ) -> None:
        """Writes to the partition.

        `tell` is called with the outcome. `abandon` is called instead if the leadership ends before
        the outcome is known. `on_late` may be called before either, if the write takes long.

        Outcomes are reported to the shard in log order. So a write that fails at once waits until
        the outcomes of all earlier writes have been reported.
        """
        append = _Append(tell, abandon, on_late, self.ticks_ms() + self._append_timeout_ms)
        self._appends.append(append)
        try:
            # Below min.insync.replicas nothing is committed, and the client would wait in vain.
            self.hosted.require_insync()
            written = write()
        except EXPECTED as error:
            self._settle(append, code_of(error))
            return
        except Exception as error:  # noqa: BLE001 - logged; every waiting request is answered
            # Whether the batch is in the log is unknown. Only reading the log again shows it.
            self.break_off(error)
            return
        if self.hosted.when_committed(written.end_offset, partial(self._on_outcome, append)):
            self._settle(append, None)
        elif self._late_timer is None:
            self._watch()

    def _watch(self) -> None:
        """Sets the timer for the next append that becomes late."""
        for append in self._appends:
            if not append.is_late:
                wait_s = max(_EARLY_S, (append.late_at_ms - self.ticks_ms()) / 1000)
                loop = asyncio.get_running_loop()
                self._late_timer = loop.call_later(wait_s, self._find_late)
                return

    def _find_late(self) -> None:
        self._late_timer = None
        now_ms = self.ticks_ms()
        for append in list(self._appends):
            if not append.is_late and append.late_at_ms <= now_ms:
                append.is_late = True
                append.on_late()
        self._watch()

    def _on_outcome(self, append: _Append, code: ErrorCode | None) -> None:
        # With this code the records are committed in spite of too few in-sync replicas, and will be
        # replayed. Any other code means that the leadership has ended: `unload` follows.
        if code is None or code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            self._settle(append, None)

    def _settle(self, append: _Append, code: ErrorCode | None) -> None:
        append.code, append.is_known = code, True
        while self._appends and self._appends[0].is_known:
            first = self._appends.popleft()
            first.tell(first.code)

    def set_timer(self, key: Key, at_ms: int) -> None:
        self.cancel_timer(key)
        wait_s = max(0.0, at_ms / 1000 - self._env.clock.monotonic())
        self._wait(key, at_ms, wait_s)

    def _wait(self, key: Key, at_ms: int, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(wait_s, self._fire, key, at_ms)

    def cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, key: Key, at_ms: int) -> None:
        if self.ticks_ms() < at_ms:
            # uvloop rounds to milliseconds. A shard ignores a timer that fires early, as if it had
            # been cancelled, and the timer would never fire again.
            self._wait(key, at_ms, _EARLY_S)
            return
        self._timers.pop(key, None)
        self.step(lambda: self.on_timer(key))


Shell = TypeVar("Shell", bound="ShardShell[Any, Any, Any]")


class Shards(ABC, Generic[Shell]):
    """The shards of one internal topic whose partitions this broker leads."""

    def __init__(
        self,
        env: Env,
        topic: str,
        broker_id: int,
        cluster: ClusterView,
        spawn: Callable[..., None],
    ) -> None:
        self._env = env
        self.topic = topic
        self._broker_id = broker_id
        self._cluster = cluster
        self._spawn = spawn
        self._shells: dict[int, Shell] = {}

    @abstractmethod
    def make(self, hosted: HostedPartition) -> Shell:
        """Creates a shell for a leadership that has begun."""

    @abstractmethod
    def index_of(self, name: str) -> int:
        """Returns the partition for a group or transactional id. Raises KafkaError while there is
        none."""

    def on_retired(self, shell: Shell) -> None:
        """Called when a shell is no longer used, so that its counters can be kept."""

    def on_leading(self, hosted: HostedPartition) -> None:
        if hosted.topic == self.topic:
            self.on_resigned(hosted)
            self._spawn(self._load(self._install(hosted)))

    def on_resigned(self, hosted: HostedPartition) -> None:
        if hosted.topic == self.topic:
            shell = self._shells.pop(hosted.index, None)
            if shell is not None:
                self.on_retired(shell)
                shell.unload()

    def _install(self, hosted: HostedPartition) -> Shell:
        shell = self.make(hosted)
        shell.on_broken = partial(self._on_broken, shell)
        self._shells[hosted.index] = shell
        return shell

    def _on_broken(self, shell: Shell) -> None:
        if self._shells.get(shell.hosted.index) is shell:
            self._spawn(self._load_after(shell, _LOAD_AGAIN_S))

    async def _load_after(self, shell: Shell, pause_s: float) -> None:
        await self._env.clock.sleep(pause_s)
        again = self._replace(shell)
        if again is not None:
            await self._load(again)

    def _replace(self, shell: Shell) -> Shell | None:
        """Replaces a shell with a new one. Returns None if the leadership has ended."""
        if self._shells.get(shell.hosted.index) is not shell:
            return None
        self.on_retired(shell)
        shell.unload()
        try:
            return self._install(shell.hosted)
        except KafkaError:
            # This broker no longer leads the partition: `on_resigned` follows.
            del self._shells[shell.hosted.index]
            return None

    async def _load(self, shell: Shell) -> None:
        """Loads a shard, and retries until that succeeds or the leadership ends.

        A disk that fails to read may work again soon, and damage is repaired. Until then clients
        retry, and no other broker would take over.
        """
        pause_s = _LOAD_AGAIN_S
        while True:
            try:
                await shell.load()
            except (*EXPECTED, ProtocolError) as error:
                _log.error(
                    "cannot load the coordinator of %s, retrying in %g s: %s",
                    shell.place,
                    pause_s,
                    error,
                )
            except Exception:  # noqa: BLE001 - a bug here must not end the broker
                _log.exception(
                    "cannot load the coordinator of %s, retrying in %g s", shell.place, pause_s
                )
            else:
                return
            await self._env.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOAD_AGAIN_MAX_S)
            # With a new shell, because part of the log may already have been replayed.
            again = self._replace(shell)
            if again is None:
                return
            shell = again

    def require(self, name: str) -> Shell:
        """Returns the shell for a name, or raises the error that makes its client retry."""
        return self.require_at(self.index_of(name))

    def require_at(self, index: int) -> Shell:
        shell = self._shells.get(index)
        if shell is None and not self._is_to_lead(index):
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if shell is None or not shell.loaded or shell.is_over:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shell

    def _is_to_lead(self, index: int) -> bool:
        """Whether the metadata names this broker as leader. Its log may still be opening."""
        partition = self._cluster.image.partition(self.topic, index)
        return partition is not None and partition.leader == self._broker_id

    def loaded(self) -> list[Shell]:
        return [shell for shell in self._shells.values() if shell.loaded and not shell.is_over]

    def is_loading(self) -> bool:
        return any(not shell.loaded or shell.is_over for shell in self._shells.values())
