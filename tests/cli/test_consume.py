"""Tests `penstock consume` with a fake broker."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cli.conftest import Runner
from client.fake_broker import FakeBroker
from client.fake_model import Log
from penstock.cli.consume_format import RawRecord, compile_format
from penstock.cli.output import Shown
from penstock.client.times import parse_time_ms
from penstock.records.record import Record, build_batch

PROGRAM = (sys.executable, "-m", "penstock.cli.main")
NOW = 1_767_225_600_000
"""2026-01-01T00:00:00Z"""


@pytest.fixture
def orders(fake: FakeBroker) -> FakeBroker:
    """Ten numbered records in partition 0, one second apart; three in partition 1."""
    topic = fake.model.add_topic("orders", 2)
    for log, numbers in zip(topic.logs, (range(10), range(100, 103)), strict=True):
        records = [
            Record(index, NOW + index * 1000, b"k%d" % number, b"%d" % number)
            for index, number in enumerate(numbers)
        ]
        log.append(build_batch(records[:2]))
        rest = [record._replace(offset=index) for index, record in enumerate(records[2:])]
        log.append(build_batch(rest))
    return fake


def test_from_beginning_until_end_shows_everything(orders: FakeBroker, penstock: Runner) -> None:
    """Each partition in its order."""
    ended = penstock("consume", "orders", "--from-beginning", "--until-end")
    assert (ended.code, ended.err) == (0, "")
    numbers = [int(line) for line in ended.out.splitlines()]
    assert [number for number in numbers if number < 100] == list(range(10))
    assert [number for number in numbers if number >= 100] == [100, 101, 102]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--offset", "7"), [7, 8, 9]),
        (("--offset", "-2"), [8, 9]),
        (("--offset", "-200"), list(range(10))),
        (("--offset", "99"), []),
        (("--since", "2026-01-01T00:00:06Z"), [6, 7, 8, 9]),
        (("--since", "2027-01-01"), []),
        (("--from-beginning", "-n", "3"), [0, 1, 2]),
        ((), []),
    ],
)
def test_the_start_position(
    orders: FakeBroker, penstock: Runner, arguments: tuple[str, ...], expected: list[int]
) -> None:
    """By offset, counted from the end, or by time. By default at the end."""
    ended = penstock("consume", "orders", "-p", "0", "--until-end", *arguments)
    assert ended.code == 0
    assert [int(line) for line in ended.out.splitlines()] == expected


def test_timeout_ends_a_tail_without_new_records(orders: FakeBroker, penstock: Runner) -> None:
    ended = penstock("consume", "orders", "--timeout", "0.05")
    assert (ended.code, ended.out) == (0, "")


def test_new_records_are_shown_as_they_arrive(orders: FakeBroker) -> None:
    """The default is a tail, which Ctrl-C ends quietly."""
    with subprocess.Popen(
        [*PROGRAM, "consume", "orders", "-p", "0", "--offset", "-1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "9\n"
        orders.model.topics["orders"].logs[0].append(build_batch([Record(0, NOW, None, b"new")]))
        assert process.stdout.readline() == "new\n"
        process.send_signal(2)
        rest, errors = process.communicate(timeout=120)
    assert (process.returncode, rest, errors) == (130, "", "")


def test_a_closed_pipe_ends_it_quietly(orders: FakeBroker) -> None:
    """As in `penstock consume ... | head -1`."""
    with subprocess.Popen(
        [*PROGRAM, "consume", "orders", "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        log = orders.model.topics["orders"].logs[0]
        log.append(build_batch([Record(n, NOW, None, b"x" * 1000) for n in range(500)]))
        assert process.stderr is not None
        assert process.wait(120) == 141
        assert process.stderr.read() == b""


def test_json_output_has_every_field(orders: FakeBroker, penstock: Runner) -> None:
    """One object per line. Bytes that are not text are written as base64."""
    log = orders.model.topics["orders"].logs[0] = Log()
    headers = (("h", b"x"), ("n", None))
    log.append(build_batch([Record(0, NOW, b"\xff", b'{"a":1}', headers)]))
    ended = penstock("consume", "orders", "-p", "0", "--from-beginning", "-e", "--json")
    assert json.loads(ended.out) == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": NOW,
        "key_base64": "/w==",
        "value": '{"a":1}',
        "headers": [{"key": "h", "value": "x"}, {"key": "n", "value": None}],
    }
    ended = penstock(
        "consume", "orders", "-p", "0", "--from-beginning", "-e", "--json", "--values", "json"
    )
    assert json.loads(ended.out)["value"] == {"a": 1}


def test_every_field_of_the_format(orders: FakeBroker, penstock: Runner) -> None:
    arguments = ("consume", "orders", "-p", "0", "--offset", "3", "-n", "1", "--format")
    ended = penstock(*arguments, r"%p/%o %k=%v %t %T\t100%%")
    assert ended.out == f"0/3 k3=3 2026-01-01T00:00:03.000Z {NOW + 3000}\t100%\n"


def test_records_lost_to_retention_are_reported(orders: FakeBroker, penstock: Runner) -> None:
    """The skipped range is reported on stderr, and reading continues."""
    log = orders.model.topics["orders"].logs[0]
    original = orders.model.fetch

    async def fetch(request: object) -> object:
        log.start = 5
        return await original(request)  # type: ignore[arg-type]

    orders.model.fetch = fetch  # type: ignore[method-assign, assignment]
    ended = penstock("consume", "orders", "-p", "0", "--from-beginning", "--until-end")
    assert "offset 0 of orders-0 is not in the log; continuing at 5" in ended.err
    assert [int(line) for line in ended.out.splitlines()] == [5, 6, 7, 8, 9]


def backlog(fake: FakeBroker, count: int) -> None:
    """Writes this many numbered values in batches of a thousand, with one null in each."""
    log = fake.model.add_topic("many", 1).logs[0]
    for base in range(0, count, 1000):
        values = [None, *(b"%d" % (base + index) for index in range(1, 1000))]
        log.append(build_batch([Record(index, NOW, None, v) for index, v in enumerate(values)]))


@pytest.mark.parametrize("arguments", [(), ("-n", "26500")])
def test_a_backlog_is_shown_completely_and_in_order(
    fake: FakeBroker, penstock: Runner, arguments: tuple[str, ...]
) -> None:
    """After the first few polls it is read as tables. The output must not show where this
    begins."""
    backlog(fake, 30_000)
    ended = penstock("consume", "many", "--from-beginning", "--until-end", *arguments)
    count = 26_500 if arguments else 30_000
    assert ended.code == 0
    assert ended.out.split("\n") == [
        *("" if number % 1000 == 0 else str(number) for number in range(count)),
        "",
    ]


def test_until_end_stops_at_the_end_offsets_of_the_start(
    fake: FakeBroker, penstock: Runner
) -> None:
    """Records written meanwhile are not shown, even if they are in the same responses."""
    backlog(fake, 30_000)
    log = fake.model.topics["many"].logs[0]
    original = fake.model.fetch

    async def fetch(request: object) -> object:
        log.append(build_batch([Record(0, NOW, None, b"late")]))
        return await original(request)  # type: ignore[arg-type]

    fake.model.fetch = fetch  # type: ignore[method-assign, assignment]
    ended = penstock("consume", "many", "--from-beginning", "--until-end")
    assert (ended.code, len(ended.out.splitlines()), "late" in ended.out) == (0, 30_000, False)


def test_a_deleted_topic_ends_the_tail(
    orders: FakeBroker, penstock: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to wait for. The reason is reported."""
    monkeypatch.setattr("penstock.cli.consume_reading.SILENCE_S", 0.0)
    original = orders.model.fetch

    async def fetch(request: object) -> object:
        answer = await original(request)  # type: ignore[arg-type]
        orders.model.topics.pop("orders", None)
        return answer

    orders.model.fetch = fetch  # type: ignore[method-assign, assignment]
    ended = penstock("consume", "orders", "--from-beginning")
    assert (ended.code, len(ended.out.splitlines())) == (1, 13)
    assert "topic orders does not exist" in ended.err


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (("orders", "--group", "g", "--offset", "1"), "--group reads from the group's", 2),
        (("orders", "--group", "g", "-p", "0"), "--group reads from the group's", 2),
        (("orders", "--from-beginning", "--offset", "1"), "give one of", 2),
        (("orders", "--since", "noonish"), "--since: 'noonish' is not a time", 2),
        (("orders", "--format", "%x"), "--format: %x is not a field", 2),
        (("orders", "--format", "%"), "is not a field of a format", 2),
        (("orders", "-p", "7"), "partition 7 of orders does not exist", 1),
        (("nope",), "topic nope does not exist", 1),
    ],
)
def test_invalid_requests_are_reported(
    orders: FakeBroker, penstock: Runner, arguments: tuple[str, ...], message: str, code: int
) -> None:
    """In one line."""
    ended = penstock("consume", *arguments)
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err


