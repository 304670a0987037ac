"""Verification of the index files of a log."""

from __future__ import annotations

from pathlib import Path
from struct import pack

from storage.test_verify import errors, segments, verified, warnings


def test_an_index_that_the_next_start_rebuilds_anyway_is_a_warning(home: Path) -> None:
    """After an unclean stop the index of the last segment is not trusted."""
    path = segments(home)[-1]
    with path.open("ab") as file:
        file.write(b"\x00")
    index = path.with_suffix(".index")
    index.write_bytes(pack(">ii", 1, 5))
    report = verified(home)
    assert report.sound
    assert set(warnings(report)) == {"bad-index", "torn-tail"}


def test_a_missing_index_is_a_warning(home: Path) -> None:
    """The next start notices that it is missing, and rebuilds it."""
    (home / f"{0:020d}.timeindex").unlink()
    report = verified(home)
    assert report.sound
    assert warnings(report) == ["no-index"]


def test_an_empty_time_index_is_an_error(home: Path) -> None:
    """The next start would trust it: the segment is not found by time, nor deleted by age."""
    (home / f"{0:020d}.timeindex").write_bytes(b"")
    assert errors(verified(home)) == ["bad-index"]


def test_an_index_preallocated_with_zeros_is_not_an_error(home: Path) -> None:
    """Kafka preallocates the indexes of the active segment."""
    index = segments(home)[0].with_suffix(".index")
    index.write_bytes(index.read_bytes() + b"\x00" * 80)
    report = verified(home)
    assert report.findings[0].code == "index-padding"
    assert report.sound


def test_an_index_changed_since_a_clean_stop_is_noticed(home: Path) -> None:
    """The checkpoint of the stop contains its CRC."""
    index = segments(home)[-1].with_suffix(".timeindex")
    index.write_bytes(index.read_bytes() + b"\x00" * 12)
    assert "index-changed" in warnings(verified(home))
