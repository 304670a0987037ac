"""Tests `penstock log dump`: every file of a log, as text and as JSON."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import key_options
from penstock.cli.app import run
from penstock.records.batch import Codec, seal
from penstock.records.record import Record, build_batch
from penstock.storage.disk import OsFile
from penstock.storage.readonly import ReadOnlyDisk
from storage.sample_log import START_MS, TOPIC_ID, SampleLog, new_log, stopped_log


class Dump:
    """Runs the command and keeps its output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.errors = ""

    def __call__(self, *arguments: str | Path, code: int = 0) -> str:
        assert run(["log", "dump", *map(str, arguments)]) == code
        written = self._capsys.readouterr()
        self.errors = written.err
        return written.out

    def json(self, *arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*arguments, "--json", code=code).splitlines()]


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Dump:
    monkeypatch.setenv("COLUMNS", "80")
    return Dump(capsys)


@pytest.fixture
def sample(tmp_path: Path) -> SampleLog:
    return stopped_log(str(tmp_path))


@pytest.fixture
def home(sample: SampleLog) -> Path:
    return Path(sample.directory)


def one_record(root: Path, record: Record, codec: Codec = Codec.NONE) -> str:
    sample = new_log(str(root), "one")
    sample.log.append(build_batch([record], codec=codec), 0, START_MS)
    sample.close()
    return sample.directory


def of_type(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["type"] == kind]


def test_json_has_every_batch_and_record(sample: SampleLog, dump: Dump) -> None:
    """One object per line, in order, with everything that was appended."""
    lines = dump.json(sample.directory)
    assert [line["base_offset"] for line in of_type(lines, "batch")] == [
        header.base_offset for header, _ in sample.batches
    ]
    appended = [record for _, records in sample.batches for record in records]
    shown = of_type(lines, "record")
    assert [(line["offset"], line["timestamp"]) for line in shown] == [
        (record.offset, record.timestamp) for record in appended
    ]
    data = [(line, record) for line, record in zip(shown, appended, strict=True)]
    for line, record in data:
        if "marker" in line:
            assert (line["marker"], line["coordinator_epoch"]) == ("commit", 4)
            continue
        assert line["key"] == (record.key.decode() if record.key is not None else None)
        assert line["value"] == (record.value.decode() if record.value is not None else None)
        assert len(line["headers"]) == len(record.headers)
    assert of_type(lines, "partition") == [{"type": "partition", "topic_id": TOPIC_ID}]
    assert len(of_type(lines, "leader_epoch")) == 3
    (checkpoint,) = of_type(lines, "checkpoint")
    assert checkpoint["clean_stop"]["end_offset"] == sample.log.end_offset


def test_the_listing_fits_80_columns(home: Path, dump: Dump) -> None:
    """Long values are cut with an ellipsis; no line wraps."""
    lines = dump(home).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.endswith("…") for line in lines)
    assert f"    topic id {TOPIC_ID}" in lines
    assert "    @0  offsets 0-0  1 record  68 bytes  none  epoch 0" in lines
    assert '            trace: "\\x01"' in lines


def test_full_shows_complete_values(home: Path, dump: Dump) -> None:
    """So they can be copied."""
    out = dump(home, "--full")
    assert "…" not in out
    assert '"value 4 value 4 value 4 value 4 value 4 "' in out


def test_offset_begins_with_the_batch_that_contains_it(sample: SampleLog, dump: Dump) -> None:
    """Earlier segments are not read, and earlier records of that batch are not shown."""
    target = next(header for header, _ in reversed(sample.batches) if header.record_count > 3)
    offset = target.base_offset + 2
    lines = dump.json(sample.directory, "--offset", str(offset), "--max", "3")
    assert of_type(lines, "batch")[0]["base_offset"] == target.base_offset
    assert [line["offset"] for line in of_type(lines, "record")] == [offset, offset + 1, offset + 2]
    files = [line["name"] for line in of_type(lines, "file") if line["content"] == "batches"]
    assert len(files) == 1


