"""Tests `penstock produce` with a fake broker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Runner
from client.fake_broker import FakeBroker
from penstock.cli.line_source import read_lines
from penstock.cli.produce_input import BadLine, InputRecord, parse_json_line, split_key
from penstock.records.batch import Codec, read_header
from penstock.records.record import Record
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode

PROGRAM = (sys.executable, "-m", "penstock.cli.main")


def sent(fake: FakeBroker, topic: str = "orders") -> list[Record]:
    return [record for log in fake.model.topics[topic].logs for record in log.records()]


def given(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "input"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_lines_become_values(fake: FakeBroker, penstock: Runner, tmp_path: Path) -> None:
    """Including empty lines and a last line without a line break. Bytes are not changed."""
    path = given(tmp_path, b"one\n\n\xff\x00two\nlast")
    ended = penstock("produce", "orders", "--file", path)
    assert (ended.code, ended.out) == (0, "")
    assert [record.value for record in sent(fake)] == [b"one", b"", b"\xff\x00two", b"last"]
    assert {record.key for record in sent(fake)} == {None}
    assert ended.err.startswith("sent 4 records (12 B) to orders in ")
    assert "records/s" in ended.err


def test_headers_are_given_to_each_record(
    fake: FakeBroker, penstock: Runner, tmp_path: Path
) -> None:
    """After those that a JSON line has. A value may contain the sign, or be empty."""
    path = given(tmp_path, "one\ntwo\n" * 200)
    arguments = ("--header", "a=b=c", "--header", "empty=")
    assert penstock("produce", "orders", "--file", path, *arguments).code == 0
    assert {record.headers for record in sent(fake)} == {(("a", b"b=c"), ("empty", b""))}
    path = given(tmp_path, '{"value": "x", "headers": {"own": "1"}}')
    assert penstock("produce", "orders", "--file", path, "--json-lines", *arguments).code == 0
    assert sent(fake)[-1].headers == (("own", b"1"), ("a", b"b=c"), ("empty", b""))


@pytest.mark.parametrize("text", ["name", "=value"])
def test_a_header_without_a_name_or_a_value_is_refused(
    text: str, penstock: Runner, tmp_path: Path
) -> None:
    ended = penstock("produce", "orders", "--file", given(tmp_path, "x"), "--header", text)
    assert ended.code != 0
    assert "such as --header origin=web" in ended.err


def test_standard_input_is_read_to_its_end(fake: FakeBroker) -> None:
    """Through a pipe, the most common use."""
    result = subprocess.run(
        [*PROGRAM, "produce", "orders", "--quiet"],
        input=b"a\nb\n",
        capture_output=True,
        timeout=patient(60),
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert [record.value for record in sent(fake)] == [b"a", b"b"]


def test_records_are_sent_while_the_input_is_still_open(fake: FakeBroker) -> None:
    """A user who types sees the effect of each line; Ctrl-C ends it quietly."""
    fake.model.add_topic("orders")
    with subprocess.Popen(
        [*PROGRAM, "produce", "orders"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        with subprocess.Popen(
            [*PROGRAM, "consume", "orders", "--from-beginning", "-n", "1"], stdout=subprocess.PIPE
        ) as reader:
            assert reader.communicate(timeout=120)[0] == b"first\n"
        process.send_signal(2)
        errors = process.communicate(timeout=120)[1]
    assert (process.returncode, errors) == (130, b"")


def test_keys_precede_the_separator(fake: FakeBroker, penstock: Runner, tmp_path: Path) -> None:
    """The first separator of a line counts."""
    path = given(tmp_path, "a:1\nb:2:3\n:4\n")
    assert penstock("produce", "orders", "-K", ":", "-f", path).code == 0
    assert [(record.key, record.value) for record in sent(fake)] == [
        (b"a", b"1"),
        (b"b", b"2:3"),
        (b"", b"4"),
    ]


def test_a_line_without_a_separator_is_reported_by_number(
    fake: FakeBroker, penstock: Runner, tmp_path: Path
) -> None:
    """The command ends there."""
    ended = penstock("produce", "orders", "-K", ":", "-f", given(tmp_path, "a:1\nb2\n"))
    assert ended.code == 2
    assert "line 2: the separator ':' is missing" in ended.err


def test_many_lines_keep_their_order(fake: FakeBroker, penstock: Runner, tmp_path: Path) -> None:
    """Most are sent as tables, the last ones as records. Keys are routed as for a few lines."""
    fake.model.add_topic("orders", 3)
    lines = [f"k{number % 7}:{number}" for number in range(7_000)]
    path = given(tmp_path, "\n".join(lines))
    summary = penstock("produce", "orders", "-K", ":", "--json", "-f", path).json
    assert (summary["records"], summary["payload_bytes"]) == (7_000, len("".join(lines)) - 7_000)
    logs = [log.records() for log in fake.model.topics["orders"].logs]
    assert sum(len(records) for records in logs) == 7_000
    found: dict[bytes, list[int]] = {}
    for records in logs:
        keys = {record.key or b"" for record in records}
        assert not keys & found.keys(), "one key in two partitions"
        for record in records:
            found.setdefault(record.key or b"", []).append(int(record.value or b""))
    assert found == {b"k%d" % key: list(range(key, 7_000, 7)) for key in range(7)}


def test_many_lines_may_be_sent_to_one_partition(
    fake: FakeBroker, penstock: Runner, tmp_path: Path
) -> None:
    fake.model.add_topic("orders", 3)
    path = given(tmp_path, "".join(f"{number}\n" for number in range(5_000)))
    assert penstock("produce", "orders", "-p", "2", "-f", path).code == 0
    values = [record.value for record in fake.model.topics["orders"].logs[2].records()]
    assert values == [b"%d" % number for number in range(5_000)]


def test_lines_before_a_bad_line_are_sent(
    fake: FakeBroker, penstock: Runner, tmp_path: Path
) -> None:
    """Also in a large input, and the line number is correct."""
    path = given(tmp_path, "k:v\n" * 4_000 + "bad\n" + "k:v\n" * 4_000)
    ended = penstock("produce", "orders", "-K", ":", "-f", path)
    assert ended.code == 2
    assert "line 4001: the separator ':' is missing" in ended.err
    assert len(sent(fake)) == 4_000


def test_json_lines_have_every_field_of_a_record(
    fake: FakeBroker, penstock: Runner, tmp_path: Path
) -> None:
    """Key, headers, partition and timestamp; base64 for binary data; blank lines are ignored."""
    fake.model.add_topic("orders", 3)
    lines = [
        {
            "key": "k",
            "value": {"a": 1},
            "headers": [{"key": "h", "value": "x"}],
            "partition": 2,
            "timestamp": 5,
        },
        {"value": None, "key_base64": "/w==", "partition": 2},
    ]
    path = given(tmp_path, "\n\n".join(json.dumps(line) for line in lines))
    assert penstock("produce", "orders", "--json-lines", "-f", path).code == 0
    first, second = fake.model.topics["orders"].logs[2].records()
    assert first == Record(0, 5, b"k", b'{"a":1}', (("h", b"x"),))
    assert (second.key, second.value) == (b"\xff", None)


def test_produce_reads_the_output_of_consume(
    fake: FakeBroker, penstock: Runner, tmp_path: Path
) -> None:
    """Both use the same JSON lines."""
    source = '{"value":"v","key":"k","headers":[{"key":"h","value":"x"}],"timestamp":5}\n'
    source += '{"value_base64":"/w==","key":null,"timestamp":6}\n'
    penstock("produce", "orders", "--json-lines", "-f", given(tmp_path, source))
    out = penstock("consume", "orders", "--from-beginning", "--until-end", "--json").out
    penstock("produce", "copy", "--json-lines", "-f", given(tmp_path, out))
    assert sent(fake, "copy") == sent(fake, "orders")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression_by_kafkas_names(
    fake: FakeBroker, penstock: Runner, tmp_path: Path, codec: str
) -> None:
    path = given(tmp_path, "x\n" * 100)
    assert penstock("produce", "orders", "--compression", codec, "-f", path).code == 0
    batches = fake.model.topics["orders"].logs[0].batches
    assert {read_header(batch).codec for batch in batches} == {Codec[codec.upper()]}


@pytest.mark.parametrize(("acks", "number"), [("all", -1), ("1", 1), ("0", 0)])
def test_acks_by_kafkas_names(
    fake: FakeBroker, penstock: Runner, tmp_path: Path, acks: str, number: int
) -> None:
    assert penstock("produce", "orders", "--acks", acks, "-f", given(tmp_path, "x\n")).code == 0
    assert [request.acks for request in fake.asked(ApiKey.PRODUCE)] == [number]
    assert len(sent(fake)) == 1


def test_the_summary_may_be_json(fake: FakeBroker, penstock: Runner, tmp_path: Path) -> None:
    """With the offsets that were written."""
    summary = penstock("produce", "orders", "--json", "-f", given(tmp_path, "a\nb\n")).json
    assert (summary["records"], summary["payload_bytes"]) == (2, 2)
    assert summary["partitions"] == [{"partition": 0, "first_offset": 0, "next_offset": 2}]


def test_a_refusal_names_the_partition_and_the_remedy(
    fake: FakeBroker, penstock: Runner, tmp_path: Path
) -> None:
    """In one line."""
    fake.next(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
    ended = penstock("produce", "orders", "-f", given(tmp_path, "x\n"))
    assert ended.code == 1
    assert "orders-0: the batch is larger than max.message.bytes allows: raise" in ended.err
    assert "(penstock topic alter TOPIC --config max.message.bytes=BYTES)" in ended.err


def test_a_topic_that_is_not_auto_created_is_an_error(
    fake: FakeBroker, penstock: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the short wait that auto-creation would need."""
    fake.model.auto_create = False
    monkeypatch.setattr("penstock.client.cluster._AUTO_CREATE_WAIT_S", 0.1)
    ended = penstock("produce", "nope", "-f", given(tmp_path, "x\n"))
    assert ended.code == 1
    assert "topic nope does not exist" in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-K", ":", "--json-lines"), "a JSON object has its own key"),
        (("-K", ""), "--key-separator is empty"),
        (("-f", "/nonexistent/file"), "/nonexistent/file"),
        (("--acks", "2"), "'2'"),
        (("--compression", "brotli"), "'brotli'"),
    ],
)
def test_wrong_usage_exits_with_2(
    penstock: Runner, arguments: tuple[str, ...], message: str
) -> None:
    """Before any broker is contacted."""
    ended = penstock("produce", "orders", "-b", "127.0.0.1:1", *arguments)
    assert ended.code == 2
    assert message in ended.err


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"key": "k"}', '"value" is missing'),
        ('{"value": 1, "colour": 2}', "unknown field colour"),
        ('{"value": "x", "partition": -1}', "partition must be a whole number"),
        ('{"value": "x", "partition": true}', "partition must be a whole number"),
        ('{"value": "x", "timestamp": 1.5}', "timestamp must be a whole number"),
        ('{"value_base64": "%%"}', "value_base64 is not base64"),
        ('{"value_base64": 5}', "value_base64 is not base64"),
        ('{"value": "\\ud800"}', "not valid Unicode"),
        ('{"value": "x", "headers": 5}', "headers must be"),
        ('{"value": "x", "headers": [5]}', "a header must be"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_json_lines_are_refused_with_a_reason(line: str, problem: str) -> None:
    with pytest.raises(BadLine, match=problem):
        parse_json_line(line.encode())


def test_json_lines_have_short_forms() -> None:
    """Headers as an object; numbers and objects as their JSON."""
    record = parse_json_line(b'{"value": 5, "key": [1, 2], "headers": {"a": "b", "c": null}}')
    assert record == InputRecord(b"[1,2]", b"5", (("a", b"b"), ("c", None)))


def test_separators_may_be_long() -> None:
    """Any text, compared as bytes."""
    assert split_key("käse => 1".encode(), b" => ") == InputRecord("käse".encode(), b"1")


def test_unreadable_input_is_an_error(penstock: Runner) -> None:
    """A directory, or the wrong end of a pipe."""
    assert penstock("produce", "orders", "-b", "127.0.0.1:1", "--file", "/").code == 2
    reader, writer = os.pipe()

    async def main() -> None:
        async for _ in read_lines(writer):
            raise AssertionError("there is nothing to read")

    with pytest.raises(OSError, match="Bad file descriptor"):
        asyncio.run(main())
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("size", [1, 1000, (1 << 20) - 1, (1 << 20) + 7, 3 << 20])
def test_lines_are_complete_wherever_reads_end(tmp_path: Path, size: int) -> None:
    """A line may be longer than one read."""
    lines = [b"a" * size, b"", b"b" * size]

    async def main(descriptor: int) -> list[bytes]:
        return [line async for some in read_lines(descriptor) for line in some]

    with open(given(tmp_path, b"\n".join(lines)), "rb") as file:
        assert asyncio.run(main(file.fileno())) == lines
