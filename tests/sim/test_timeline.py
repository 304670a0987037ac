"""The event log of a partition: its events in order of time, with what clients saw."""

from __future__ import annotations

from penstock.sim.history import INFO, OK, Drain, Entry, Latest, Poll, Send
from penstock.sim.timeline import RecordedCalls, Timeline, timeline_lines


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def timeline_of(*lines: tuple[float, str, str]) -> Timeline:
    clock = Clock()
    timeline = Timeline(clock)
    for at, partition_name, text in lines:
        clock.now_s = at
        timeline.add(partition_name, text)
    return timeline


def sent(ended_ms: float, partition_name: str, status: str = OK) -> Send:
    return Send(
        process="p0",
        status=status,
        begun_ms=ended_ms - 5,
        ended_ms=ended_ms,
        error="" if status == OK else "no answer",
        partition_name=partition_name,
        value="p0.1",
        number=1,
        acks=-1,
        offset=3 if status == OK else -1,
    )


def test_a_timeline_has_the_events_of_its_partition_and_of_the_cluster() -> None:
    """Events of other partitions are left out; faults concern all partitions."""
    timeline = timeline_of(
        (1.0, "t-0", "broker 1 leads"), (2.0, "t-1", "broker 2 leads"), (3.0, "", "FAULT kill")
    )
    told = "\n".join(timeline_lines(timeline, [sent(2500, "t-0"), sent(2600, "t-1")], "t-0"))
    assert "broker 1 leads" in told
    assert "broker 2 leads" not in told
    assert told.index("sent p0.1") < told.index("FAULT kill")
    assert told.count("sent p0.1") == 1


def test_without_a_partition_all_events_are_shown_with_theirs() -> None:
    """Used if a failure does not name a partition."""
    timeline = timeline_of((1.0, "t-0", "broker 1 leads"), (2.0, "t-1", "broker 2 leads"))
    told = timeline_lines(timeline, [], "")
    assert [line.strip() for line in told] == [
        "1.000  t-0: broker 1 leads",
        "2.000  t-1: broker 2 leads",
    ]


def test_a_long_timeline_is_shortened_to_its_last_lines() -> None:
    """Only the last lines of a long one are shown."""
    timeline = timeline_of(*[(float(n), "t-0", f"line {n}") for n in range(50)])
    told = timeline_lines(timeline, [], "t-0", lines_max=3)
    assert [line.split("  ")[-1] for line in told] == ["line 47", "line 48", "line 49"]


def test_a_timeline_has_what_clients_saw() -> None:
    """Sends, reads, end offsets and drains of the partition, and polls that failed."""
    entries: list[Entry] = [
        sent(1000, "t-0", INFO),
        Poll(process="c", status=OK, begun_ms=1, ended_ms=2, reads={"t-0": ((3, "p0.1"),)}),
        Poll(process="c", status=INFO, begun_ms=1, ended_ms=2, error="gone"),
        Latest(process="a", status=OK, begun_ms=1, ended_ms=2, partition_name="t-0", offset=4),
        Drain(
            process="d",
            status=OK,
            begun_ms=1,
            ended_ms=2,
            partition_name="t-0",
            start_offset=0,
            end_offset=4,
            records=((3, "p0.1"),),
        ),
    ]
    told = "\n".join(timeline_lines(timeline_of(), entries, "t-0"))
    for words in ("no answer", "c read 3..3", "could not poll: gone", "log end: 4", "1 records"):
        assert words in told


def test_calls_that_inject_faults_are_recorded_and_executed() -> None:
    """A fault appears in the log with its arguments."""

    class Faults:
        def kill(self, name: str, *, hard: bool) -> str:
            return f"{name} {hard}"

    timeline = timeline_of()
    assert RecordedCalls(timeline, Faults()).kill("broker-0", hard=True) == "broker-0 True"
    assert timeline.lines == [(0.0, "", "FAULT kill('broker-0', hard=True)")]