def test_without_records_max_counts_batches(sample: SampleLog, dump: Dump) -> None:
    """`--max` stops after this many listed items."""
    lines = dump.json(sample.directory, "--no-records", "--max", "4")
    assert len(of_type(lines, "batch")) == 4
    assert of_type(lines, "record") == []


def test_every_kind_of_file_can_be_shown(sample: SampleLog, home: Path, dump: Dump) -> None:
    """Each alone, by its name."""
    first = home / f"{0:020d}.log"
    index = of_type(dump.json(first.with_suffix(".index")), "index_entry")
    times = of_type(dump.json(first.with_suffix(".timeindex")), "time_index_entry")
    batches = of_type(dump.json(first, "--no-records"), "batch")
    placed = {batch["last_offset"]: batch for batch in batches}
    assert all(placed[entry["offset"]]["position"] == entry["position"] for entry in index)
    assert all(placed[entry["offset"]]["max_timestamp"] == entry["timestamp"] for entry in times)
    snapshot = home / f"{sample.log.end_offset:020d}.snapshot"
    assert of_type(dump.json(snapshot), "producer")[-1]["last_sequence"] == sample.sequence - 1
    assert "epoch 2  from offset" in dump(home / "leader-epoch-checkpoint")
    assert "stopped cleanly" in dump(home / "penstock-checkpoint")
    assert "last sequence" in dump(snapshot)
    assert "at byte" in dump(first.with_suffix(".index"))
    assert "offset" in dump(first.with_suffix(".timeindex"))


@pytest.mark.parametrize(
    "name", [f"{0:020d}.log.deleted", f"{0:020d}-{91:020d}.swap", f"{0:020d}-{91:020d}.cleaned"]
)
def test_leftovers_of_interrupted_operations_can_be_shown(
    home: Path, dump: Dump, name: str
) -> None:
    """They contain batches like any segment, and the output says what they are."""
    (home / name).write_bytes((home / f"{0:020d}.log").read_bytes())
    lines = dump.json(home / name, "--no-records")
    assert lines[0]["leftover"] == "." + name.rpartition(".")[2]
    assert of_type(lines, "batch")


def test_a_renamed_copy_of_a_log_file_can_be_shown(home: Path, dump: Dump, tmp_path: Path) -> None:
    """For example a file from a bug report."""
    last = sorted(home.glob("*.log"))[-1]
    copy = tmp_path / "copy.log"
    copy.write_bytes(last.read_bytes())
    assert of_type(dump.json(copy), "batch") == of_type(dump.json(last), "batch")


def test_damage_is_shown_where_it_is(sample: SampleLog, home: Path, dump: Dump) -> None:
    """The listing continues after it, and the exit code is 1."""
    path = home / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    (bad,) = of_type(dump.json(path, code=1), "bad_range")
    assert bad["position"] == 68
    out = dump(path, code=1)
    assert "@68  BAD: " in out
    third, _ = sample.batches[2]
    assert f"offsets {third.base_offset}-{third.last_offset}  " in out


def test_a_bad_checkpoint_does_not_stop_the_listing(home: Path, dump: Dump) -> None:
    """The rest of the directory is still useful."""
    (home / "penstock-checkpoint").write_bytes(b"nonsense")
    lines = dump.json(home, code=1)
    assert len(of_type(lines, "bad_file")) == 1
    assert of_type(lines, "record")
    assert "BAD: the checkpoint" in dump(home, code=1)


def test_records_that_cannot_be_decoded_are_reported(tmp_path: Path, dump: Dump) -> None:
    """The batch has a valid CRC, but its records are invalid."""
    sample = new_log(str(tmp_path))
    batch = build_batch([Record(0, START_MS, b"key", b"value")])
    batch[61] = 0x7E
    seal(batch, 0, len(batch))
    sample.log.append(batch, 0, START_MS)
    sample.close()
    assert of_type(dump.json(sample.directory, code=1), "bad_records")
    assert "BAD: the records do not decode" in dump(sample.directory, code=1)


