"""Verification finds what is wrong, says how serious it is, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from struct import pack, unpack_from

import pytest

from penstock.partition.epochs import EpochStart
from penstock.records.batch import Codec, seal
from penstock.records.record import Record, build_batch
from penstock.storage.checkpoints import encode_checkpoint
from penstock.storage.cleaner import begin_clean
from penstock.storage.config import LogConfig
from penstock.storage.findings import KEPT_PER_KIND, LogReport, Severity
from penstock.storage.inspect import read_checkpoint
from penstock.storage.log import Log
from penstock.storage.readonly import ReadOnlyDisk
from penstock.storage.verify import NotALog, Progress, verify_directory

from .log_bench import NOW_MS, LogBench, append, new_bench
from .sample_log import START_MS, TOPIC_ID, SampleLog, new_log, reopen, sample_records, stopped_log

DISK = ReadOnlyDisk()


def verified(directory: str | Path, *, deep: bool = False) -> LogReport:
    result = verify_directory(DISK, str(directory), deep=deep)
    assert len(result.logs) == 1
    return result.logs[0]


def codes(report: LogReport, severity: Severity) -> list[str]:
    return [finding.code for finding in report.findings if finding.severity == severity]


def errors(report: LogReport) -> list[str]:
    return codes(report, Severity.ERROR)


def warnings(report: LogReport) -> list[str]:
    return codes(report, Severity.WARNING)


def segments(home: Path) -> list[Path]:
    return sorted(home.glob("*.log"))


def edit(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def flip(path: Path, position: int, mask: int = 0x55) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def test_a_sound_log_is_counted_and_has_no_findings(sample: SampleLog) -> None:
    """After a clean stop everything agrees, and the counts are those of what was appended."""
    report = verified(sample.directory, deep=True)
    assert report.findings == ()
    assert report.clean_stop
    assert (report.topic, report.partition, report.topic_id) == ("orders", 0, TOPIC_ID)
    assert report.segments == len(sample.log.segments) > 3
    assert report.batches == len(sample.batches)
    assert report.records == sum(len(records) for _, records in sample.batches)
    assert report.size_bytes == sample.log.size
    assert (report.log_start_offset, report.end_offset) == (0, sample.log.end_offset)
    assert report.recovery_point == sample.log.end_offset
    assert report.first_timestamp == START_MS
    assert report.last_timestamp == max(header.max_timestamp for header, _ in sample.batches)
    assert report.codecs == {"none": 15, "gzip": 12, "snappy": 12, "lz4": 12, "zstd": 12}


def test_verification_changes_nothing(sample: SampleLog, home: Path) -> None:
    """Not a byte, a name or a modification time, even where recovery would repair."""
    flip(segments(home)[0], 70)
    (home / "x.tmp").write_bytes(b"half")

    def state() -> dict[str, tuple[bytes, int]]:
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in home.iterdir()}

    before = state()
    verified(home, deep=True)
    assert state() == before


def test_the_read_only_disk_refuses_every_change(tmp_path: Path) -> None:
    """Tools that only read cannot change anything, whichever method they call."""
    path = tmp_path / "file"
    path.write_bytes(b"kept")
    file = DISK.open(str(path))
    for attempt in (
        lambda: DISK.open(str(tmp_path / "new"), create=True),
        lambda: DISK.mkdir(str(tmp_path / "new")),
        lambda: DISK.rename(str(path), str(tmp_path / "new")),
        lambda: DISK.unlink(str(path)),
        lambda: DISK.rmdir(str(tmp_path)),
        lambda: file.pwrite(b"lost", 0),
        lambda: file.truncate(0),
    ):
        with pytest.raises(OSError):
            attempt()
    file.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"kept"


def test_every_flipped_byte_of_a_log_file_is_an_error(tmp_path: Path) -> None:
    """The CRC covers most of a batch. Order, checkpoint and leader epochs cover the rest."""
    sample = new_log(str(tmp_path))
    sample.fill(9)
    sample.close()
    home = Path(sample.directory)
    (path,) = segments(home)
    for position in range(path.stat().st_size):
        flip(path, position)
        assert errors(verified(home)), f"byte {position} of {path.name}"
        flip(path, position)
    assert verified(home).findings == ()


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_every_flipped_byte_of_a_trusted_index_is_an_error(home: Path, suffix: str) -> None:
    """The next start would trust the index of a closed segment, so each entry must be right."""
    path = home / f"{0:020d}.{suffix}"
    for position in range(path.stat().st_size):
        flip(path, position)
        report = verified(home)
        assert set(errors(report)) == {"bad-index"}, f"byte {position}"
        flip(path, position)


def test_leader_epochs_stored_one_offset_off_are_an_error(sample: SampleLog, home: Path) -> None:
    """They decide where a follower truncates, so each start must be exact."""
    path = home / "penstock-checkpoint"
    checkpoint = read_checkpoint(DISK, str(path))
    assert checkpoint is not None
    assert len(checkpoint.epochs) == 3
    for number, (epoch, start) in enumerate(checkpoint.epochs):
        for wrong in (EpochStart(epoch, start + 1), EpochStart(epoch, max(0, start - 1))):
            epochs = list(checkpoint.epochs)
            epochs[number] = wrong
            if tuple(epochs) == checkpoint.epochs:
                continue
            path.write_bytes(encode_checkpoint(replace(checkpoint, epochs=tuple(epochs))))
            assert "wrong-epoch" in errors(verified(home)), wrong


def test_damage_below_the_recovery_point_is_an_error_with_its_position(
    sample: SampleLog, home: Path
) -> None:
    """The finding names file, byte and offset. The rest of the log is still read."""
    header, _ = sample.batches[1]
    position = sample.batches[0][0].size
    flip(segments(home)[0], position + 65)
    report = verified(home)
    (finding,) = [found for found in report.findings if found.severity == Severity.ERROR]
    assert finding.code == "damage"
    assert finding.path == str(segments(home)[0])
    assert finding.position == position
    assert f"offset {header.base_offset}" in finding.message
    assert report.batches == len(sample.batches) - 1
    assert not report.sound


def test_damage_that_recovery_has_quarantined_is_reported_once(home: Path) -> None:
    """The checkpoint lists it, so the scan over the same bytes does not report it again."""
    path = segments(home)[-1]
    flip(path, 70)
    checkpoint = read_checkpoint(DISK, str(home / "penstock-checkpoint"))
    assert checkpoint is not None
    unclean = encode_checkpoint(replace(checkpoint, clean_stop=None))
    (home / "penstock-checkpoint").write_bytes(unclean)
    damage = reopen(str(home)).damage
    assert len(damage) == 1
    assert errors(verified(home)) == ["quarantined"]


@pytest.mark.parametrize("tail", [b"\x00" * 500, b"\x02garbage" * 9, b""])
def test_a_torn_tail_is_a_warning(tmp_path: Path, tail: bytes) -> None:
    """Bytes above the recovery point were never guaranteed: the log is sound without them."""
    sample = new_log(str(tmp_path))
    sample.fill(10)
    sample.log.flush(checkpoint=True)
    sample.append([Record(0, START_MS + 500, None, b"not flushed")], Codec.NONE, 2)
    sample.kill()
    (path,) = segments(Path(sample.directory))
    data = path.read_bytes()
    path.write_bytes(data + tail if tail else data[:-1])
    report = verified(sample.directory)
    assert report.sound
    assert warnings(report) == ["torn-tail"]
    assert codes(report, Severity.INFO) == ["not-stopped"]
    assert report.end_offset == sample.log.end_offset - (0 if tail else 1)


def test_without_a_checkpoint_the_following_bytes_tell_torn_from_damaged(home: Path) -> None:
    """A bad range with valid batches after it is damage. At the very end it is a torn tail."""
    (home / "penstock-checkpoint").unlink()
    last = segments(home)[-1]
    with last.open("ab") as file:
        file.write(b"\x00" * 100)
    report = verified(home)
    assert report.sound
    assert warnings(report) == ["no-checkpoint", "torn-tail"]
    flip(segments(home)[0], 70)
    assert errors(verified(home)) == ["damage"]


def test_a_file_cut_below_the_recovery_point_is_an_error(home: Path) -> None:
    """Durable records are gone, whether it was cut at a batch boundary or not."""
    last = segments(home)[-1]
    os.truncate(last, 0)
    report = verified(home)
    (finding,) = [found for found in report.findings if found.severity == Severity.ERROR]
    assert finding.code == "short"
    assert finding.path == str(last)
    assert "restore" in finding.message


def test_a_missing_segment_is_an_error(home: Path) -> None:
    """If a log was never compacted, a gap between segments is a lost file."""
    for path in home.glob(f"{segments(home)[1].stem}.*"):
        path.unlink()
    assert errors(verified(home)) == ["segment-gap"]


def test_a_missing_first_segment_is_an_error(home: Path) -> None:
    """The checkpoint contains the log start offset."""
    for path in home.glob(f"{0:020d}.*"):
        path.unlink()
    assert errors(verified(home)) == ["segment-gap"]


def test_gaps_left_by_compaction_are_reported(tmp_path: Path) -> None:
    """Offsets of a compacted log may be in no batch, within a segment and between two."""
    sample = new_log(str(tmp_path))
    for base in (0, 10, 40):
        batch = build_batch([Record(base, START_MS + base, b"k", b"v")], leader_epoch=0)
        sample.log.append_replica(batch, START_MS)
    sample.log.roll(START_MS)
    sample.log.append_replica(
        build_batch([Record(90, START_MS + 90, b"k", b"v")], leader_epoch=0), START_MS
    )
    sample.log.state.cleaned_offset = sample.log.state.sparse_offset = 41
    sample.close()
    home = Path(sample.directory)
    (gaps,) = verified(home).findings
    assert (gaps.severity, gaps.code) == (Severity.INFO, "gaps")
    assert gaps.message.startswith(f"{9 + 29 + 49} offsets")
    # The first segment is cut to its first batch, as if compacted: it ends well before the next
    # one.
    os.truncate(segments(home)[0], segments(home)[0].stat().st_size // 3)
    segments(home)[0].with_suffix(".timeindex").write_bytes(pack(">qi", START_MS, 0))
    (gaps,) = verified(home).findings
    assert gaps.message.startswith(f"{40 + 49} offsets")


@pytest.mark.parametrize(
    ("name", "content", "code", "severity"),
    [
        ("leader-epoch-checkpoint", b"0\n2\n0 0\n", "bad-epochs", Severity.WARNING),
        ("leader-epoch-checkpoint", None, "no-epochs", Severity.WARNING),
        ("leader-epoch-checkpoint", b"0\n1\n2 0\n", "stale-epochs", Severity.WARNING),
        ("penstock-checkpoint", b"penstock-checkpoint 1\n", "bad-checkpoint", Severity.ERROR),
        ("partition.metadata", b"version: 0", "bad-metadata", Severity.ERROR),
        ("partition.metadata", None, "no-metadata", Severity.ERROR),
        (f"{0:020d}.snapshot", b"\x00\x01", "bad-snapshot", Severity.WARNING),
        (f"{10**9:020d}.index", b"", "orphan", Severity.WARNING),
        (f"{0:020d}-{9:020d}.swap", b"", "leftover", Severity.INFO),
        (f"{0:020d}.log.deleted", b"", "leftover", Severity.INFO),
        (f"{0:020d}-{9:020d}.cleaned", b"", "leftover", Severity.INFO),
        ("penstock-checkpoint.tmp", b"", "leftover", Severity.INFO),
        ("notes.txt", b"", "unknown", Severity.INFO),
    ],
)
def test_findings_for_small_files(
    home: Path, name: str, content: bytes | None, code: str, severity: Severity
) -> None:
    """Each small file that is bad, missing or unexpected has its own finding."""
    if content is None:
        (home / name).unlink()
    else:
        (home / name).write_bytes(content)
    report = verified(home)
    assert code in codes(report, severity)


def test_undecodable_records_are_found_by_a_deep_verification(tmp_path: Path) -> None:
    """A producer can send garbage with a correct CRC. Only decoding the records shows it."""
    sample = new_log(str(tmp_path))
    batch = build_batch([Record(0, START_MS, b"key", b"value")])
    batch[61] = 0x7E
    seal(batch, 0, len(batch))
    sample.log.append(batch, 0, START_MS)
    sample.close()
    assert verified(sample.directory).sound
    assert errors(verified(sample.directory, deep=True)) == ["bad-records"]


def test_a_record_later_than_its_batchs_max_timestamp_is_a_warning(tmp_path: Path) -> None:
    """A search by time would skip the batch."""
    sample = new_log(str(tmp_path))
    sample.log.append(
        build_batch([Record(0, START_MS, b"k", b"v")], max_timestamp=START_MS - 5), 0, START_MS
    )
    sample.close()
    assert warnings(verified(sample.directory, deep=True)) == ["late-record"]


def test_leader_epochs_that_decrease_between_segments_are_an_error(home: Path) -> None:
    """Within a segment the scan finds it. Across segments only the whole log shows it."""
    path = segments(home)[-1]

    def older(data: bytearray) -> None:
        position = 0
        while position < len(data):
            data[position + 12 : position + 16] = pack(">i", 0)
            position += 12 + int(unpack_from(">i", data, position + 8)[0])

    edit(path, older)
    assert "epoch-falls" in errors(verified(home))


def test_many_findings_of_a_kind_are_summarized(home: Path) -> None:
    """A thousand wrong entries make one short list."""
    index = segments(home)[0].with_suffix(".index")
    entries = [unpack_from(">ii", index.read_bytes(), at) for at in range(0, 40, 8)]
    wrong = [(offset - 1, position) for offset, position in entries]
    data = index.read_bytes()[40:]
    index.write_bytes(b"".join(pack(">ii", *entry) for entry in wrong) + data)
    found = [finding for finding in verified(home).findings if finding.code == "bad-index"]
    assert len(found) <= KEPT_PER_KIND + 1
    assert len(found) >= len(wrong)


def test_a_data_directory_has_many_logs(tmp_path: Path) -> None:
    """Every log below it is verified, of any broker. A log that is being deleted is not."""
    for broker in ("broker-1", "broker-2"):
        root = tmp_path / broker
        root.mkdir()
        for partition in (0, 1):
            stopped_log(str(root), "orders", partition)
    (tmp_path / "broker-1" / "orders-1").rename(tmp_path / "broker-1" / "orders-1.abc-delete")
    seen: list[Progress] = []
    result = verify_directory(DISK, str(tmp_path), progress=seen.append)
    assert [log.directory.removeprefix(str(tmp_path)) for log in result.logs] == [
        "/broker-1/orders-0",
        "/broker-2/orders-0",
        "/broker-2/orders-1",
    ]
    assert result.sound
    assert result.findings == ()
    sizes = sum(log.size_bytes for log in result.logs)
    assert (seen[-1].done_bytes, seen[-1].total_bytes) == (sizes, sizes)


def test_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    """An empty directory must not be reported as sound."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotALog, match="TOPIC-PARTITION"):
        verify_directory(DISK, str(tmp_path))


