"""Encrypted logs: everything that storage does with a log, with keys that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from penstock.ports import KeyProvider
from penstock.records.batch import read_header
from penstock.records.record import Record, build_batch, read_records
from penstock.sim.crash.sealed_logs import SeededBytes, SimKeys
from penstock.sim.disk.disk import SimDisk
from penstock.storage.cleaner import begin_clean
from penstock.storage.config import LogConfig
from penstock.storage.creation import create_log
from penstock.storage.data_keys import STOCK, KeyDropped, Keyring, KeyUnavailable
from penstock.storage.encrypted_disk import EncryptedDisk
from penstock.storage.errors import DiskTrouble, LogDamaged
from penstock.storage.files import FilePool
from penstock.storage.index import IndexCache
from penstock.storage.log import Log
from penstock.storage.opening import LogResources
from penstock.storage.recovery import open_log
from penstock.storage.scrub import ScrubCursor
from penstock.storage.sealed_format import COPY_BYTES, HEADER_BYTES
from penstock.storage.space import SpaceGuard

ROOT = "/data"
LOG = f"{ROOT}/t-0"
SECRET = b"a secret value "
NOW_MS = 1_700_000_000_000
SEALED = LogConfig(encryption="orders-key", segment_bytes=1500, index_interval_bytes=200)
PLAIN = LogConfig(segment_bytes=1500, index_interval_bytes=200)


class Bench:
    """A simulated disk, a key provider, and processes that use them one after the other."""

    def __init__(self, keys: KeyProvider | None = None) -> None:
        self.raw = SimDisk(Random(1), Random(2))
        self.keys = SimKeys()
        self._provider = keys or self.keys
        self.random = SeededBytes(Random(3))
        self.raw.mkdir(ROOT)
        self.raw.sync_directory("/")
        self.start()

    def start(self) -> None:
        self.keyring = Keyring(self._provider, self.random)
        self.disk = EncryptedDisk(self.raw, self.keyring, page_bytes=700)
        self.pool = FilePool(self.disk)
        self.resources = LogResources(self.pool, IndexCache(), SpaceGuard(self.disk, ROOT, 0))

    def create(self, config: LogConfig = SEALED) -> Log:
        return create_log(self.resources, ROOT, "t", 0, topic_id="id", config=config, now_ms=NOW_MS)

    def restart(self, *, kill: bool = True) -> None:
        if kill:
            self.raw.kill()
        else:
            self.pool.close()
        self.start()

    def open(self, config: LogConfig = SEALED) -> Log:
        return open_log(self.resources, LOG, config, NOW_MS, cache_is_intact=True)[0]

    def files(self) -> dict[str, bytes]:
        return {path: data for path, data in self.raw.files().items() if path.startswith(LOG)}


def fill(log: Log, count: int = 40, *, producer: bool = False) -> None:
    for number in range(count):
        record = Record(0, NOW_MS + number, b"key-%d" % (number % 3), SECRET * 5)
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}
        batch = build_batch([record], **(fields if producer else {}))  # type: ignore[arg-type]
        log.append(batch, 0, NOW_MS + number)


def offsets(log: Log) -> list[int]:
    found, offset = [], log.log_start_offset
    while (piece := log.read(offset, 2000)) is not None:
        at = 0
        while at < len(piece.data):
            header = read_header(piece.data, at)
            for record in read_records(piece.data[at : at + header.size], header):
                assert record.value == SECRET * 5
                found.append(header.base_offset)
            at += header.size
            offset = header.next_offset
    return found


def test_no_file_of_an_encrypted_log_shows_its_records() -> None:
    """Segments, indexes and snapshots are encrypted; only checkpoints are not."""
    bench = Bench()
    log = bench.create()
    fill(log, producer=True)
    log.flush()
    log.close()
    assert len(log.segments) > 2
    kinds = set()
    for path, data in bench.files().items():
        assert SECRET not in data
        assert b"key-1" not in data
        if "checkpoint" not in path and "metadata" not in path:
            assert bench.disk.header_of(path) is not None, path
            kinds.add(path.rpartition(".")[2])
    assert kinds == {"log", "index", "timeindex", "snapshot"}
    bench.restart(kill=False)
    assert offsets(bench.open()) == list(range(40))


def test_each_segment_has_a_data_key_of_its_own() -> None:
    bench = Bench()
    log = bench.create()
    fill(log)
    headers = [bench.disk.header_of(segment.path) for segment in log.segments]
    tokens = {header.wrapped.token for header in headers if header is not None}
    assert len(tokens) == len(log.segments) > 2


def test_the_setting_affects_new_segments_only() -> None:
    """When it is switched on and when it is switched off, with restarts in between."""
    bench = Bench()
    log = bench.create(PLAIN)
    fill(log)
    plain = len(log.segments)
    log.reconfigure(SEALED)
    log.roll(NOW_MS)
    fill(log)
    log.close()
    bench.restart(kill=False)
    log = bench.open(PLAIN)
    log.roll(NOW_MS)
    fill(log)
    states = [bench.disk.header_of(segment.path) is not None for segment in log.segments]
    assert states[:plain] == [False] * plain
    assert states[-1] is False
    assert sum(states) >= 2
    assert offsets(log) == list(range(120))
    bench.restart()
    assert offsets(bench.open(PLAIN)) == list(range(120))


def test_compaction_writes_encrypted_segments() -> None:
    bench = Bench()
    log = bench.create(LogConfig(encryption="orders-key", segment_bytes=2000, compact=True))
    fill(log)
    log.flush(checkpoint=True)
    task = begin_clean(log, now_ms=NOW_MS, last_stable_offset=40, map_bytes_max=1 << 20, force=True)
    assert task is not None
    task.run()
    assert task.install(log) > 0
    assert all(bench.disk.header_of(segment.path) for segment in log.segments)
    assert all(SECRET not in data for data in bench.files().values())
    kept = offsets(log)
    assert len(kept) < 40
    bench.restart()
    assert offsets(bench.open()) == kept


def test_a_truncated_log_goes_on() -> None:
    bench = Bench()
    log = bench.create()
    fill(log)
    log.truncate_to(17)
    fill(log)
    assert offsets(log) == list(range(57))
    bench.restart()
    assert offsets(bench.open()) == list(range(57))


@pytest.mark.parametrize("clean", [True, False])
def test_without_its_key_a_log_does_not_open_and_stays_as_it_is(clean: bool) -> None:
    """Nothing is cut off, quarantined or removed, and with the key the log is whole again."""
    bench = Bench()
    log = bench.create()
    fill(log)
    if clean:
        log.close()
    bench.restart(kill=not clean)
    before = bench.files()
    bench.keys.is_down = True
    with pytest.raises(KeyUnavailable, match="orders-key"):
        bench.open()
    assert bench.files() == before
    bench.keys.is_down = False
    bench.restart()
    log = bench.open()
    assert offsets(log) == list(range(40))
    assert not log.damage


def test_a_log_without_a_key_provider_is_not_taken_for_a_damaged_one() -> None:
    """A broker that lost its setting refuses the log and says what to set."""
    bench = Bench()
    fill(bench.create())
    before = {path: data for path, data in bench.files().items() if path.endswith(".log")}
    bench.raw.kill()
    for config in (SEALED, PLAIN):
        disk = EncryptedDisk(bench.raw, Keyring(None, None))
        resources = LogResources(FilePool(disk), IndexCache(), SpaceGuard(disk, ROOT, 0))
        with pytest.raises(KeyUnavailable, match="no key provider"):
            open_log(resources, LOG, config, NOW_MS)
    after = {path: data for path, data in bench.files().items() if path.endswith(".log")}
    assert after == before


def test_a_provider_that_returns_another_key_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make every record look damaged."""
    bench = Bench()
    fill(bench.create())
    bench.restart()
    monkeypatch.setattr(bench.keys, "unwrap", lambda *_: bytes(32))
    with pytest.raises(KeyUnavailable, match="another data key"):
        bench.open()


