"""The shell of a coordinator's shard: timers that fire early, and appends that take long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Never, TypeAlias, assert_never, cast

from penstock.broker.coordinators.shard_replay import decode
from penstock.broker.coordinators.shard_shell import ShardShell
from penstock.broker.partitions.hosted_partition import HostedPartition, Written
from penstock.coordination.effects import Append, CancelTimer, Effect, LogRecord, Now, SetTimer
from penstock.ports import Env
from penstock.records.batch import BatchHeader, Codec, read_header
from penstock.records.record import Record, build_batch
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode, KafkaError

SOON_S = 25.0
_Effect: TypeAlias = Effect[str, str, Never]


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
        self.refuses = False

    def require_insync(self) -> None:
        if self.refuses:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

    def write(self, append: Append) -> Written:
        count = len(append.records)
        self.end_offset += count
        return Written(self.end_offset - count, self.end_offset, -1)

    def when_committed(self, end_offset: int, tell: Any) -> bool:
        self.waiting.append(tell)
        return False


class _Shard:
    """Records its events."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []
        self.changed = asyncio.Event()

    def _hear(self, what: str, number: int) -> list[_Effect]:
        self.heard.append((what, number))
        self.changed.set()
        return []

    async def next(self) -> tuple[str, int]:
        async with asyncio.timeout(patient(SOON_S)):
            await self.changed.wait()
        self.changed.clear()
        return self.heard[-1]

    def on_loaded(self, now: Now) -> list[_Effect]:
        return []

    def on_timer(self, key: str, now: Now) -> list[_Effect]:
        return self._hear(key, now.ticks_ms)

    def on_committed(self, append_id: int, now: Now) -> list[_Effect]:
        return self._hear("committed", append_id)

    def on_append_failed(self, append_id: int, error: ErrorCode, now: Now) -> list[_Effect]:
        return self._hear("failed", append_id)

    def on_append_late(self, append_id: int) -> list[_Effect]:
        return self._hear("late", append_id)

    def unload(self, code: ErrorCode) -> list[_Effect]:
        return []

    def take_effects(self) -> list[_Effect]:
        return []


class _Shell(ShardShell[str, str, Never]):
    def __init__(
        self, clock: _Clock, log: _Log, shard: _Shard, append_timeout_ms: int = 5_000
    ) -> None:
        env = cast(Env, SimpleNamespace(clock=clock))
        super().__init__(env, cast(HostedPartition, log), shard, append_timeout_ms)
        self._log = log

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> None:
        raise AssertionError("nothing is loaded here")

    def append(self, append: Append) -> Written:
        return self._log.write(append)

    def carry_out_own(self, effect: Never) -> None:
        assert_never(effect)


def append(number: int) -> Append:
    return Append(number, (LogRecord(b"k", b"v"),), 0)


def test_a_timer_that_fires_early_is_not_lost() -> None:
    """An event loop that rounds times fires timers a little early. The shard would take such a
    timer for a cancelled one, so the shell must deliver it when its time has come, and not
    before.
    """

    async def run_case() -> None:
        clock = _Clock()
        shard = _Shard()
        shell = _Shell(clock, _Log(), shard)
        shell.carry_out([SetTimer("join", 100_005)])
        clock.seconds = 100.0046
        await asyncio.sleep(0.02)
        assert shard.heard == []
        clock.seconds = 100.005
        assert await shard.next() == ("join", 100_005)

    asyncio.run(run_case())


def test_a_timer_that_fired_early_can_still_be_cancelled() -> None:
    """By `CancelTimer`, and when the shard is unloaded."""

    async def run_case() -> None:
        clock = _Clock()
        shard = _Shard()
        shell = _Shell(clock, _Log(), shard)
        shell.carry_out([SetTimer("join", 100_005), SetTimer("sync", 100_005)])
        await asyncio.sleep(0.02)
        shell.carry_out([CancelTimer("join")])
        shell.unload()
        clock.seconds = 101
        await asyncio.sleep(0.02)
        assert shard.heard == []

    asyncio.run(run_case())


def test_a_slow_append_is_reported_as_late_once_and_as_committed_later() -> None:
    """In the order in which the appends were made. Each has its own deadline."""

    async def run_case() -> None:
        clock, log = _Clock(), _Log()
        shard = _Shard()
        shell = _Shell(clock, log, shard, append_timeout_ms=10)
        shell.carry_out([append(1)])
        clock.seconds = 100.006
        shell.carry_out([append(2)])
        clock.seconds = 100.011
        assert await shard.next() == ("late", 1)
        await asyncio.sleep(0.02)
        assert shard.heard == [("late", 1)]
        clock.seconds = 100.016
        assert await shard.next() == ("late", 2)
        for tell in log.waiting:
            tell(None)
        assert shard.heard[2:] == [("committed", 1), ("committed", 2)]
        shell.unload()

    asyncio.run(run_case())


def test_a_quick_append_is_never_reported_as_late() -> None:
    async def run_case() -> None:
        clock, log = _Clock(), _Log()
        shard = _Shard()
        shell = _Shell(clock, log, shard, append_timeout_ms=5)
        shell.carry_out([append(1)])
        log.waiting[0](None)
        clock.seconds = 101
        await asyncio.sleep(0.02)
        assert shard.heard == [("committed", 1)]
        shell.unload()

    asyncio.run(run_case())


def test_a_write_that_fails_at_once_is_reported_after_the_earlier_ones() -> None:
    """The shard takes reports only in the order of its appends."""

    async def run_case() -> None:
        log, shard = _Log(), _Shard()
        shell = _Shell(_Clock(), log, shard)
        shell.carry_out([append(1)])
        log.refuses = True
        shell.carry_out([append(2)])
        assert shard.heard == []
        log.waiting[0](None)
        assert shard.heard == [("committed", 1), ("failed", 2)]
        shell.unload()

    asyncio.run(run_case())


def test_an_append_that_is_committed_after_the_shard_was_unloaded_is_not_reported() -> None:
    """The shard has answered its clients, and the next coordinator reads the log."""

    async def run_case() -> None:
        clock, log, shard = _Clock(), _Log(), _Shard()
        shell = _Shell(clock, log, shard, append_timeout_ms=5)
        shell.carry_out([append(1), append(2)])
        log.waiting[0](None)
        shell.unload()
        log.waiting[1](None)
        clock.seconds = 101
        await asyncio.sleep(0.02)
        assert shard.heard == [("committed", 1)]

    asyncio.run(run_case())


def test_compressed_batches_that_are_slow_to_decode_are_decoded_on_a_thread() -> None:
    """Because of their size, or because a few bytes decompress to many."""

    async def run_case() -> None:
        ran: list[object] = []

        class Counting:
            async def run(self, work: Any) -> Any:
                ran.append(work)
                return work()

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
            assert await decode(Counting(), batch, read_header(batch)) == records
            assert len(ran) == on_thread

    asyncio.run(run_case())