def test_a_log_in_use_is_sound(tmp_path: Path) -> None:
    """Before a flush and after one, with indexes partly in memory."""
    sample = new_log(str(tmp_path))
    sample.fill(40)
    assert verified(sample.directory, deep=True).sound
    assert warnings(verified(sample.directory)) == []
    sample.log.flush()
    for number in range(40):
        sample.append(sample_records(number), Codec.NONE, 2)
    report = verified(sample.directory)
    assert [finding.code for finding in report.findings] == ["not-stopped"]
    sample.kill()


def clean(log: Log, random: Random) -> None:
    """Runs a round of compaction. A crash may stop it before it is installed."""
    task = begin_clean(
        log,
        now_ms=NOW_MS,
        last_stable_offset=log.end_offset,
        map_bytes_max=1 << 20,
        force=True,
    )
    if task is not None:
        task.run()
        if random.random() < 0.8:
            task.install(log)


def busy_hour(bench: LogBench, random: Random, epoch: int, *, power_loss: bool) -> int:
    """Performs random operations on a log, then ends the process."""
    log = bench.open()
    for _ in range(random.randrange(4, 25)):
        match random.randrange(10):
            case 0:
                log.flush(checkpoint=random.random() < 0.5)
            case 1:
                log.roll(NOW_MS)
            case 2:
                epoch += 1
                log.note_epoch(epoch)
            case 3:
                log.truncate_to(random.randint(log.log_start_offset, log.end_offset))
            case 4:
                log.delete_before(random.randint(log.log_start_offset, log.end_offset))
            case 5:
                log.purge()
            case 6:
                clean(log, random)
            case _:
                append(log, random.randrange(1, 9), epoch=epoch)
    if random.random() < 0.2:
        log.close()
    if power_loss:
        bench.lose_power()
    else:
        bench.kill()
    return epoch


@pytest.mark.parametrize("seed", range(60))
def test_no_crash_looks_like_damage(seed: int) -> None:
    """Whatever a kill or a power cut leaves is sound, before recovery and after it."""
    random = Random(seed)
    bench = new_bench(seed)
    bench.create(LogConfig(segment_bytes=600, index_interval_bytes=150, compact=True))
    epoch = 0
    for _ in range(4):
        epoch = busy_hour(bench, random, epoch, power_loss=random.random() < 0.7)
        (report,) = verify_directory(bench.disk, bench.root, deep=True).logs
        assert errors(report) == [], report.findings
        bench.open()
        bench.kill()
        (report,) = verify_directory(bench.disk, bench.root).logs
        assert errors(report) == [], report.findings
    log = bench.open()
    append(log, epoch=epoch)
    log.close()
    (report,) = verify_directory(bench.disk, bench.root).logs
    assert errors(report) == [], report.findings
    assert report.clean_stop
