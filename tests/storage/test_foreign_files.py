"""Index files that other programs created next to a segment: Kafka's dump tool makes empty ones."""

from __future__ import annotations

from errno import EACCES

import pytest

from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.storage.verify import verify_directory

from .log_bench import LogBench, append, new_bench, offsets_of, state_of

CONFIG = LogConfig(index_interval_bytes=0)
FOREIGN = [b"", bytes(16), bytes(24), b"garbage", b"\xff" * 9600]
SUFFIXES = [".index", ".timeindex"]

pytestmark = [
    pytest.mark.parametrize("data", FOREIGN, ids=lambda data: f"{len(data)} bytes"),
    pytest.mark.parametrize("suffix", SUFFIXES),
]


def put(bench: LogBench, log: Log, suffix: str, data: bytes) -> str:
    path = log.active.path.removesuffix(".log") + suffix
    bench.write_file(path, data)
    return path


def is_sound(bench: LogBench) -> bool:
    """Returns the verdict of `penstock log verify`."""
    return verify_directory(bench.disk, bench.directory).sound


def undisturbed(count: int) -> dict[str, bytes]:
    """Returns the index files that a log of `count` batches should have."""
    bench = new_bench()
    log = bench.create(CONFIG)
    append(log, count)
    log.roll(1)
    return {path: held for path, held in bench.sim.files().items() if path.endswith("index")}


@pytest.mark.parametrize("count", [0, 1, 700])
def test_a_file_next_to_the_active_segment_is_replaced(
    data: bytes, suffix: str, count: int
) -> None:
    """The segment's own index replaces it completely when it is spilled or the segment is
    closed."""
    bench = new_bench()
    log = bench.create(CONFIG)
    path = put(bench, log, suffix, data)
    append(log, count)
    assert offsets_of(log) == list(range(count))
    log.roll(1)
    assert bench.sim.files().get(path) == undisturbed(count).get(path, data)
    append(log)
    log = bench.reopen(log)
    assert offsets_of(log) == list(range(count + 1))
    assert is_sound(bench)


@pytest.mark.parametrize("count", [0, 1, 30])
def test_a_file_found_at_startup_is_not_trusted(data: bytes, suffix: str, count: int) -> None:
    """After a kill and after a clean stop: it was put there while no broker ran, over an existing
    index or not."""
    for clean in (False, True):
        bench = new_bench()
        log = bench.create(CONFIG)
        append(log, 20)
        log.roll(1)
        append(log, count)
        before = state_of(log)
        if clean:
            log.close()
            bench.resources.pool.close()
        else:
            bench.kill()
        put(bench, log, suffix, data)
        bench.start_process()
        log = bench.open()
        assert state_of(log) == before
        append(log, 5)
        log = bench.reopen(log)
        assert offsets_of(log) == list(range(25 + count))
        assert is_sound(bench)


def deny(bench: LogBench, path: str) -> None:
    """Makes the file at `path` belong to another user until it is unlinked."""

    def observer(operation: str, touched: str) -> None:
        if touched == path and operation == "unlink":
            bench.sim.observe(None)
        elif touched == path and operation == "open":
            raise PermissionError(EACCES, "it belongs to another user", path)

    bench.sim.observe(observer)


def test_a_file_of_another_user_is_removed(data: bytes, suffix: str) -> None:
    """It cannot be opened, but it can be unlinked because the directory belongs to the broker."""
    bench = new_bench()
    log = bench.create(CONFIG)
    path = put(bench, log, suffix, data)
    deny(bench, path)
    append(log, 3)
    log = bench.reopen(log)
    assert offsets_of(log) == [0, 1, 2]
    append(log)
    log.close()
    bench.resources.pool.close()
    bench.start_process()
    deny(bench, path)
    assert offsets_of(bench.open()) == [0, 1, 2, 3]
