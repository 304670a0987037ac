"""The shell of a coordinator's shard: timers that fire early, and appends that take long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from penstock.broker.coordinators.shard_shell import ShardShell
from penstock.broker.partitions.partition import HostedPartition, Written
from penstock.groups.effects import LogRecord
from penstock.ports import Env
from penstock.records.batch import BatchHeader, Codec, read_header
from penstock.records.record import Record, build_batch
from penstock.wire.errors import ErrorCode

SOON_S = 25.0


class _Clock:
    """A clock that only the test moves. The loop's own clock runs on and is ahead."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def wall_ms(self) -> int:
        return 1_700_000_000_000


class _Log:
    """Accepts every write, and commits when the test says so."""

    def __init__(self) -> None:
        self.topic, self.index = "__consumer_offsets", 0
        self.end_offset = 0
        self.waiting: list[Any] = []

    def require_insync(self) -> None:
        pass

    def write(self, records: Sequence[Record]) -> Written:
        self.end_offset += len(records)
        return Written(self.end_offset - len(records), self.end_offset, -1)

    def when_committed(self, end_offset: int, tell: Any) -> bool:
        self.waiting.append(tell)
        return False


class _Shell(ShardShell[tuple[str, int], str, str]):
    """A shard that records its events. Its effects are replies to a token."""

    def __init__(self, clock: _Clock, log: _Log, append_timeout_ms: int = 5_000) -> None:
        env = cast(Env, SimpleNamespace(clock=clock))
        super().__init__(env, cast(HostedPartition, log), append_timeout_ms)
        self.heard: list[tuple[str, int]] = []
        self.changed = asyncio.Event()

    def _hear(self, what: str, number: int) -> Iterable[tuple[str, int]]:
        self.heard.append((what, number))
        self.changed.set()
        return [(what, number)]

    def replay(self, header: BatchHeader, records: Iterable[Record]) -> None:
        raise AssertionError("nothing is loaded here")

    def on_loaded(self) -> Iterable[tuple[str, int]]:
        return ()

    def on_committed(self, append_id: int) -> Iterable[tuple[str, int]]:
        return self._hear("committed", append_id)

    def on_append_failed(self, append_id: int, code: ErrorCode) -> Iterable[tuple[str, int]]:
        return self._hear("failed", append_id)

    def on_append_late(self, append_id: int) -> Iterable[tuple[str, int]]:
        return self._hear("late", append_id)

    def on_timer(self, key: str) -> Iterable[tuple[str, int]]:
        return self._hear(key, self.ticks_ms())

    def on_unload(self, code: ErrorCode) -> Iterable[tuple[str, int]]:
        return ()

    def take_effects(self) -> Sequence[tuple[str, int]]:
        return ()

    def carry_out_one(self, effect: tuple[str, int]) -> None:
        self.reply(effect[1], effect[0])

    async def next(self) -> tuple[str, int]:
        async with asyncio.timeout(SOON_S):
            await self.changed.wait()
        self.changed.clear()
        return self.heard[-1]


def test_a_timer_that_fires_early_is_not_lost() -> None:
    """An event loop that rounds times fires timers a little early. The shard would take such a
    timer for a cancelled one, so the shell must deliver it when its time has come, and not
    before.
    """

    async def play() -> None:
        clock = _Clock()
        shell = _Shell(clock, _Log())
        shell.set_timer("join", 100_005)
        clock.seconds = 100.0046
        await asyncio.sleep(0.02)
        assert shell.heard == []
        clock.seconds = 100.005
        assert await shell.next() == ("join", 100_005)

    asyncio.run(play())


def test_a_timer_that_fired_early_can_still_be_cancelled() -> None:
    """By `cancel_timer`, and when the shard is unloaded."""

    async def play() -> None:
        clock = _Clock()
        shell = _Shell(clock, _Log())
        shell.set_timer("join", 100_005)
        shell.set_timer("sync", 100_005)
        await asyncio.sleep(0.02)
        shell.cancel_timer("join")
        shell.unload()
        clock.seconds = 101
        await asyncio.sleep(0.02)
        assert shell.heard == []

    asyncio.run(play())


def test_a_slow_append_is_reported_as_late_once_and_as_committed_later() -> None:
    """In the order in which the appends were made. Each has its own deadline."""

    async def play() -> None:
        clock, log = _Clock(), _Log()
        shell = _Shell(clock, log, append_timeout_ms=10)
        record = LogRecord(b"k", b"v")
        shell.append(1, [record], 0, log.write)
        clock.seconds = 100.006
        shell.append(2, [record], 0, log.write)
        clock.seconds = 100.011
        assert await shell.next() == ("late", 1)
        await asyncio.sleep(0.02)
        assert shell.heard == [("late", 1)]
        clock.seconds = 100.016
        assert await shell.next() == ("late", 2)
        for tell in log.waiting:
            tell(None)
        assert shell.heard[2:] == [("committed", 1), ("committed", 2)]
        shell.unload()

    asyncio.run(play())


def test_a_quick_append_is_never_reported_as_late() -> None:
    async def play() -> None:
        clock, log = _Clock(), _Log()
        shell = _Shell(clock, log, append_timeout_ms=5)
        shell.append(1, [LogRecord(b"k", b"v")], 0, log.write)
        log.waiting[0](None)
        clock.seconds = 101
        await asyncio.sleep(0.02)
        assert shell.heard == [("committed", 1)]
        shell.unload()

    asyncio.run(play())


def test_compressed_batches_that_are_slow_to_decode_are_decoded_on_a_thread() -> None:
    """Because of their size, or because a few bytes decompress to many."""

    async def play() -> None:
        ran: list[object] = []

        class Counting:
            async def run(self, work: Any) -> Any:
                ran.append(work)
                return work()

        shell = _Shell(_Clock(), _Log())
        shell._env = cast(Env, SimpleNamespace(executor=Counting()))
        noise = Random(1).randbytes(100_000)
        for value, codec, on_thread in (
            (b"small", Codec.NONE, 0),
            (noise, Codec.NONE, 0),
            (b"small", Codec.ZSTD, 0),
            (noise, Codec.LZ4, 1),
            (bytes(1 << 20), Codec.ZSTD, 1),
        ):
            records = [Record(0, 0, b"k", value)]
            batch = build_batch(records, codec=codec)
            ran.clear()
            assert await shell._decode(batch, read_header(batch)) == records
            assert len(ran) == on_thread

    asyncio.run(play())