def test_rot_in_an_encrypted_segment_is_damage_and_is_not_served() -> None:
    bench = Bench()
    log = bench.create()
    fill(log)
    log.flush(checkpoint=True)
    path = log.segments[1].path
    bench.restart()
    bench.raw.rot(path, HEADER_BYTES + 300, 3)
    log = bench.open()
    with pytest.raises(LogDamaged):
        offsets(log)


def test_rot_in_the_last_batch_is_not_taken_for_a_torn_tail() -> None:
    """The process was only killed, and the frame is whole: an interrupted append would not be. No
    offset of the damaged batch is used again."""
    bench = Bench()
    log = bench.create()
    records = [Record(at, NOW_MS, None, SECRET * 5) for at in range(4)]
    log.append(build_batch(records), 0, NOW_MS)
    log.append(build_batch(records), 0, NOW_MS)
    log.flush()
    size = len(bench.raw.files()[log.active.path])
    bench.restart()
    bench.raw.rot(log.active.path, size - 40, 3)
    log = bench.open()
    assert [(held.start_offset, held.end_offset) for held in log.damage] == [(4, 8)]
    assert log.end_offset == 8


@pytest.mark.parametrize("copy", [0, 2048])
def test_one_damaged_copy_of_the_header_is_written_again(copy: int) -> None:
    """So the other one may be damaged later."""
    bench = Bench()
    log = bench.create()
    fill(log)
    log.flush(checkpoint=True)
    path = log.segments[0].path
    bench.restart()
    for position in range(copy, copy + 2048, 16):
        bench.raw.rot(path, position, 1)
    log = bench.open()
    assert offsets(log) == list(range(40))
    log.close()
    header = bench.raw.files()[path][:HEADER_BYTES]
    assert header[:COPY_BYTES] == header[COPY_BYTES:]
    bench.restart()
    for position in range(2048 - copy, 4096 - copy, 16):
        bench.raw.rot(path, position, 1)
    assert offsets(bench.open()) == list(range(40))


