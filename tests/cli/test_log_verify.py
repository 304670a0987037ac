"""Tests `penstock log verify`: the verdict, its reasons and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.broker.repair.durability_proof import LosslessRecord
from penstock.cli.app import run
from penstock.runtime import system_boot_id
from penstock.storage.disk import OsDisk
from storage.sample_log import SampleLog, new_log, stopped_log


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def sample(tmp_path: Path) -> SampleLog:
    return stopped_log(str(tmp_path))


def verify(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run(["log", "verify", *arguments]) == code
    written = capsys.readouterr()
    assert written.err == ""
    return written.out


def damage(sample: SampleLog) -> str:
    path = Path(sample.directory) / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    return str(path)


def test_a_sound_log_exits_with_0(sample: SampleLog, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints a summary of the log, and the verdict last."""
    out = verify(capsys, sample.directory, "--deep")
    assert "orders-0" in out
    assert f"from 0, next is {sample.log.end_offset}" in out
    assert out.splitlines()[-1].startswith("sound: 1 log, ")
    assert max(map(len, out.splitlines())) <= 80


def test_damage_exits_with_1(sample: SampleLog, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints where the damage is and what to do."""
    damage(sample)
    out = verify(capsys, sample.directory, code=1)
    assert "00000000000000000000.log at byte 68" in out
    assert "restore this replica from another one" in " ".join(out.split())
    assert "NOT SOUND: 1 log, " in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_output_is_one_object(sample: SampleLog, capsys: pytest.CaptureFixture[str]) -> None:
    """With counts, findings and the verdict."""
    out = verify(capsys, sample.directory, "--json")
    assert out.count("\n") == 1
    result = json.loads(out)
    assert (result["sound"], result["deep"]) == (True, False)
    (log,) = result["logs"]
    assert log["end_offset"] == sample.log.end_offset
    assert log["batches"] == len(sample.batches)
    assert log["findings"] == []
    path = damage(sample)
    result = json.loads(verify(capsys, sample.directory, "--json", "--deep", code=1))
    assert (result["sound"], result["deep"]) == (False, True)
    (finding,) = result["logs"][0]["findings"]
    assert (finding["severity"], finding["code"]) == ("error", "damage")
    assert (finding["path"], finding["position"]) == (path, 68)


def test_several_logs_are_shown_as_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row each. Notes are only counted; errors and warnings are listed."""
    for partition in range(3):
        sample = stopped_log(str(tmp_path), "orders", partition)
    (Path(sample.directory) / "notes.txt").write_text("hello")
    out = verify(capsys, str(tmp_path) + "/")
    assert [
        line.split()[-1] for line in out.splitlines() if line.lstrip().startswith("orders-")
    ] == [
        "sound",
        "sound",
        "sound",
    ]
    assert "1 note not shown" in out
    assert "notes.txt" not in out
    damage(sample)
    out = verify(capsys, str(tmp_path), code=1)
    assert "orders-2/00000000000000000000.log at byte 68" in out
    assert "NOT SOUND: 3 logs, " in out
    assert "1 error" in out


def test_warnings_leave_a_log_sound(sample: SampleLog, capsys: pytest.CaptureFixture[str]) -> None:
    """The next start repairs the log, so a script need not raise an alarm."""
    (Path(sample.directory) / "leader-epoch-checkpoint").unlink()
    out = verify(capsys, sample.directory)
    assert "warning  leader-epoch-checkpoint" in out
    assert out.splitlines()[-1].endswith(", 1 warning")


def test_a_torn_tail_exits_with_0_and_damage_at_the_same_place_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker that was killed since the machine booted leaves one incomplete batch at most, so a
    whole batch with a wrong CRC is damage. Without that proof it may be a torn tail.
    """
    (tmp_path / "logs").mkdir()
    sample = new_log(str(tmp_path / "logs"))
    sample.fill(5)
    sample.kill()
    proof = LosslessRecord(OsDisk(), str(tmp_path), 0, system_boot_id)
    proof.read("cluster", logs_are_whole=True)
    proof.begin("cluster", broker_epoch=1)
    path = Path(sample.directory) / f"{0:020d}.log"
    data = path.read_bytes()
    torn = "torn tail, 11 bytes: recovery will cut it off"
    path.write_bytes(data + data[:11])
    assert torn in " ".join(verify(capsys, sample.directory).split())
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "are damaged" in " ".join(verify(capsys, str(tmp_path), code=1).split())
    (tmp_path / "penstock-life").unlink()
    assert "recovery will cut it off" in " ".join(verify(capsys, str(tmp_path)).split())
