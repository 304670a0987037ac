"""The audit log is rotated by size, and keeps a bounded number of files."""

from __future__ import annotations

import stat
from pathlib import Path
from random import Random

import pytest

from penstock.broker.audit.log_file import AuditLogFile
from penstock.sim.disk.disk import SimDisk
from penstock.storage.disk import OsDisk

from .audited import read_log

PATH = "/var/log/audit.log"
LINE = b"x" * 99 + b"\n"


def new_disk() -> SimDisk:
    return SimDisk(Random(1), Random(1))


def test_the_directory_is_made_and_lines_are_appended() -> None:
    disk = new_disk()
    for _ in range(2):
        log = AuditLogFile(disk, PATH, 1000, 3)
        log.write(LINE)
        log.write(LINE)
        log.close()
    assert read_log(disk, PATH) == LINE.decode() * 4


@pytest.mark.parametrize("files", [1, 3])
def test_only_so_many_files_are_kept(files: int) -> None:
    disk = new_disk()
    log = AuditLogFile(disk, PATH, 250, files)
    for number in range(20):
        log.write(b"%3d" % number + LINE[3:])
    log.close()
    names = ["audit.log", *(f"audit.log.{number}" for number in range(1, files))]
    assert disk.listdir("/var/log") == names
    newest_first = [read_log(disk, f"/var/log/{name}").split("\n")[:-1] for name in names]
    assert [line[:3].strip() for lines in reversed(newest_first) for line in lines] == [
        str(number) for number in range(20 - 2 * files, 20)
    ]


def test_a_line_that_a_crash_has_cut_is_not_continued() -> None:
    disk = new_disk()
    log = AuditLogFile(disk, PATH, 1000, 3)
    log.write(b"half a li")
    log.close()
    again = AuditLogFile(disk, PATH, 1000, 3)
    again.write(LINE)
    assert read_log(disk, PATH) == "half a li\n" + LINE.decode()


def test_only_the_user_of_the_broker_can_read_the_files(tmp_path: Path) -> None:
    """Also a file that an earlier version has made."""
    path = tmp_path / "audit.log"
    path.touch()
    path.chmod(0o644)
    log = AuditLogFile(OsDisk(), str(path), 150, 3)
    for _ in range(3):
        log.write(LINE)
    log.close()
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("audit.log", "audit.log.1", "audit.log.2"), 0o600)