@pytest.mark.parametrize("size", [0, 1, 100, 2047, HEADER_BYTES - 1])
def test_a_segment_whose_creation_was_interrupted_is_empty_and_encrypted(size: int) -> None:
    """Recovery does not take the beginning of its header for records, and goes on encrypting."""
    bench = Bench()
    log = bench.create()
    file = bench.raw.open(log.active.path)
    file.truncate(size)
    file.close()
    bench.restart()
    log = bench.open()
    fill(log, 3)
    assert bench.disk.header_of(log.active.path) is not None
    assert all(SECRET not in data for data in bench.files().values())
    assert offsets(log) == [0, 1, 2]


def test_a_file_that_is_cut_to_nothing_is_encrypted_from_then_on() -> None:
    """A plain segment of a log that is encrypted now: records are never written in plain text."""
    bench = Bench()
    log = bench.create(PLAIN)
    fill(log, 3)
    log.reconfigure(SEALED)
    bench.pool.forget(log.active.path)
    log.truncate_to(0)
    fill(log, 3)
    assert SECRET not in bench.files()[log.active.path]
    assert offsets(log) == [0, 1, 2]


def test_an_encrypted_segment_is_never_sent_from_its_file() -> None:
    """There is no file descriptor to send from: the client would get ciphertext."""
    bench = Bench()
    log = bench.create()
    fill(log)
    assert not hasattr(log.active.file, "fileno")


def test_a_follower_encrypts_with_data_keys_of_its_own() -> None:
    """It stores the same batches as its leader, and its files have nothing in common with it."""
    leader, follower = Bench(), Bench(SimKeys())
    follower.random = SeededBytes(Random(4))
    follower.start()
    source, copy = leader.create(), follower.create()
    fill(source)
    while (piece := source.read(copy.end_offset, 700)) is not None:
        copy.append_replica(bytes(piece.data), NOW_MS)
    assert offsets(copy) == offsets(source)
    ours, theirs = (
        {
            header.wrapped.token
            for segment in log.segments
            if (header := bench.disk.header_of(segment.path)) is not None
        }
        for log, bench in ((copy, follower), (source, leader))
    )
    assert ours
    assert theirs
    assert not ours & theirs


