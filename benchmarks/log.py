"""How fast is the partition log compared with bare system calls?

Append: `Log.append` (header, CRC, offsets, index, write), compared with CRC32C + pwrite of the same
bytes. Read: `Log.read` of 1 MiB slices, compared with pread of the same ranges. Open: a clean 10
GiB partition; 10,000 partitions, with their file descriptors and memory.

The machine is noisy, so both sides of a ratio take turns in short rounds, and the best round of
each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from crc32c import crc32c

from penstock.records.batch import Codec
from penstock.records.record import Record, build_batch
from penstock.storage.config import LogConfig
from penstock.storage.directory import DirectoryConfig, LogDirectory
from penstock.storage.disk import OsDisk
from penstock.storage.log import Log

MIB = 1 << 20


def batch_of(size: int) -> bytearray:
    """Returns a batch of about `size` bytes with one record; the log never reads records."""
    return build_batch([Record(0, 1_000, None, b"x" * (size - 80))], codec=Codec.NONE)


def rounds(count: int, *sides: Callable[[], float]) -> list[float]:
    """Returns the best time of each side in seconds; sides take turns."""
    best = [float("inf")] * len(sides)
    for _ in range(count):
        for number, side in enumerate(sides):
            best[number] = min(best[number], side())
    return best


def fresh_directory(root: str) -> LogDirectory:
    return LogDirectory(OsDisk(), root, DirectoryConfig(disk_reserve_bytes=0))


def append_ratio(root: str, size: int, total_bytes: int, repeats: int) -> dict[str, float]:
    count = max(200, total_bytes // size)
    batch = batch_of(size)
    directory = fresh_directory(f"{root}/append")
    number = 0

    def floor() -> float:
        path = f"{root}/floor"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        view, position = memoryview(batch), 0
        start = time.perf_counter()
        for _ in range(count):
            crc32c(view[21:])
            position += os.pwrite(file, batch, position)
        elapsed = time.perf_counter() - start
        os.close(file)
        os.unlink(path)
        return elapsed

    def log() -> float:
        nonlocal number
        number += 1
        made = directory.create("t", number, topic_id="bench", config=LogConfig(), now_ms=1)
        append = made.append
        start = time.perf_counter()
        for _ in range(count):
            append(batch, 0, 1)
        elapsed = time.perf_counter() - start
        directory.delete("t", number)()
        return elapsed

    floor_s, log_s = rounds(repeats, floor, log)
    directory.close()
    return {
        "floor_us": floor_s / count * 1e6,
        "log_us": log_s / count * 1e6,
        "log_mib_s": len(batch) * count / log_s / MIB,
        "ratio": floor_s / log_s,
    }


def filled(directory: LogDirectory, batch_bytes: int, total_bytes: int) -> Log:
    log = directory.create("read", 0, topic_id="bench", config=LogConfig(), now_ms=1)
    batch = batch_of(batch_bytes)
    for _ in range(total_bytes // batch_bytes):
        log.append(batch, 0, 1)
    log.flush()
    return log


def read_ratio(root: str, batch_bytes: int, total_bytes: int, repeats: int) -> dict[str, float]:
    directory = fresh_directory(f"{root}/read{batch_bytes}")
    log = filled(directory, batch_bytes, total_bytes)
    path = log.active.path
    ranges: list[tuple[int, int]] = []
    offset = 0
    while (piece := log.read(offset, MIB)) is not None:
        ranges.append((piece.position, len(piece.data)))
        offset += len(piece.data) // len(batch_of(batch_bytes))
    moved = sum(size for _, size in ranges)

    def floor() -> float:
        file = os.open(path, os.O_RDONLY)
        start = time.perf_counter()
        for position, size in ranges:
            os.pread(file, size, position)
        elapsed = time.perf_counter() - start
        os.close(file)
        return elapsed

    per_batch = len(batch_of(batch_bytes))

    def read() -> float:
        at = 0
        start = time.perf_counter()
        while (piece := log.read(at, MIB)) is not None:
            at += len(piece.data) // per_batch
        return time.perf_counter() - start

    def first_read() -> float:
        """Reads right after opening: every byte is checked by CRC once before it is served."""
        for segment in log.segments:
            segment.verified = 0
        return read()

    floor_s, log_s, cold_s = rounds(repeats, floor, read, first_read)
    directory.close()
    return {
        "floor_mib_s": moved / floor_s / MIB,
        "log_mib_s": moved / log_s / MIB,
        "ratio": floor_s / log_s,
        "first_read_ratio": floor_s / cold_s,
    }


def make_large(root: str, total_bytes: int) -> None:
    """Creates a clean, sparse partition of `total_bytes`: each sealed segment ends in a huge hole.

    The files have the size and the index entries of real ones; opening never reads the hole.
    """
    directory = fresh_directory(root)
    config = LogConfig(segment_bytes=1 << 30)
    log = directory.create("large", 0, topic_id="bench", config=config, now_ms=1)
    batch = batch_of(16 * 1024)
    for _ in range(max(1, total_bytes >> 30)):
        for _ in range(2_000):
            log.append(batch, 0, 1)
        log.roll(1)
    log.append(batch, 0, 1)
    directory.close()
    for segment in sorted(os.listdir(f"{root}/large-0"))[:-1]:
        if segment.endswith(".log") and os.path.getsize(f"{root}/large-0/{segment}") > MIB:
            os.truncate(f"{root}/large-0/{segment}", 1 << 30)


def open_directory_probe(root: str) -> dict[str, float]:
    """Opens everything under `root` in this process, and reports time and memory."""
    before_kib = resident_kib()
    directory = fresh_directory(root)
    start = time.perf_counter()
    reports = directory.open_all(lambda _topic, _partition: LogConfig(), 1)
    elapsed = time.perf_counter() - start
    return {
        "seconds": elapsed,
        "logs": len(directory),
        "clean": sum(report.clean for report in reports),
        "file_descriptors": len(os.listdir("/proc/self/fd")),
        "resident_mib": resident_kib() / 1024,
        "resident_growth_mib": (resident_kib() - before_kib) / 1024,
    }


def resident_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def open_in_a_new_process(root: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--probe", root]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(output)
    return result


def make_many(root: str, count: int) -> None:
    directory = fresh_directory(root)
    batch = batch_of(1024)
    for number in range(count):
        log = directory.create(f"topic{number}", 0, topic_id="x", config=LogConfig(), now_ms=1)
        log.append(batch, 0, 1)
    directory.close()


def measure(root: str, smoke: bool) -> dict[str, dict[str, float]]:
    scale = 64 if smoke else 1
    repeats = 2 if smoke else 7
    results: dict[str, dict[str, float]] = {}
    for size in (1024, 16 * 1024, 128 * 1024):
        total = 256 * MIB // scale if size > 1024 else 64 * MIB // scale
        results[f"append_{size}"] = append_ratio(root, size, total, repeats)
    for size in (1024, 16 * 1024, 128 * 1024):
        results[f"read_{size}"] = read_ratio(root, size, 256 * MIB // scale, repeats)
    make_large(f"{root}/large", 10 << 30 if not smoke else 1 << 30)
    results["open_10_gib"] = open_in_a_new_process(f"{root}/large")
    make_many(f"{root}/many", 10_000 if not smoke else 100)
    results["open_10000"] = open_in_a_new_process(f"{root}/many")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, only to see that it runs")
    parser.add_argument("--directory", help="where to put the files (default: a temporary one)")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.probe:
        print(json.dumps(open_directory_probe(arguments.probe)))
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    root = tempfile.mkdtemp(prefix="penstock-bench-", dir=arguments.directory)
    try:
        results = measure(root, arguments.smoke)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name, counters in results.items():
        print(f"{name:14}", "  ".join(f"{key} {value:,.3f}" for key, value in counters.items()))
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
