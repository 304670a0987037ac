"""Tests that the checks of the run with killed pipelines can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .killer import Strike
from .load import Row, decode, encode
from .results import compare, expected_counts, expected_windows, table_rows
from .run import not_explained, too_few
from .watching import Owners, Progress, committed, marked_overlaps

ROWS = [Row("k00", 0, 5_000), Row("k00", 1, 9_999), Row("k00", 2, 10_000), Row("k01", 0, 5_000)]


def test_a_record_is_read_as_it_was_written() -> None:
    assert decode(b"k00", encode(ROWS[1])) == ROWS[1]


def test_missing_repeated_and_unexpected_rows_are_found() -> None:
    assert compare(ROWS, ROWS).is_exact
    found = compare([*ROWS[1:], ROWS[1], ROWS[1], Row("k09", 0, 0)], ROWS)
    assert (found.missing, found.duplicates, found.wrong) == (1, 2, 1)
    assert not found.is_exact


def test_aggregates_are_computed_from_the_records() -> None:
    """Records that only close windows are not counted in windows."""
    assert expected_windows([*ROWS, Row("close", 0, 10**6)]) == {
        (0, "k00", 2, 1),
        (10_000, "k00", 1, 2),
        (0, "k01", 1, 0),
    }
    assert expected_counts(ROWS) == {("k00", 3, 3), ("k01", 1, 0)}


def test_only_files_in_the_log_of_a_table_are_read(tmp_path: Path) -> None:
    """A task that was killed leaves a file behind. A compacted log replaces earlier ones."""
    folder = tmp_path / "spark-warehouse" / "copied"
    (folder / "_spark_metadata").mkdir(parents=True)
    for number in range(4):
        pq.write_table(pa.table({"n": [number]}), folder / f"part-{number}.parquet")

    def log(name: str, *numbers: int) -> None:
        files = [json.dumps({"path": f"file:///x/part-{each}.parquet"}) for each in numbers]
        (folder / "_spark_metadata" / name).write_text("\n".join(["v1", *files]))

    log("0", 3)
    log("1.compact", 0, 1)
    assert table_rows(tmp_path, "copied", ["n"]) == [(0,), (1,)]
    log("2", 2)
    assert table_rows(tmp_path, "copied", ["n"]) == [(0,), (1,), (2,)]
    assert table_rows(tmp_path, "other", ["n"]) == []


def test_progress_is_what_the_last_commit_of_a_checkpoint_has_read(tmp_path: Path) -> None:
    checkpoint = tmp_path / "_checkpoints" / "flow" / "0"
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
    assert committed(tmp_path) == 0
    for number in (9, 10, 11):
        offsets = json.dumps({"events": {"0": number, "1": 5}})
        (checkpoint / "offsets" / str(number)).write_text(f'v1\n{{"conf":{{}}}}\n{offsets}')
    for number in (9, 10):
        (checkpoint / "commits" / str(number)).write_text("v1\n{}")
    assert committed(tmp_path) == 15


def test_the_greatest_stop_is_found_for_a_kill() -> None:
    progress = Progress()
    for position, now in ((5, 10.0), (5, 11.0), (6, 12.0), (7, 42.0), (8, 43.0)):
        progress.note(position, now)
    assert progress.greatest() == 30.0
    assert progress.greatest(42.5, 43.0) == 1.0
    assert progress.greatest(50.0, 60.0) == 0.0


def test_two_drivers_at_once_are_found_by_their_marks() -> None:
    """A process id may be used again by a later driver."""
    one_by_one = "7 1.0 1.0\n7 1.0 2.0\n8 2.1 2.1\n8 2.1 3.0\n7 3.5 3.5\n"
    assert marked_overlaps(one_by_one) == []
    assert len(marked_overlaps(one_by_one + "8 2.1 3.6\n")) == 1


@pytest.mark.parametrize(("states", "overlaps"), [({"S"}, 1), ({"T"}, 0), (set(), 0)])
def test_two_drivers_at_once_are_found_by_their_processes(
    tmp_path: Path, states: set[str], overlaps: int
) -> None:
    """A JVM may live longer than the process that marks. A frozen one does nothing."""
    (tmp_path / "_owners.log").write_text("7 1.0 1.0\n8 2.0 2.0\n")
    owners = Owners(tmp_path)
    for _ in range(2):
        owners.look({7: states, 8: {"R"}})
    assert len(owners.all_overlaps()) == overlaps
    assert owners.driver == 8


def test_a_history_must_name_the_reason_for_each_killed_driver() -> None:
    strike = Strike("driver killed", "views", 0.0, 1_000, ["views"], recovered_ms=2_000)
    failed = {"what": "failed", "text": "killed by signal 9", "at_ms": 1_500}
    assert not_explained("views", [strike], [failed]) == []
    assert not_explained("other", [strike], []) == []
    for wrong in ({"at_ms": 900}, {"text": ""}, {"what": "started"}):
        assert len(not_explained("views", [strike], [{**failed, **wrong}])) == 1


def test_a_history_must_say_why_each_driver_ended() -> None:
    events = [{"what": "started"}, {"what": "interrupted"}, {"what": "moved"}]
    assert too_few("views", 3, events) == []
    assert len(too_few("views", 4, events)) == 1