def test_the_scrubber_finds_rot_in_an_encrypted_segment() -> None:
    bench = Bench()
    log = bench.create()
    fill(log)
    log.flush(checkpoint=True)
    segment = log.segments[1]
    bench.raw.rot(segment.path, HEADER_BYTES + 300, 3)
    cursor, found = ScrubCursor(log), []
    while (piece := cursor.next_piece(1000)) is not None:
        piece.run()
        damage = piece.damage(log)
        if damage is not None:
            found.append(damage)
    assert [held.segment_base for held in found] == [segment.base_offset]
    log.quarantine(found[0])
    assert not log.suspect
    assert found[0].start_offset >= segment.base_offset


class SlowKeys(SimKeys):
    """A provider that may only be called from threads."""

    is_slow = True
    calls = 0

    def wrap(self, key_name: str, data_key: bytes) -> bytes:
        self._count()
        return super().wrap(key_name, data_key)

    def unwrap(self, key_name: str, token: bytes) -> bytes:
        self._count()
        return super().unwrap(key_name, token)

    def _count(self) -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        self.calls += 1


def on_the_loop(work: Callable[[], object]) -> None:
    async def run() -> None:
        work()

    asyncio.run(run())


def test_the_event_loop_never_waits_for_a_slow_provider() -> None:
    """New segments use data keys from the stock, and the last one again if there are none."""
    keys = SlowKeys()
    bench = Bench(keys)
    log = bench.create()
    bench.keyring.fill("orders-key")
    assert not bench.keyring.lacks("orders-key")
    wrapped = keys.calls

    def work() -> None:
        fill(log, 300)

    on_the_loop(work)
    assert keys.calls == wrapped
    assert len(log.segments) > STOCK + 3
    assert bench.keyring.lacks("orders-key")
    headers = [bench.disk.header_of(segment.path) for segment in log.segments]
    tokens = [header.wrapped.token for header in headers if header is not None]
    assert len(tokens) == len(log.segments)
    assert len(set(tokens)) == STOCK + 1
    assert offsets(log) == list(range(300))
    log.close()
    bench.restart(kill=False)
    assert offsets(bench.open()) == list(range(300))


def test_a_missing_data_key_is_fetched_for_the_next_attempt() -> None:
    """A read on the event loop fails at once, and succeeds when a thread has fetched the key."""
    keys = SlowKeys()
    bench = Bench(keys)
    log = bench.create()
    fill(log, 3)
    log.close()
    bench.restart(kill=False)
    log = bench.open()
    bench.keyring.forget("orders-key")
    bench.pool.forget(log.active.path)
    asked = []
    bench.keyring.on_wanted(lambda: asked.append(True))

    def refused() -> None:
        with pytest.raises(DiskTrouble, match="try again"):
            log.read(0, 1000)

    on_the_loop(refused)
    assert asked
    assert bench.keyring.wants_any
    assert bench.keyring.catch_up() == []
    on_the_loop(lambda: offsets(log))
    assert log.failure is None


def test_an_append_that_lacks_a_data_key_changes_nothing() -> None:
    """The first encrypted segment of a log, while the provider is down: retried, not offline."""
    bench = Bench()
    log = bench.create(PLAIN)
    fill(log, 3)
    log.reconfigure(SEALED)
    bench.keys.is_down = True
    with pytest.raises(DiskTrouble, match="orders-key"):
        log.roll(NOW_MS)
    fill(log, 1)
    assert log.failure is None
    bench.keys.is_down = False
    log.roll(NOW_MS)
    fill(log, 1)
    assert offsets(log) == list(range(5))


def test_a_dropped_key_is_not_an_unavailable_one() -> None:
    assert issubclass(KeyDropped, KeyUnavailable)
    assert issubclass(KeyUnavailable, OSError)
