"""A pure shard beside the partition that holds its records: what all coordinators have in common.

A shard (`groups.shard`, `txns.shard`) decides; its shell carries the effects out: records are
appended and the shard is told when they are committed, replies go to whoever waits, timers run. A
shell is made, and its partition replayed from the start, when a term of this broker as leader
begins, and dropped when that ends. It serves nobody before all it has replayed is committed: what
is not may be lost with this leader, and no client is to be told of what then never was.

The fate of an append is reported once it is known: committed, or refused by the log. Neither is
known when the term ends first: the records may be in the log of the next leader or not. Then the
shard hears nothing of them, and by `unload` sends everybody to the next one. And when an append
takes too long it is told so, to answer whoever waits; the fate is reported all the same, later.

An exception that nobody expected is a bug of ours. Where it strikes before the shard has decided
anything, only its own request fails. Anywhere else the memory of the shard may be wrong, while its
log is right: every waiting request is answered with NOT_COORDINATOR, the shard is dropped, and a
new one is loaded from the log in the same term (`break_off`).
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

from penstock.broker.cluster import ClusterView
from penstock.broker.failures import EXPECTED, code_of
from penstock.broker.hosted import HostedPartition, Written
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
"""How long a timer waits again that has fired before its time."""
_log = logging.getLogger(__name__)

Effect = TypeVar("Effect")
Answer = TypeVar("Answer")
Key = TypeVar("Key", bound=Hashable)
Fate = Callable[[ErrorCode | None], None]
"""Told once: None if it is committed, else why it never will be."""


class LogRecord(Protocol):
    @property
    def key(self) -> bytes: ...

    @property
    def value(self) -> bytes | None: ...


class _Append:
    """One that is on its way, and what became of it."""

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
    """For what `unload` of the shard answers."""


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
        """Called once by `break_off`, when everybody who waited has been answered."""

    # The shard's side

    @abstractmethod
    def replay(self, header: BatchHeader, records: Iterable[Record]) -> None: ...

    @abstractmethod
    def on_loaded(self) -> Iterable[Effect]: ...

    @abstractmethod
    def on_committed(self, append_id: int) -> Iterable[Effect]: ...

    @abstractmethod
    def on_append_failed(self, append_id: int, code: ErrorCode) -> Iterable[Effect]: ...

    def on_append_late(self, append_id: int) -> Iterable[Effect]:
        """It takes long: answers for those who wait. What becomes of it is told later."""
        return ()

    @abstractmethod
    def on_timer(self, key: Key) -> Iterable[Effect]: ...

    @abstractmethod
    def on_unload(self, code: ErrorCode) -> Iterable[Effect]: ...

    @abstractmethod
    def take_effects(self) -> Sequence[Effect]:
        """The effects that a call of the shard had decided on before it raised."""

    @abstractmethod
    def carry_out_one(self, effect: Effect) -> None:
        """With the help of `reply`, `append`, `set_timer` and `cancel_timer`."""

    # Times

    def ticks_ms(self) -> int:
        # A timer for a whole millisecond fires at it, which as a fraction may be a hair before.
        return int(self._env.clock.monotonic() * 1000 + 0.001)

    def wall_ms(self) -> int:
        return self._env.clock.wall_ms()

    # Life

    async def load(self) -> None:
        """Replay the partition; in pieces, so that the loop is never held for long."""
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
        """On a thread, where it takes long to decompress the batch."""
        if not header.codec:
            return read_records(batch, header)
        if header.size <= _DECODE_BYTES_MAX:
            with suppress(DecompressedTooLarge):
                return read_records(batch, header, max_bytes=_DECODE_OUTPUT_BYTES_MAX)
        return await self._env.executor.run(partial(read_records, batch, header))

    async def _committed(self, end_offset: int) -> None:
        """Return when everything below the offset is committed, or this term is over."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(_: ErrorCode | None) -> None:
            if not done.done():
                done.set_result(None)

        if not self.is_over and not self.hosted.when_committed(end_offset, tell):
            await done

    def unload(self) -> None:
        """End the service. Every request that waits is answered, whatever fails meanwhile."""
        self.is_over = True
        appends, self._appends = self._appends, deque()
        self._due.clear()
        for append in appends:
            try:
                append.abandon()
            except Exception:  # noqa: BLE001 - the others are to be answered
                _log.exception("an append to %s could not be abandoned", self.place)
        try:
            for effect in self.on_unload(ErrorCode.NOT_COORDINATOR):
                self.carry_out_one(effect)
        except Exception:  # noqa: BLE001 - the others are to be answered
            _log.exception("the coordinator of %s could not be unloaded in order", self.place)
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
        """The shard raised what nobody expected: drop it, and have another one loaded."""
        if self.is_over:
            _log.error("the coordinator of %s failed after its end", self.place, exc_info=error)
            return
        _log.error(
            "the coordinator of %s failed; its clients are told to retry, and it is loaded again "
            "from its log",
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
        """Put a request to the shard under a token; the future is its reply.

        If the shard raises, so does this. What it had decided by then cannot be taken back: then
        the shard is broken off.
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
        """Have the shard decide something and carry it out; if that raises, break it off."""
        if self.is_over:
            return
        try:
            self.carry_out(decide())
        except Exception as error:  # noqa: BLE001 - it is logged, and everybody is answered
            self.break_off(error)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """In order: what one of them leads to comes after the others."""
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
        """Append a shard's records and tell it of their fate."""
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
        """Write something to the partition; `tell` hears its fate, `abandon` that the term ended.
        Before either, `on_late` may hear that it takes long.

        The shard wants to hear of all that is written in the order of the log: a write that failed
        at once has to wait for those before it that are on their way.
        """
        append = _Append(tell, abandon, on_late, self.ticks_ms() + self._append_timeout_ms)
        self._appends.append(append)
        try:
            # Below min.insync.replicas nothing would be committed, and its client wait for nothing.
            self.hosted.require_insync()
            written = write()
        except EXPECTED as error:
            self._settle(append, code_of(error))
            return
        except Exception as error:  # noqa: BLE001 - it is logged, and everybody is answered
            # Whether it is in the log is not known: only reading that again tells.
            self.break_off(error)
            return
        if self.hosted.when_committed(written.end_offset, partial(self._on_outcome, append)):
            self._settle(append, None)
        elif self._late_timer is None:
            self._watch()

    def _watch(self) -> None:
        """See to it that the first append that is to be late is found."""
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
        # Without enough replicas it is committed all the same, and will be replayed. Any other
        # code says that the term is over: `unload` follows.
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
            # uvloop rounds to milliseconds: to a shard, a timer before its time is one that was
            # cancelled, and nothing would come after it.
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
        """A shell for a term that has begun."""

    @abstractmethod
    def index_of(self, name: str) -> int:
        """The partition that what has this name lives on; KafkaError while there is none."""

    def on_retired(self, shell: Shell) -> None:
        """A shell is not used any more; its figures can be kept."""

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
        """Another shell in its place, unless the term has ended."""
        if self._shells.get(shell.hosted.index) is not shell:
            return None
        self.on_retired(shell)
        shell.unload()
        try:
            return self._install(shell.hosted)
        except KafkaError:
            # This broker leads no more, and `on_resigned` follows.
            del self._shells[shell.hosted.index]
            return None

    async def _load(self, shell: Shell) -> None:
        """Until that has worked, or the term is over. A disk that does not read now may do so soon,
        and damage is mended; clients ask again until then, and nobody else would take over."""
        pause_s = _LOAD_AGAIN_S
        while True:
            try:
                await shell.load()
            except (*EXPECTED, ProtocolError) as error:
                _log.error(
                    "%s could not be loaded, next try in %g s: %s", shell.place, pause_s, error
                )
            except Exception:  # noqa: BLE001 - a bug of ours must not end the broker
                _log.exception("%s could not be loaded, next try in %g s", shell.place, pause_s)
            else:
                return
            await self._env.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOAD_AGAIN_MAX_S)
            # From the beginning: part of the log may have been replayed.
            again = self._replace(shell)
            if again is None:
                return
            shell = again

    def require(self, name: str) -> Shell:
        """The shard of a name, or the code that sends its client to ask again."""
        return self.require_at(self.index_of(name))

    def require_at(self, index: int) -> Shell:
        shell = self._shells.get(index)
        if shell is None and not self._is_to_lead(index):
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if shell is None or not shell.loaded or shell.is_over:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shell

    def _is_to_lead(self, index: int) -> bool:
        """Whether clients are sent here already, and the log is still being opened."""
        partition = self._cluster.image.partition(self.topic, index)
        return partition is not None and partition.leader == self._broker_id

    def loaded(self) -> list[Shell]:
        return [shell for shell in self._shells.values() if shell.loaded and not shell.is_over]

    def is_loading(self) -> bool:
        return any(not shell.loaded or shell.is_over for shell in self._shells.values())