def test_binary_values_are_base64_in_json_and_hex_as_text(tmp_path: Path, dump: Dump) -> None:
    """A value that is not UTF-8 is never shown as broken text."""
    directory = one_record(
        tmp_path, Record(0, START_MS, b"\xff\x00", b"\x80abc", (("h", b"\xfe"),))
    )
    (record,) = of_type(dump.json(directory), "record")
    assert record["key_base64"] == base64.b64encode(b"\xff\x00").decode()
    assert record["value_base64"] == base64.b64encode(b"\x80abc").decode()
    assert "key" not in record
    assert record["headers"] == [{"key": "h", "value_base64": base64.b64encode(b"\xfe").decode()}]
    assert "0xff00 = 0x80616263" in dump(directory)


def test_keys_and_values_as_hex_or_json_on_request(tmp_path: Path, dump: Dump) -> None:
    directory = one_record(tmp_path, Record(0, START_MS, b"id", b'{"b": [1, 2]}'))
    (record,) = of_type(dump.json(directory, "--keys", "hex", "--values", "json"), "record")
    assert (record["key"], record["value"]) == ("6964", {"b": [1, 2]})
    assert '0x6964 = {"b": [1, 2]}' in dump(directory, "--keys", "hex", "--values", "json")
    assert '"id" = "{"b": [1, 2]}"' in dump(directory, "--keys", "json")


def test_a_value_that_is_not_json_stays_text(tmp_path: Path, dump: Dump) -> None:
    """Only Python could parse a line with NaN."""
    directory = one_record(tmp_path, Record(0, START_MS, b"NaN", b"not json"))
    (record,) = of_type(dump.json(directory, "--keys", "json", "--values", "json"), "record")
    assert (record["key"], record["value"]) == ("NaN", "not json")


def test_control_characters_never_reach_the_terminal(tmp_path: Path, dump: Dump) -> None:
    """A value must not be able to clear the screen or change the window title."""
    directory = one_record(
        tmp_path,
        Record(0, START_MS, b"\x1b[2J\x9b", "\x1b]0;x\x07\u202e\n".encode(), (("\x1bh", b"\r"),)),
    )
    for out in (dump(directory), dump(directory, "--full"), dump(directory, "--values", "json")):
        assert all(char.isprintable() for line in out.split("\n") for char in line)


def test_a_timestamp_outside_the_calendar_is_shown_as_a_number(tmp_path: Path, dump: Dump) -> None:
    """A producer may send any timestamp."""
    directory = one_record(tmp_path, Record(0, 2**62, None, None))
    assert f"{2**62} ms" in dump(directory)


class NoPermission(ReadOnlyDisk):
    def open(self, path: str, *, create: bool = False, private: bool = False) -> OsFile:
        raise PermissionError(13, "Permission denied", path)


@pytest.mark.parametrize("arguments", [["dump"], ["verify"]])
def test_missing_permission_is_reported_in_one_line(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    """It says what to do, without a stack trace."""
    monkeypatch.setattr(key_options, "ReadOnlyDisk", NoPermission)
    assert run(["log", *arguments, str(home)]) == 2
    written = capsys.readouterr()
    assert written.err.count("\n") == 1
    assert "run this as the user that runs the broker" in written.err


@pytest.mark.parametrize("command", ["dump", "verify"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "does not exist: check the path"),
        ("empty", "TOPIC-PARTITION"),
        ("file", "of a log"),
    ],
)
def test_a_path_that_is_not_a_log_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str, message: str
) -> None:
    """Missing, empty, or something else."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"hello")
    assert run(["log", command, str(tmp_path / name)]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("penstock: ")
    assert written.err.count("\n") == 1
    assert message in written.err
