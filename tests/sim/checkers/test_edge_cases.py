"""The checks of unusual requests: each rule detects a history that breaks it."""

from __future__ import annotations

from typing import Any

from penstock.sim.checkers.history_checks import check_history
from penstock.sim.history import (
    FAIL,
    INFO,
    OK,
    Deleted,
    Drain,
    Entry,
    History,
    Malformed,
    Pipelined,
    Send,
    Stable,
)
from penstock.sim.history_file import read_history as read_lines

PARTITION_NAME = "t-0"
TIMES: dict[str, Any] = {
    "process": "c",
    "begun_ms": 1.0,
    "ended_ms": 2.0,
    "partition_name": PARTITION_NAME,
}


def drained(start: int) -> Drain:
    return Drain(**TIMES, status=OK, start_offset=start, end_offset=start)


def rules(*entries: Entry) -> list[str]:
    return [each.rule for each in check_history(History([*entries]), [])]


def test_a_read_pipelined_after_a_write_sees_it() -> None:
    """E15: the end offset that a pipelined read returns is not below the end of the write."""
    fine = Pipelined(**TIMES, status=OK, request="Fetch", written_end=5, seen_end=5)
    stale = Pipelined(**TIMES, status=OK, request="Fetch", written_end=5, seen_end=4)
    assert rules(fine) == []
    assert rules(fine, stale) == ["E15"]


def test_a_malformed_batch_is_refused() -> None:
    """E16: any error will do, but there must be one."""
    refused = Malformed(**TIMES, status=FAIL, batch="noise", error="INVALID_RECORD")
    taken = Malformed(**TIMES, status=OK, batch="noise", offset=7)
    assert rules(refused) == []
    assert rules(refused, taken) == ["E16"]


def test_deleted_records_stay_deleted() -> None:
    """E17: after an acknowledged deletion, the log starts at or after the deleted offset."""
    asked = Deleted(**TIMES, status=INFO, offset=5)
    done = Deleted(**TIMES, status=OK, offset=5)
    assert rules(done, drained(5)) == []
    assert rules(asked, drained(0)) == []
    assert rules(done, drained(4)) == ["E17"]


def test_offsets_of_an_open_transaction_are_not_stable() -> None:
    """E18: a client that asks for stable offsets must wait until the transaction ends."""
    times = {key: value for key, value in TIMES.items() if key != "partition_name"}
    assert rules(Stable(**times, status=OK, group="sink", offset=4)) == ["E18"]


def test_records_acknowledged_by_a_sole_in_sync_leader_are_on_its_disk() -> None:
    """E19: this holds for acks=1 too if the topic has `durability=fsync`."""

    def sent(synced_end: int | None) -> Send:
        more: dict[str, Any] = {"value": "v", "number": 1, "acks": 1, "offset": 4}
        return Send(**TIMES, **more, status=OK, synced_end=synced_end)

    assert rules(sent(None)) == []
    assert rules(sent(5)) == []
    assert rules(sent(4)) == ["E19"]


def test_entries_survive_a_round_trip_through_json_lines() -> None:
    """These entries use JSON lines, like all others."""
    entries = [
        Pipelined(**TIMES, status=OK, request="Fetch", written_end=5, seen_end=5),
        Malformed(**TIMES, status=OK, batch="noise", offset=7),
    ]
    assert read_lines(History(entries).lines()).entries == entries