def test_a_terminal_gets_escapes_and_a_pipe_gets_bytes() -> None:
    """A terminal would obey control characters; a file must get the original bytes."""
    headers = (("h", b"\x07"),)
    record = RawRecord("orders", 0, 0, NOW, None, b"\x1b[31mred\xc3\xa9", headers)
    binary = RawRecord("orders", 0, 0, NOW, None, b"\xff\xfe")

    def shown(text: str, one: RawRecord, escaped: bool) -> bytes:
        formatter = compile_format(text, escaped=escaped, keys=Shown.TEXT, values=Shown.TEXT)
        return formatter.lines([one])

    assert shown("%k|%v|%h", record, True) == "null|\\x1b[31mredé|h=\\x07\n".encode()
    assert shown("%k|%v|%h", record, False) == b"|\x1b[31mred\xc3\xa9|h=\x07\n"
    assert shown("%v", binary, True) == b"0xfffe\n"
    assert shown("%v", binary, False) == b"\xff\xfe\n"
    assert shown("é\\n\\\\", record, False) == "é\n\\\n".encode()
    assert shown("", record, False) == b"\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("0", 0),
        ("1767225600000", NOW),
        ("10m", NOW - 600_000),
        ("2 h", NOW - 7_200_000),
        ("1d ago", NOW - 86_400_000),
        ("1w", NOW - 604_800_000),
        ("500ms", NOW - 500),
        ("2026-01-01", NOW),
        ("2026-01-01T00:00:00Z", NOW),
        ("2026-01-01T02:00:00+02:00", NOW),
        ("2026-01-01 00:00:00.250", NOW + 250),
    ],
)
def test_times_are_parsed(text: str, expected: int) -> None:
    """ISO 8601, a time span before now, or milliseconds."""
    assert parse_time_ms(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "soon", "10 minutes", "2026-13-01", "-5", "²"])
def test_an_invalid_time_is_refused(text: str) -> None:
    """The error shows the accepted forms."""
    with pytest.raises(ValueError, match="is not a time: write 2026-"):
        parse_time_ms(text, NOW)
